"""Runs the cases: those of a group one after the other on one agent, and the groups side by side.

Most of a case is waiting: for a time limit, for the agent's own pause before it tries again. That
is what makes it worth while to let the groups wait together.
"""

import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.real.faults.bench import Bench, Parts, open_bench

_AT_ONCE = 14
_LOG_TAIL = 40

OpenBench = Callable[[Path, Parts], AbstractContextManager[Bench]]


@dataclass(frozen=True)
class Case:
    """A fault in a phase. `play` brings it about and returns once its end is to be expected;
    what it returns goes into the table."""

    phase: str
    fault: str
    play: Callable[[Bench], str | None]

    @property
    def name(self) -> str:
        return f"{self.phase}: {self.fault}"


@dataclass(frozen=True)
class Group:
    """Cases that share an agent, one after the other, on a bench that `open` makes."""

    name: str
    cases: Sequence[Case]
    open: OpenBench = open_bench


@dataclass
class Result:
    """How a case ended. `error` is why it is a failure."""

    case: Case
    ended: str = ""
    seconds: float = 0.0
    peak: int = 0
    error: str = ""
    done: threading.Event = field(default_factory=threading.Event)


class Matrix:
    """Plays the wanted cases of `groups` as soon as it is made."""

    def __init__(self, base: Path, parts: Parts, groups: Sequence[Group], names: set[str]) -> None:
        self._base = base
        self._parts = parts
        self._opening = threading.Lock()
        self._stopped = threading.Event()
        self.results: dict[str, Result] = {}
        self._pool = ThreadPoolExecutor(_AT_ONCE)
        for group in groups:
            wanted = [case for case in group.cases if case.name in names]
            for case in wanted:
                self.results[case.name] = Result(case)
            if wanted:
                self._pool.submit(self._play_group, group, wanted)

    def result(self, name: str) -> Result:
        """The result of a case, as soon as it is there."""
        result = self.results[name]
        result.done.wait()
        return result

    def close(self) -> None:
        """Begin no more cases, and wait for those under way."""
        self._stopped.set()
        self._pool.shutdown()

    def _play_group(self, group: Group, cases: Sequence[Case]) -> None:
        left = [self.results[case.name] for case in cases]
        try:
            while left:
                # A case that failed may have left anything: the next gets a bench of its own.
                self._play_on_one_bench(group, left)
        except Exception:  # noqa: BLE001 - whatever it is, the tests that wait must hear of it
            for result in left:
                result.error = traceback.format_exc()
        finally:
            for case in cases:
                self.results[case.name].done.set()

    def _play_on_one_bench(self, group: Group, left: list[Result]) -> None:
        with ExitStack() as stack:
            base = self._base / f"{group.name}-{len(left)}"
            with self._opening:
                bench = stack.enter_context(group.open(base, self._parts))
            stack.callback(_stop, bench)
            bench.publish()
            bench.start()
            bench.converged()
            bench.settled()
            while left:
                result = left.pop(0)
                if self._stopped.is_set():
                    result.error = "the run was stopped"
                else:
                    _play(result, bench)
                result.done.set()
                if result.error:
                    return


def _play(result: Result, bench: Bench) -> None:
    began = time.monotonic()
    first = len(bench.reports)
    bench.heard()
    try:
        note = result.case.play(bench)
        bench.converged()
        outcomes = [report["outcome"] for report in bench.reports[first:]]
        result.ended = ", ".join([*([note] if note else []), *outcomes])
    except BaseException:  # noqa: BLE001 - an assertion too: it is raised where it is waited for
        result.error = f"{traceback.format_exc()}\n{_circumstances(bench)}"
        result.ended = "FAILED"
    result.seconds = time.monotonic() - began
    result.peak = bench.peak
    for proxy in (bench.tenancy, bench.openbao, bench.registry):
        proxy.calm()


def _stop(bench: Bench) -> None:
    if bench.daemon:
        bench.daemon.stop()
        bench.daemon = None


def _circumstances(bench: Bench) -> str:
    log = bench.daemon.log.splitlines()[-_LOG_TAIL:] if bench.daemon else ["the agent is down"]
    told = [(r["seq"], r["generation"], r["outcome"]) for r in bench.reports]
    return "\n".join([f"reports: {told}", "the agent's log ends with:", *log])


def table(results: Sequence[Result]) -> Iterator[str]:
    """The results as lines of text."""
    yield f"{'phase':<8} {'fault':<32} {'s':>5} {'MiB':>4}  how it ended"
    for result in results:
        case = result.case
        yield (
            f"{case.phase:<8} {case.fault:<32} {result.seconds:5.1f} {result.peak // 1024:4d}  "
            f"{result.ended}"
        )
