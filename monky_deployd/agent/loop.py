"""The daemon: one task polls tenancy, one listens to the engine, one works, one sends reports.

A pass starts when the manifest or a secret changed, when a failed one is due again, and when the
config or the grant was changed under it. All tasks end together, on one path. What goes wrong in
a pass is its outcome, a fault of the agent's own too; one anywhere else ends the agent, loudly,
and the service manager starts it anew: reports and state are on disk.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine

from monky_deployd.agent.contact import Contact, Poller
from monky_deployd.agent.courier import Courier
from monky_deployd.agent.vitals import Vitals
from monky_deployd.agent.watch import Watcher
from monky_deployd.agent.worker import Worker
from monky_deployd.domain.report import Outcome
from monky_deployd.host.sdnotify import Notifier

logger = logging.getLogger(__name__)

# So many characters of an outcome leave room in STATUS for the contact, which install.sh reads.
_SHOWN = 900


class Daemon:
    """Runs poller, watcher, worker, courier and watchdog until asked to stop or to reload."""

    def __init__(
        self,
        poller: Callable[..., Poller],
        watcher: Callable[..., Watcher],
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
        self._watcher = watcher(on_event=self._worker.saw, on_listening=self._worker.look)

    async def run(self, stop: asyncio.Event, reload: asyncio.Event) -> None:
        """Run until `stop` or `reload` is set; on reload a pass under way is finished first."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._poller.run(), name="poller"),
                group.create_task(self._watcher.run(), name="watcher"),
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
        self._worker.contact(contact.problem)
        if before.problem and not contact.problem:
            self._courier.nudge()
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
