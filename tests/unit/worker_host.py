"""A worker and what is around it: a reconciler whose passes the test decides."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monky_deployd.agent.grants import GrantKeeper
from monky_deployd.agent.journey import Passed
from monky_deployd.agent.memory import Memory
from monky_deployd.agent.mend import Looked, Mender
from monky_deployd.agent.reconcile import Reconciler
from monky_deployd.agent.vitals import Vitals
from monky_deployd.agent.worker import Worker
from monky_deployd.demo.grants import GrantIssuer
from monky_deployd.domain.drift import EngineEvent
from monky_deployd.domain.plan import History
from monky_deployd.domain.report import Outcome
from monky_deployd.domain.secret import Scrubber, Secret
from monky_deployd.errors import MonkyError
from monky_deployd.host.grant import GrantFile
from monky_deployd.host.releases import Releases
from monky_deployd.host.store import Store
from tests.unit.agent_fakes import ENV, Record, good


@dataclass
class Made:
    """A pass as it was asked for."""

    body: bytes
    token: str
    history: History
    forced: bool


class FakeReconciler(Reconciler):
    """Comes to `results` one by one. With `slow`, each pass waits for `finish()`."""

    def __init__(self) -> None:
        self.begun: Record[Made] = Record()
        self.results: deque[Passed | Exception] = deque()
        self.slow = False
        self.cancelled = 0
        self.new_secrets: deque[bool | MonkyError] = deque()
        self.asked_for_secrets: Record[bytes] = Record()
        self._finish = asyncio.Semaphore(0)

    async def run(
        self, body: bytes, grant: Secret, history: History, *, forced: bool = False
    ) -> Passed:
        self.begun.append(Made(body, grant.reveal(), history, forced))
        try:
            if self.slow:
                await self._finish.acquire()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        result = self.results.popleft() if self.results else good()
        if isinstance(result, Exception):
            raise result
        return result

    async def secrets_changed(self, body: bytes, grant: Secret) -> bool:
        self.asked_for_secrets.append(body)
        answer = self.new_secrets.popleft() if self.new_secrets else False
        if isinstance(answer, MonkyError):
            raise answer
        return answer

    def finish(self) -> None:
        self._finish.release()


@dataclass(frozen=True)
class Look:
    """A look as it was asked for."""

    history: History
    events: list[EngineEvent]
    was_bad: bool


class FakeMender(Mender):
    """Comes to `results` one by one, then finds nothing. The first look is the one at the start."""

    def __init__(self) -> None:
        self.looks: Record[Look] = Record()
        self.results: deque[Looked | MonkyError] = deque()
        self.forgot = 0

    def forget(self) -> None:
        self.forgot += 1

    def concerns(self, event: EngineEvent) -> bool:
        return event.project != "other"

    async def look(
        self, history: History, events: Callable[[], Sequence[EngineEvent]], *, was_bad: bool
    ) -> Looked:
        self.looks.append(Look(history, list(events()), was_bad))
        result = self.results.popleft() if self.results else Looked()
        if isinstance(result, MonkyError):
            raise result
        return result


@dataclass
class Host:
    """A worker and what is around it."""

    memory: Memory
    grant_file: Path
    reconciler: FakeReconciler = field(default_factory=FakeReconciler)
    mender: FakeMender = field(default_factory=FakeMender)
    refresh_interval: float = 300.0
    tidied: int = 0
    outcomes: Record[Outcome] = field(default_factory=Record)
    vitals: Vitals = field(default_factory=Vitals)

    def __post_init__(self) -> None:
        self.grants = GrantKeeper(GrantFile(self.grant_file), ENV, Scrubber())

    def worker(self, *, forced: bool = False, **callbacks: Any) -> Worker:
        return Worker(
            self.reconciler,
            self.mender,
            self.memory,
            self.grants,
            forced=forced,
            refresh_interval=self.refresh_interval,
            tidy=self._tidy,
            longest_pass=100.0,
            **(callbacks or {"on_outcome": self.outcomes.append, "vitals": self.vitals}),
        )

    def install(self, grant: str) -> None:
        """Put another grant in place, as `grant install` does."""
        fresh = self.grant_file.with_suffix(".new")
        fresh.touch(mode=0o600)
        fresh.write_text(grant)
        fresh.replace(self.grant_file)

    async def _tidy(self) -> None:
        self.tidied += 1


@contextmanager
def host_in(base: Path) -> Iterator[Host]:
    """A host with a grant and an empty memory, below `base`."""
    grant_file = base / "grant"
    grant_file.touch(mode=0o600)
    grant_file.write_text(GrantIssuer().issue(ENV))
    with Store(base / "state.db") as store:
        yield Host(Memory(store, Releases(base), 300.0), grant_file)
