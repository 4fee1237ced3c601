"""The worker: does what is due, one thing at a time, and remembers what came of it."""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from monky_deployd.agent.agenda import Agenda, Task
from monky_deployd.agent.grants import GRANT_LOOK_INTERVAL, GrantKeeper
from monky_deployd.agent.memory import Memory
from monky_deployd.agent.mend import Looked, Mender
from monky_deployd.agent.reconcile import Reconciler
from monky_deployd.agent.vitals import Vitals
from monky_deployd.domain.backoff import jittered, release_delay
from monky_deployd.domain.drift import EngineEvent, still_told
from monky_deployd.domain.report import Outcome, Phase
from monky_deployd.errors import MonkyError, Reason

logger = logging.getLogger(__name__)

# What belongs together comes within this time: a removal is three events.
_EVENTS_TOGETHER = 0.2
_EVENTS_KEPT = 100
# A pass that ended in one of these has neither touched containers nor looked at them.
_UNTOUCHED = {Phase.FETCH, Phase.RESOLVE, Phase.RENDER, Phase.ADMIT, Phase.PULL}


class Worker:
    """Makes the passes, looks after what runs between them, and looks for new secrets.

    `on_outcome` gets what each came to. `forced`: a held release is tried again, until a pass
    got so far. `longest_pass` is how many seconds one may take before the watchdog is alarmed,
    `refresh_interval` how many pass between two looks for new secrets. `tidy` is called after
    each pass.
    """

    def __init__(
        self,
        reconciler: Reconciler,
        mender: Mender,
        memory: Memory,
        grants: GrantKeeper,
        *,
        on_outcome: Callable[[Outcome], None],
        vitals: Vitals,
        longest_pass: float,
        refresh_interval: float,
        tidy: Callable[[], Awaitable[None]],
        forced: bool = False,
    ) -> None:
        self._reconciler = reconciler
        self._mender = mender
        self._memory = memory
        self._grants = grants
        self._on_outcome = on_outcome
        self._vitals = vitals
        self._forced = forced
        self._longest_pass = longest_pass
        self._refresh_interval = refresh_interval
        self._tidy = tidy
        self._agenda = Agenda()
        self._body: bytes | None = None
        self._events: deque[EngineEvent] = deque(maxlen=_EVENTS_KEPT)
        self._edition = 0
        self._unrecorded = 0
        self._unrefreshed: Reason | None = None
        self._decommissioned = memory.is_decommissioned()
        self._idle = asyncio.Event()
        self._idle.set()

    def manifest(self, body: bytes) -> None:
        """There is a new manifest: reconcile at once."""
        self._body = body
        self._agenda.hasten(Task.PASS)

    def saw(self, event: EngineEvent) -> None:
        """The engine told that something happened to a container."""
        if not self._mender.concerns(event):
            return
        self._events.append(event)
        self._agenda.hasten(Task.LOOK, _EVENTS_TOGETHER)

    def look(self) -> None:
        """Something may have happened unseen."""
        self._agenda.hasten(Task.LOOK)

    def decommissioned(self, gone: bool) -> None:
        """Tenancy gave the environment up: nothing of it is touched any more, and a pass under
        way is finished. Or it took it back: what was missed meanwhile is made up for at once."""
        if self._decommissioned == gone:
            return
        self._memory.decommission(gone)
        if not gone:
            self._agenda.hasten(Task.LOOK)
            self._agenda.hasten(Task.PASS)
        self._decommissioned = gone

    def contact(self, problem: MonkyError | None) -> None:
        """How the contact with tenancy is: None where all is well."""
        self._memory.remember_contact(problem)

    async def finished(self) -> None:
        """Wait until nothing is under way."""
        await self._idle.wait()

    async def run(self) -> None:
        """Do what is due until cancelled. The first is a look: the host may just have started."""
        self.look()
        while True:
            self._vitals.promise("worker", float("inf"))
            due = await self._agenda.next()
            if self._decommissioned:
                continue
            self._vitals.promise("worker", self._longest_pass)
            self._idle.clear()
            try:
                for task in due:
                    await self._do(task)
            finally:
                self._idle.set()

    async def _do(self, task: Task) -> None:
        if task is Task.LOOK:
            await self._look()
        elif task is Task.GRANT:
            self._look_for_grant()
        elif self._body is not None and task is Task.REFRESH:
            await self._refresh(self._body)
        elif self._body is not None and task is Task.PASS:
            await self._pass(self._body)

    async def _pass(self, body: bytes) -> None:
        try:
            try:
                grant = self._grants.current()
            finally:
                self._edition = self._grants.edition
            passed = await self._reconciler.run(
                body, grant.token, self._memory.history(), forced=self._forced
            )
            outcome = self._memory.record(passed)
        except MonkyError as error:
            # What a pass finds wrong is an outcome; this is a grant that is gone, or a state that
            # can't be read or written, so that there is nowhere to keep an outcome.
            self._wait_for_pass(self._not_recorded("the pass could not be made or recorded", error))
            return
        finally:
            self._mender.forget()
        if outcome.phase not in _UNTOUCHED:
            # What happened meanwhile is the pass's own doing, and it looked last.
            self._events.clear()
        self._unrecorded = 0
        if outcome.next_try is None:
            self._forced = False
            self._agenda.set(Task.REFRESH, self._till_refresh())
        else:
            # Both are of one clock, which may jump at any time after.
            wait = (outcome.next_try - outcome.finished_at).total_seconds()
            self._wait_for_pass(wait)
        self._on_outcome(outcome)
        await self._tidy()

    def _wait_for_pass(self, seconds: float) -> None:
        self._agenda.set(Task.PASS, seconds)
        self._agenda.set(Task.GRANT, GRANT_LOOK_INTERVAL)

    def _look_for_grant(self) -> None:
        """A new grant ends the wait of a failed pass."""
        if not self._agenda.waits(Task.PASS):
            return
        if self._grants.newer_than(self._edition):
            self._agenda.hasten(Task.PASS)
        else:
            self._agenda.set(Task.GRANT, GRANT_LOOK_INTERVAL)

    async def _look(self) -> None:
        seen: list[EngineEvent] = []

        def events() -> Sequence[EngineEvent]:
            seen[:] = self._events
            return seen

        try:
            looked = await self._mender.look(
                self._memory.history(), events, was_bad=self._memory.says_bad()
            )
            self._forget_events(seen, touched=looked.passed is not None)
            self._after_look(looked)
        except MonkyError as error:
            pause = self._not_recorded("what runs could not be looked after", error)
            self._agenda.set(Task.LOOK, pause)

    def _forget_events(self, seen: Sequence[EngineEvent], *, touched: bool) -> None:
        """Drop what was looked into, and what the look did itself."""
        came_meanwhile = [] if touched else list(self._events)[len(seen) :]
        kept = [] if touched else still_told(seen)
        self._events.clear()
        self._events.extend([*kept, *came_meanwhile])

    def _after_look(self, looked: Looked) -> None:
        # A pass that waits to be tried again tells the same, and knows when.
        pass_tells = self._agenda.waits(Task.PASS)
        if looked.wants_pass and self._body is not None and not pass_tells:
            self._agenda.set(Task.PASS, 0.0)
            return
        if looked.again is not None and not pass_tells:
            self._agenda.hasten(Task.LOOK, looked.again)
        passed = looked.passed
        if passed is not None and (passed.good or not pass_tells):
            self._on_outcome(self._memory.record_look(passed, looked.again))

    async def _refresh(self, body: bytes) -> None:
        """Make a pass due where OpenBao holds other values by now."""
        if self._agenda.waits(Task.PASS):
            # It reads them anyway.
            return
        self._agenda.set(Task.REFRESH, self._till_refresh())
        try:
            grant = self._grants.current()
            changed = await self._reconciler.secrets_changed(body, grant.token)
        except MonkyError as error:
            if error.reason is not self._unrefreshed:
                logger.warning("it is not known whether secrets have changed: %s", error)
            self._unrefreshed = error.reason
            return
        self._unrefreshed = None
        if changed:
            logger.info("what OpenBao holds for this environment has changed")
            self._agenda.set(Task.PASS, 0.0)

    def _not_recorded(self, what: str, error: MonkyError) -> float:
        """Say so. In how many seconds to try again."""
        logger.error("%s: %s", what, error)
        self._unrecorded += 1
        return release_delay(self._unrecorded, random.uniform)

    def _till_refresh(self) -> float:
        return jittered(self._refresh_interval, random.uniform)
