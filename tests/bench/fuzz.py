"""What comes from outside, mutated: nothing may raise but the typed errors, nor quote a secret.

    python -m tests.bench.fuzz [--seconds N] [--seed N] [TARGET ...]

Each target is fed for so long, in a process of its own; atheris leads the mutations to code that
none has reached yet. The counts are printed, and the exit code is 1 where there was a finding.
Needs `pip install '.[fuzz]'`.
"""

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.fuzz_targets import TARGETS

# What the process of a target ends with where nothing, or something, was found.
_ENDS = (0, 3)


def run(name: str, seconds: float, seed: int) -> bool:
    """Feed one target in a process of its own; whether all went well."""
    with TemporaryDirectory() as corpus:
        for number, example in enumerate(TARGETS[name].examples):
            (Path(corpus) / str(number)).write_bytes(example)
        child = subprocess.run(
            [sys.executable, "-m", "tests.bench.fuzz_one", name, str(seconds), str(seed), corpus],
            stderr=subprocess.PIPE,
        )
    if child.returncode not in _ENDS:
        print(f"{name}: the fuzzer itself ended with {child.returncode}:")
        print(child.stderr.decode("utf-8", "replace")[-4000:])
    return child.returncode == 0


def main() -> int:
    """Run the targets that were asked for, all by default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of: {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=float, default=600, help="for each (default: 600)")
    parser.add_argument("--seed", type=int, default=1, help="default: 1")
    chosen = parser.parse_args()
    if unknown := set(chosen.targets) - TARGETS.keys():
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    if importlib.util.find_spec("atheris") is None:
        parser.error("there is no atheris here: pip install '.[fuzz]'")
    names = chosen.targets or list(TARGETS)
    good = [run(name, chosen.seconds, chosen.seed) for name in names]
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
