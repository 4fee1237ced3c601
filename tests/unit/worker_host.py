"""A worker and what is around it: a reconciler whose passes the test decides."""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monky_deployd.agent.grants import GrantKeeper
from monky_deployd.agent.journey import Passed
from monky_deployd.agent.loop import Vitals, Worker
from monky_deployd.agent.memory import Memory
from monky_deployd.agent.reconcile import Reconciler
from monky_deployd.demo.grants import GrantIssuer
from monky_deployd.domain.plan import History
from monky_deployd.domain.report import Outcome
from monky_deployd.domain.secret import Scrubber, Secret
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

    def finish(self) -> None:
        self._finish.release()


@dataclass
class Host:
    """A worker and what is around it."""

    memory: Memory
    grant_file: Path
    reconciler: FakeReconciler = field(default_factory=FakeReconciler)
    outcomes: Record[Outcome] = field(default_factory=Record)
    vitals: Vitals = field(default_factory=Vitals)

    def __post_init__(self) -> None:
        self.grants = GrantKeeper(GrantFile(self.grant_file), ENV, Scrubber())

    def worker(self, *, forced: bool = False, **callbacks: Any) -> Worker:
        return Worker(
            self.reconciler,
            self.memory,
            self.grants,
            forced=forced,
            longest_pass=100.0,
            **(callbacks or {"on_outcome": self.outcomes.append, "vitals": self.vitals}),
        )


@contextmanager
def host_in(base: Path) -> Iterator[Host]:
    """A host with a grant and an empty memory, below `base`."""
    grant_file = base / "grant"
    grant_file.touch(mode=0o600)
    grant_file.write_text(GrantIssuer().issue(ENV))
    with Store(base / "state.db") as store:
        yield Host(Memory(store, Releases(base), 300.0), grant_file)
