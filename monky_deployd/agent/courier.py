"""Empties the outbox: in order, each report until tenancy has it; and the sign of life."""

import asyncio
import contextlib
import logging
import random
import time
import uuid
from collections.abc import Callable
from typing import Any

from monky_deployd.agent.contact import pause_after
from monky_deployd.agent.memory import Memory
from monky_deployd.clients.tenancy import ReportsRejected, TenancyClient
from monky_deployd.domain.report import Report
from monky_deployd.domain.secret import Secret
from monky_deployd.errors import MonkyError, Reason
from monky_deployd.host.journal import fields

logger = logging.getLogger(__name__)

_BATCH = 20
# So much sooner may a heartbeat come, so that a fleet's don't come in step; later never.
_SOONEST_HEARTBEAT = 0.9


class Courier:
    """Sends reports. `token` gives the grant of the moment."""

    def __init__(
        self, memory: Memory, tenancy: TenancyClient, token: Callable[[], Secret], heartbeat: float
    ) -> None:
        self._memory = memory
        self._tenancy = tenancy
        self._token = token
        self._heartbeat = heartbeat
        self._nudged = asyncio.Event()
        self._trouble: Reason | None = None

    def nudge(self) -> None:
        """There is a new report, or tenancy may be reachable again."""
        self._nudged.set()

    async def run(self) -> None:
        """Send what there is, then wait for more or for the next sign of life. Never ends."""
        failures = 0
        due = self._next_heartbeat()
        while True:
            self._nudged.clear()
            try:
                sent = await self.deliver()
                if not sent and time.monotonic() >= due:
                    await self._send_heartbeat()
                    # Also where there was nothing to say yet: else it would be due for ever.
                    sent = True
            except MonkyError as error:
                failures += 1
                self._note(error)
                await self._wait(pause_after(error, failures), asked_to=bool(error.retry_after))
            else:
                failures = 0
                self._note(None)
                due = self._next_heartbeat() if sent else due
                await self._wait(max(0.0, due - time.monotonic()))

    def _next_heartbeat(self) -> float:
        """When the next is due, by the monotonic clock."""
        return time.monotonic() + self._heartbeat * random.uniform(_SOONEST_HEARTBEAT, 1)

    async def _wait(self, seconds: float, *, asked_to: bool = False) -> None:
        """Wait for a nudge, at most `seconds`; all of them where tenancy asked for that."""
        if asked_to:
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._nudged.wait()

    def _note(self, error: MonkyError | None) -> None:
        """Log that reports wait, once for each reason, and that they don't any more."""
        before, self._trouble = self._trouble, error.reason if error else None
        if self._trouble is before:
            return
        if error is None:
            logger.info("reports reach tenancy again")
        else:
            logger.warning(
                "reports wait in the outbox: %s", error, extra=fields(reason=error.reason)
            )

    async def deliver(self) -> bool:
        """Send everything that waits, oldest first. Whether anything was sent.

        Raises TenancyError or GrantError; what was not taken stays in the outbox.
        """
        sent = False
        while batch := self._memory.store.pending(_BATCH):
            await self._deliver_batch(batch)
            sent = True
        return sent

    async def _deliver_batch(self, batch: list[Report]) -> None:
        try:
            await self._send([report.body for report in batch])
        except ReportsRejected as error:
            if len(batch) > 1:
                # One of them can never succeed; the others must not be lost with it.
                for report in batch:
                    await self._deliver_batch([report])
                return
            self._memory.store.dropped([batch[0].report_id], str(error))
            return
        self._memory.store.delivered([report.report_id for report in batch])

    async def _send_heartbeat(self) -> None:
        report = self._memory.heartbeat_report(uuid.uuid4().hex)
        if report is None:
            return
        try:
            await self._send([report.body])
        except ReportsRejected as error:
            logger.error("tenancy does not take this agent's heartbeat: %s", error)

    async def _send(self, bodies: list[dict[str, Any]]) -> None:
        await self._tenancy.send_reports(self._token(), bodies)
