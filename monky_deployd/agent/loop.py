"""The daemon: when to make a pass. One task polls, one works, one sends reports.

A pass starts when the manifest changed, when a failed one is due again, and when the config or
the grant was changed under it. All tasks end together, on one path. What goes wrong in a pass is
its outcome, a fault of the agent's own too; one anywhere else ends the agent, loudly, and the
service manager starts it anew: reports and state are on disk.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Coroutine

from monky_deployd.agent.contact import Contact, Poller
from monky_deployd.agent.courier import Courier
from monky_deployd.agent.grants import GrantKeeper
from monky_deployd.agent.memory import Memory
from monky_deployd.agent.reconcile import Reconciler
from monky_deployd.domain.backoff import release_delay
from monky_deployd.domain.report import Outcome
from monky_deployd.errors import MonkyError
from monky_deployd.host.sdnotify import Notifier

logger = logging.getLogger(__name__)

# So many characters of an outcome leave room in STATUS for the contact, which install.sh reads.
_SHOWN = 900


class Vitals:
    """Promises of the tasks to be heard again. The watchdog is fed only while all are kept."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}

    def promise(self, task: str, seconds: float) -> None:
        """`task` will make its next promise within `seconds`."""
        self._due[task] = time.monotonic() + seconds

    def overdue(self) -> list[str]:
        """The tasks that did not keep their promise."""
        now = time.monotonic()
        return [task for task, due in self._due.items() if due <= now]


class Worker:
    """Makes the passes, one at a time, and remembers each.

    `on_outcome` gets what each came to. `forced`: a held release is tried again, until a pass
    got so far. `longest_pass` is how many seconds one may take before the watchdog is alarmed.
    """

    def __init__(
        self,
        reconciler: Reconciler,
        memory: Memory,
        grants: GrantKeeper,
        *,
        on_outcome: Callable[[Outcome], None],
        vitals: Vitals,
        longest_pass: float,
        forced: bool = False,
    ) -> None:
        self._reconciler = reconciler
        self._memory = memory
        self._grants = grants
        self._on_outcome = on_outcome
        self._vitals = vitals
        self._forced = forced
        self._longest_pass = longest_pass
        self._body: bytes | None = None
        self._unrecorded = 0
        self._next_try: float | None = None
        self._decommissioned = False
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def manifest(self, body: bytes) -> None:
        """There is a new manifest: reconcile at once."""
        self._body = body
        self._wake.set()

    def retry(self) -> None:
        """What made the last pass fail may be gone: where another try waits, it is due now."""
        if self._next_try is not None:
            self._wake.set()

    def decommissioned(self, gone: bool) -> None:
        """Tenancy gave the environment up: no pass begins any more, and one under way is
        finished. Or it took it back: what was missed meanwhile is made up for at once."""
        if self._decommissioned and not gone:
            self._wake.set()
        self._decommissioned = gone

    async def finished(self) -> None:
        """Wait until no pass is under way."""
        await self._idle.wait()

    async def run(self) -> None:
        """Make passes until cancelled."""
        while True:
            await self._due()
            if self._body is None or self._decommissioned:
                continue
            self._idle.clear()
            try:
                await self._pass(self._body)
            finally:
                self._idle.set()

    async def _due(self) -> None:
        self._vitals.promise("worker", float("inf"))
        delay = None if self._next_try is None else max(0.0, self._next_try - time.monotonic())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._wake.wait()
        self._wake.clear()
        self._next_try = None

    async def _pass(self, body: bytes) -> None:
        self._vitals.promise("worker", self._longest_pass)
        try:
            grant = self._grants.current()
            passed = await self._reconciler.run(
                body, grant.token, self._memory.history(), forced=self._forced
            )
            outcome = self._memory.record(passed)
        except MonkyError as error:
            # What a pass finds wrong is an outcome; this is a grant that is gone, or a state that
            # can't be read or written, so that there is nowhere to keep an outcome.
            logger.error("the pass could not be made or recorded: %s", error)
            self._unrecorded += 1
            self._try_again_in(release_delay(self._unrecorded, random.uniform))
            return
        self._unrecorded = 0
        if outcome.next_try is None:
            self._forced = False
        else:
            # Both are of one clock, which may jump at any time after.
            self._try_again_in((outcome.next_try - outcome.finished_at).total_seconds())
        self._on_outcome(outcome)

    def _try_again_in(self, seconds: float) -> None:
        self._next_try = time.monotonic() + seconds


class Daemon:
    """Runs poller, worker, courier and watchdog until asked to stop or to reload."""

    def __init__(
        self,
        poller: Callable[..., Poller],
        worker: Callable[..., Worker],
        courier: Courier,
        notifier: Notifier,
        watchdog: float | None,
    ) -> None:
        self._vitals = Vitals()
        self._courier = courier
        self._notifier = notifier
        self._watchdog_interval = watchdog
        self._outcome = ""
        self._contact: Contact | None = None
        self._worker = worker(on_outcome=self._on_outcome, vitals=self._vitals)
        self._poller = poller(
            on_manifest=self._worker.manifest,
            on_contact=self._on_contact,
            expect=lambda seconds: self._vitals.promise("poller", seconds),
        )

    async def run(self, stop: asyncio.Event, reload: asyncio.Event) -> None:
        """Run until `stop` or `reload` is set; on reload a pass under way is finished first."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._poller.run(), name="poller"),
                group.create_task(self._worker.run(), name="worker"),
                group.create_task(self._courier.run(), name="courier"),
                group.create_task(self._feed_watchdog(), name="watchdog"),
            ]
            if not stop.is_set():
                self._notifier.ready()
            self._show_status()
            await _first(stop.wait(), self._reload_when_idle(reload))
            for task in tasks:
                task.cancel()

    async def _reload_when_idle(self, reload: asyncio.Event) -> None:
        await reload.wait()
        await self._worker.finished()

    async def _feed_watchdog(self) -> None:
        while self._watchdog_interval is not None:
            if overdue := self._vitals.overdue():
                logger.error("not heard of for too long: %s", ", ".join(overdue))
            else:
                self._notifier.watchdog()
            await asyncio.sleep(self._watchdog_interval)

    def _on_outcome(self, outcome: Outcome) -> None:
        wait = f"; next try at {outcome.next_try:%H:%M:%S}Z" if outcome.next_try else ""
        self._outcome = _shortened(outcome.sentence) + wait
        self._show_status()
        self._courier.nudge()

    def _on_contact(self, contact: Contact) -> None:
        before, self._contact = self._contact or contact, contact
        if before.problem and not contact.problem:
            self._courier.nudge()
        if before.grant != contact.grant:
            self._worker.retry()
        if contact.decommissioned or not contact.problem:
            # Any other problem says nothing about it: 410 holds until there is a manifest again.
            self._worker.decommissioned(contact.decommissioned)
        self._show_status()

    def _show_status(self) -> None:
        contact = self._contact.sentence if self._contact else "waiting for tenancy"
        self._notifier.status(f"{self._outcome} | {contact}" if self._outcome else contact)


def _shortened(sentence: str) -> str:
    return sentence if len(sentence) <= _SHOWN else f"{sentence[:_SHOWN]}…"


async def _first(*coroutines: Coroutine[object, object, object]) -> None:
    """Wait for the first of these to end, and cancel the others."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
