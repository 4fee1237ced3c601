"""Listening to the engine: what happens to containers, and what was missed meanwhile."""

import asyncio
import logging
import random
from collections.abc import Callable

from monky_deployd.clients.engine import EngineClient
from monky_deployd.domain.backoff import contact_delay
from monky_deployd.domain.drift import EngineEvent
from monky_deployd.errors import EngineError, Reason
from monky_deployd.host.journal import fields

logger = logging.getLogger(__name__)

_LONGEST_PAUSE = 30.0


class Watcher:
    """Listens for ever. `on_event` gets each event that matters; `on_listening` is told whenever
    it begins to listen: what happened before may have been missed."""

    def __init__(
        self,
        engine: EngineClient,
        *,
        on_event: Callable[[EngineEvent], None],
        on_listening: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._on_event = on_event
        self._on_listening = on_listening
        self._failures = 0

    async def run(self) -> None:
        """Listen until cancelled."""
        while True:
            try:
                await self._listen()
                self._lost("the Docker Engine ended its stream of events")
            except EngineError as error:
                self._lost(str(error))
            self._failures += 1
            pause = contact_delay(self._failures, random.uniform)
            await asyncio.sleep(min(pause, _LONGEST_PAUSE))

    async def _listen(self) -> None:
        async for event in self._engine.events():
            if event is None:
                if self._failures:
                    logger.info("listening to the Docker Engine again")
                self._failures = 0
                self._on_listening()
            elif event.matters:
                self._on_event(event)

    def _lost(self, why: str) -> None:
        if not self._failures:
            logger.warning(
                "%s; what happens meanwhile is looked for afterwards",
                why,
                extra=fields(reason=Reason.ENGINE_UNREACHABLE),
            )
