"""The Docker Engine is restarted: a second one, which belongs to these cases."""

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from monky_deployd.demo.engine import Engine
from tests.real.faults import proxy
from tests.real.faults.bench import Bench, Parts, open_bench
from tests.real.faults.matrix import Case, Group
from tests.real.world import eventually

_HEALTHY_LATER = {
    "test": ["CMD", "test", "-e", "/tmp/ready"],
    "interval": "1s",
    "retries": 1000,
}


def _down(bench: Bench) -> None:
    bench.world.engine.stop()


def _up(bench: Bench) -> None:
    """The same engine again, which starts what ran."""
    base = bench.world.engine.socket.parent
    bench.world.engine = Engine.private(base, base / "data")
    # Its restart policy brought it back.
    eventually(lambda: bench.world.container("web")["State"]["Running"], "web")
    bench.settled()


def _idle(bench: Bench) -> str:
    _down(bench)
    _up(bench)
    bench.publish()
    return "restarted"


def _mid_pull(bench: Bench) -> str:
    order = bench.registry.next(proxy.TIMEOUT, prefix=f"/v2/{bench.world.slug}/part/blobs/")
    bench.publish(part=bench.image("mid-pull"))
    order.wait()
    _down(bench)
    order.end()
    _up(bench)
    return "restarted"


def _mid_up(bench: Bench) -> str:
    """While Compose waits for a service to become healthy."""
    with bench.gate("before-up") as gate:
        bench.publish({"slow": {"image": bench.idle, "healthcheck": _HEALTHY_LATER}})
        gate.reached()
        gate.open()
        names = f"name={bench.world.slug}-slow"
        eventually(lambda: bench.world.docker("ps", "-q", "--filter", names), "slow")
    _down(bench)
    _up(bench)
    bench.world.docker("start", f"{bench.world.slug}-slow-1")
    bench.world.inside("slow", "touch", "/tmp/ready")
    return "restarted"


def _verify(bench: Bench) -> str:
    with bench.gate("after-up") as gate:
        bench.publish()
        gate.reached()
        _down(bench)
        gate.open()
        gate.passed()
    _up(bench)
    return "restarted"


def _start(bench: Bench) -> str:
    """It is down as the agent starts."""
    bench.end(signal.SIGTERM)
    _down(bench)
    bench.start()
    bench.publish()
    bench.told("engine-unreachable")
    _up(bench)
    return "started later"


@contextmanager
def _open(base: Path, parts: Parts) -> Iterator[Bench]:
    base.mkdir()
    engine = Engine.private(base, base / "data")
    bench = None
    try:
        with open_bench(base / "bench", replace(parts, engine=engine)) as bench:
            bench.restart = "always"
            yield bench
    finally:
        (bench.world.engine if bench else engine).stop()
        shutil.rmtree(base / "data", ignore_errors=True)


GROUPS = [
    Group(
        "engine",
        [
            Case("idle", "engine restart", _idle),
            Case("pull", "engine restart", _mid_pull),
            Case("verify", "engine restart", _verify),
            Case("start", "engine restart", _start),
            Case("up", "engine restart", _mid_up),
        ],
        _open,
    ),
]
