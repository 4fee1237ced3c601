"""The agent itself: killed, stopped and suspended in each phase, and started again."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from tests.real.faults import proxy
from tests.real.faults.bench import Bench
from tests.real.faults.matrix import Case, Group

_SUSPENDED = 3.0

Stop = Callable[[Bench], AbstractContextManager[None]]


@contextmanager
def _idle(bench: Bench) -> Iterator[None]:
    yield
    bench.publish()


@contextmanager
def _in_fetch(bench: Bench) -> Iterator[None]:
    order = bench.tenancy.next(proxy.TIMEOUT, prefix="/v1/")
    bench.publish()
    order.wait()
    yield


@contextmanager
def _in_login(bench: Bench) -> Iterator[None]:
    order = bench.openbao.next(proxy.TIMEOUT, prefix="/v1/auth/")
    bench.publish()
    order.wait()
    yield


@contextmanager
def _in_read(bench: Bench) -> Iterator[None]:
    order = bench.openbao.next(proxy.TIMEOUT, prefix="/v1/secret/")
    bench.publish()
    order.wait()
    yield


@contextmanager
def _in_backoff(bench: Bench) -> Iterator[None]:
    bench.openbao.next(proxy.STORM, prefix="/v1/auth/")
    bench.publish()
    bench.told("openbao-error")
    yield


@contextmanager
def _in_pull(bench: Bench) -> Iterator[None]:
    order = bench.registry.next(proxy.TIMEOUT, prefix=f"/v2/{bench.world.slug}/part/blobs/")
    bench.publish(part=bench.image(f"killed-{bench.generation}"))
    order.wait()
    yield
    # The engine goes on with a pull whose client is gone, and the next one joins it.
    order.end()


@contextmanager
def _in_report(bench: Bench) -> Iterator[None]:
    """Tenancy has the report, the agent does not know it yet."""
    order = bench.tenancy.next(proxy.TIMEOUT, prefix=f"/v1/environments/{bench.world.slug}/reports")
    bench.publish()
    order.wait()
    yield


def _at_gate(name: str) -> Stop:
    """At a command of Compose's, which goes on where only the agent was killed."""

    @contextmanager
    def stop(bench: Bench) -> Iterator[None]:
        with bench.gate(name) as gate:
            bench.publish()
            gate.reached()
            yield

    return stop


@contextmanager
def _in_verify(bench: Bench) -> Iterator[None]:
    """While the agent watches what came up."""
    with bench.gate("after-up") as gate:
        bench.publish()
        gate.reached()
        gate.open()
        gate.passed()
        yield


_STOPS: dict[str, Stop] = {
    "idle": _idle,
    "fetch": _in_fetch,
    "login": _in_login,
    "read": _in_read,
    "admit": _at_gate("before-config"),
    "pull": _in_pull,
    "switch": _at_gate("before-up"),
    "up": _at_gate("after-up"),
    "verify": _in_verify,
    "report": _in_report,
    "backoff": _in_backoff,
}


def _killed(phase: str) -> Case:
    def play(bench: Bench) -> None:
        with _STOPS[phase](bench):
            assert bench.end(signal.SIGKILL) == -signal.SIGKILL
        bench.start()

    return Case(phase, "kill -9", play)


def _stopped(phase: str) -> Case:
    def play(bench: Bench) -> None:
        with _STOPS[phase](bench):
            assert bench.end(signal.SIGTERM) == 0
        bench.start()

    return Case(phase, "SIGTERM", play)


def _suspended(phase: str) -> Case:
    """As a machine that sleeps, or a hypervisor that gives it no time."""

    def play(bench: Bench) -> None:
        assert bench.daemon
        with _STOPS[phase](bench):
            bench.daemon.send(signal.SIGSTOP)
            time.sleep(_SUSPENDED)
            bench.daemon.send(signal.SIGCONT)

    return Case(phase, "suspended for 3 s", play)


_PHASES = list(_STOPS)

GROUPS = [
    Group("killed", [_killed(phase) for phase in _PHASES[:6]]),
    Group("killed-too", [_killed(phase) for phase in _PHASES[6:]]),
    Group("stopped", [_stopped(phase) for phase in _PHASES[:6]]),
    Group("stopped-too", [_stopped(phase) for phase in _PHASES[6:]]),
    Group("suspended", [_suspended(phase) for phase in ("idle", "fetch", "pull", "up", "report")]),
]
