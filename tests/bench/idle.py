"""What the daemon costs while nothing changes, beside a timer script that pulls and ups.

    python -m tests.bench.idle [--seconds N] [--runs N]

Needs root and what `tests/run.sh` installs. One cycle of the daemon is one long poll, one of the
script is `docker compose pull -q && docker compose up -d` on the same project.
"""

import argparse
import os
import resource
import socket
import struct
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.stage import Stage, deployed


@dataclass(frozen=True)
class Usage:
    """What a process has used so far."""

    cpu: float
    wakeups: int
    written: int
    to_disk: int
    processes: int
    polls: int

    def __sub__(self, before: "Usage") -> "Usage":
        return Usage(*(getattr(self, n) - getattr(before, n) for n in self.__annotations__))


def fields(path: Path) -> dict[str, str]:
    """A file of /proc of `name: value` lines."""
    return dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)


def cpu_seconds(pid: int) -> float:
    """What the threads of a process have used so far."""
    # In nanoseconds; `stat` counts in ticks of 10 ms, more than a poll takes.
    threads = Path(f"/proc/{pid}").glob("task/*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in threads) / 1e9


def engine_pid(stage: Stage) -> int:
    """The process that listens on the Engine's socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(stage.world.engine.socket))
        peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, _, _ = struct.unpack("3i", peer)
    return int(pid)


def usage(stage: Stage) -> Usage:
    """What the daemon has used: seconds, switches, bytes by system calls and to the disk."""
    proc = Path(f"/proc/{stage.daemon.pid}")
    status, io = fields(proc / "status"), fields(proc / "io")
    return Usage(
        cpu=cpu_seconds(stage.daemon.pid),
        wakeups=int(status["voluntary_ctxt_switches"]),
        written=int(io["wchar"]),
        to_disk=int(io["write_bytes"]),
        processes=stage.processes,
        polls=sum(request.method == "GET" for request in stage.world.tenancy.requests),
    )


def pss(stage: Stage) -> float:
    """The daemon's proportional share of memory in MiB."""
    rollup = fields(Path(f"/proc/{stage.daemon.pid}/smaps_rollup"))
    return int(rollup["Pss"].split()[0]) / 1024


def script_cpu(stage: Stage, runs: int) -> tuple[float, float]:
    """CPU and elapsed seconds of one run of the timer script itself."""
    current = stage.world.state / "current"
    compose = (
        f"docker compose --project-name {stage.world.slug} --project-directory {current} "
        f"--file {current}/compose.yaml --file {current}/.monky/override.yaml"
    )
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(stage.world.base),
        "DOCKER_CONFIG": str(stage.world.state / "docker"),
        "DOCKER_HOST": stage.world.engine.docker_host,
    }
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(runs):
        command = f"{compose} pull -q && {compose} up -d"
        subprocess.run(["sh", "-c", command], env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu / runs, (time.monotonic() - began) / runs


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120, help="how long (default: 120)")
    parser.add_argument("--runs", type=int, default=5, help="runs of the script (default: 5)")
    chosen = parser.parse_args()
    with deployed() as stage:
        # Until it has asked for a held request, it is still at work.
        time.sleep(2)
        dockerd = engine_pid(stage)
        before, idle_before = usage(stage), cpu_seconds(dockerd)
        time.sleep(chosen.seconds)
        used, memory = usage(stage) - before, pss(stage)
        idle_engine, busy_before = cpu_seconds(dockerd) - idle_before, cpu_seconds(dockerd)
        cpu, elapsed = script_cpu(stage, chosen.runs)
        busy_engine = (cpu_seconds(dockerd) - busy_before) / chosen.runs
    per_poll = used.cpu / max(used.polls, 1)
    print(f"the daemon over {chosen.seconds:.0f} s, {used.polls} long polls:")
    print(f"  CPU {used.cpu * 1000:.1f} ms, wake-ups {used.wakeups}, PSS {memory:.1f} MiB")
    print(f"  processes started {used.processes}, bytes written {used.written}")
    print(f"  of these to the disk: {used.to_disk}")
    print(f"  dockerd meanwhile: CPU {idle_engine * 1000:.1f} ms")
    print(f"the script, one run: CPU {cpu:.3f} s, {elapsed:.2f} s in all")
    print(f"  dockerd for it: CPU {busy_engine * 1000:.1f} ms")
    print(f"CPU of a long poll to that of a run of the script: 1 to {cpu / per_poll:.0f},")
    print(f"  and with what dockerd does for it: 1 to {(cpu + busy_engine) / per_poll:.0f}")


if __name__ == "__main__":
    main()
