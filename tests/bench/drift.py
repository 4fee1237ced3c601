"""How long a container is away that somebody removed, stopped or killed, and what watching costs.

    python -m tests.bench.drift [--rounds N]

Needs root and what `tests/run.sh` installs. Prints seconds until the container runs again.
"""

import argparse
import itertools
import statistics
import time

from tests.bench.stage import Stage, deployed

DEEDS = (["rm", "--force"], ["stop"], ["kill"])
IDLE_SECONDS = 10.0


def runs(stage: Stage, service: str) -> bool:
    """Whether the service's container runs."""
    name = f"name={stage.world.slug}-{service}-1"
    return "Up" in stage.world.docker("ps", "--format", "{{.Status}}", "--filter", name)


def seconds_away(stage: Stage, deed: list[str], number: int) -> float:
    """Do it, and wait until the container runs again and the agent has reported so."""
    stage.world.docker(*deed, f"{stage.world.slug}-web0-1")
    began = time.monotonic()
    while not runs(stage, "web0"):
        time.sleep(0.01)
    took = time.monotonic() - began
    stage.world.wait_for_report(number)
    return took


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21, help="how often (default: 21)")
    rounds = parser.parse_args().rounds
    with deployed() as stage:
        before = stage.processes
        time.sleep(IDLE_SECONDS)
        idle = stage.processes - before
        took = [
            seconds_away(stage, deed, number)
            for number, deed in zip(range(2, rounds + 2), itertools.cycle(DEEDS), strict=False)
        ]
    print(f"{rounds} rounds of {', '.join(' '.join(deed) for deed in DEEDS)}")
    print(f"away: median {statistics.median(took):.2f} s, longest {max(took):.2f} s")
    print(f"processes started in {IDLE_SECONDS:.0f} s without any drift: {idle}")


if __name__ == "__main__":
    main()
