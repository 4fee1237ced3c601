"""The host's clock jumps: forward and back, while the agent waits and in the middle of a pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.real.faults import proxy
from tests.real.faults.bench import Bench, Parts, open_bench
from tests.real.faults.matrix import Case, Group

_DAY = 86400


def _jump(bench: Bench, seconds: int) -> None:
    assert bench.clock
    fresh = bench.clock.with_suffix(".new")
    fresh.write_text(str(seconds))
    fresh.replace(bench.clock)


def _idle(seconds: int, bench: Bench) -> None:
    _jump(bench, seconds)
    bench.publish()


def _in_backoff(seconds: int, bench: Bench) -> None:
    """It waits as long as it was to wait, whatever the clock says."""
    bench.openbao.next(proxy.STORM, prefix="/v1/auth/")
    bench.publish()
    bench.told("openbao-error")
    _jump(bench, seconds)


def _in_up(seconds: int, bench: Bench) -> None:
    with bench.gate("before-up") as gate:
        bench.publish()
        gate.reached()
        _jump(bench, seconds)
        gate.open()
        bench.converged()


def _in_report(seconds: int, bench: Bench) -> None:
    order = bench.tenancy.next(proxy.TIMEOUT, prefix=f"/v1/environments/{bench.world.slug}/reports")
    bench.publish()
    order.wait()
    _jump(bench, seconds)


def _cases(days: int) -> list[Case]:
    fault = f"clock {days:+d} days"
    plays = {"idle": _idle, "backoff": _in_backoff, "up": _in_up, "report": _in_report}
    return [Case(phase, fault, partial(play, days * _DAY)) for phase, play in plays.items()]


@contextmanager
def _open(base: Path, parts: Parts) -> Iterator[Bench]:
    with open_bench(base, parts, clock=True) as bench:
        _jump(bench, 0)
        yield bench


GROUPS = [
    Group("clock-forward", _cases(+20), _open),
    Group("clock-back", _cases(-20), _open),
]
