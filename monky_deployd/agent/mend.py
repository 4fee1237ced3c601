"""Drift: what happened to the good release's containers is seen, put right, and told.

Nothing is needed for it but the release on disk and the engine, so the same brings it up at the
start of the agent, with tenancy and OpenBao out of reach.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from monky_deployd.agent.journey import Journey, Passed, generation_of, internal
from monky_deployd.agent.recovery import keep
from monky_deployd.agent.restore import OnDisk, Restorer
from monky_deployd.agent.rollout import RolloutResult, rollout_of
from monky_deployd.agent.tools import Tools
from monky_deployd.domain.backoff import release_delay
from monky_deployd.domain.drift import (
    EngineEvent,
    as_stopped,
    changed_services,
    drift_notes,
    of_project,
    pause_before_repair,
)
from monky_deployd.domain.plan import History
from monky_deployd.domain.report import Phase
from monky_deployd.domain.verify import Container, Verdict, judge, settled
from monky_deployd.errors import MonkyError

logger = logging.getLogger(__name__)

# What is found bad by one look alone may only be on its way: a container that starts again.
_LOOKS_BEFORE_TOLD = 2
_REPAIRS_REMEMBERED = 32
_TOLD_WITHIN = 0.2


@dataclass(frozen=True)
class Looked:
    """What a look at the good release came to.

    `passed` is what there is to be recorded, None where nothing is. `again` is in how many
    seconds to look again, None where only an event is a reason to. `wants_pass`: the release
    can't be put right from disk; a whole pass, which pulls what is missing, may do it.
    """

    passed: Passed | None = None
    again: float | None = None
    wants_pass: bool = False


@dataclass(frozen=True)
class _Found:
    """What the engine told of the project, its containers, and what is to be said of them."""

    events: Sequence[EngineEvent]
    containers: Sequence[Container]
    verdict: Verdict


class Mender:
    """Looks after the good release between passes."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._known: OnDisk | None = None
        # Those of the project at the last look; None where there may be others by now.
        self._container_ids: frozenset[str] | None = None
        self._bad_looks = 0
        self._repairs: deque[float] = deque(maxlen=_REPAIRS_REMEMBERED)

    def forget(self) -> None:
        """A pass was made: what is known of the release on disk may be out of date."""
        self._known = None
        self._container_ids = None

    def concerns(self, event: EngineEvent) -> bool:
        """Whether the event may be of the good release's project. Costs nothing."""
        if event.network:
            return self._container_ids is None or event.container in self._container_ids
        return self._known is None or event.project == self._known.release.project

    async def look(
        self, history: History, events: Callable[[], Sequence[EngineEvent]], *, was_bad: bool
    ) -> Looked:
        """Look once, and put right what can be put right from disk.

        `events` gives what the engine told since the last look. `was_bad`: the last outcome was
        that the good release isn't good, so that it is worth telling when it is again.
        """
        release_id = history.good_release
        if release_id is None or release_id != history.current:
            return Looked()
        if release_id == history.held_release:
            return Looked()
        journey = self._journey(release_id, history)
        restorer = Restorer(self._tools, rollout_of(self._tools, journey.enter))
        try:
            known = await self._load(restorer, release_id)
            found = await self._find(known, events())
            if found.verdict.mendable and not found.events:
                # The engine does a thing before it tells of it: who did it comes a moment later.
                await asyncio.sleep(_TOLD_WITHIN)
                found = await self._find(known, events())
            return await self._mend(journey, restorer, known, found, was_bad=was_bad)
        except MonkyError as error:
            self.forget()
            return self._bad(journey.failed(error))
        except Exception as error:
            # As in a pass: it ends this look, not the agent, and the journal has where it was.
            logger.exception("a fault of the agent's own")
            self.forget()
            return self._bad(journey.failed(internal(error)))

    def _journey(self, release_id: str, history: History) -> Journey:
        return Journey(
            self._tools.releases,
            history.applied_digest or "",
            self._tools.scrubber,
            self._tools.on_phase,
            phase=Phase.VERIFY,
            generation=generation_of(release_id),
            release_id=release_id,
        )

    async def _load(self, restorer: Restorer, release_id: str) -> OnDisk:
        """The release, read only when it is not known yet: an event then costs no process."""
        if self._known is None or self._known.release.release_id != release_id:
            self._known = await restorer.load(release_id)
        return self._known

    async def _find(self, known: OnDisk, events: Sequence[EngineEvent]) -> _Found:
        project = known.release.project
        seen = await self._tools.engine.containers(project)
        self._container_ids = frozenset(container.id for container in seen)
        mine = of_project(project, events, seen)
        containers = as_stopped(seen, mine)
        verdict = judge(known.expected, {}, containers, containers, known.images)
        return _Found(mine, containers, verdict)

    async def _mend(
        self,
        journey: Journey,
        restorer: Restorer,
        known: OnDisk,
        found: _Found,
        *,
        was_bad: bool,
    ) -> Looked:
        events, containers, verdict = found.events, found.containers, found.verdict
        wanted = {item.service for item in known.expected}
        anew = [service for service in changed_services(events) if service in wanted]
        if not verdict.faults and not anew:
            self._bad_looks = 0
            return Looked(journey.up_to_date(verdict.statuses) if was_bad else None)
        if not verdict.mendable and not anew:
            if not settled(known.expected, containers):
                return Looked(again=release_delay(1, random.uniform))
            return self._bad(_ill(journey, verdict))
        by_hand = any(event.by_hand for event in events)
        pause = 0.0 if by_hand else pause_before_repair(self._repairs, time.monotonic())
        if pause:
            return self._bad(_ill(journey, verdict), again=pause)
        if not by_hand:
            self._repairs.append(time.monotonic())
        journey.notes = drift_notes(events) or tuple(
            f"drift: {fault.service}: {fault.message}" for fault in verdict.faults
        )
        return await self._put_right(journey, restorer, known, containers, anew)

    async def _put_right(
        self,
        journey: Journey,
        restorer: Restorer,
        known: OnDisk,
        containers: Sequence[Container],
        anew: Sequence[str],
    ) -> Looked:
        logger.info("generation %s is brought up again from disk", journey.generation)
        for container in containers:
            # Compose can't start what is paused.
            if container.state == "paused":
                await self._tools.engine.unpause(container.id)
        result = await restorer.repair(known, anew=anew)
        self._container_ids = None
        if not result.good:
            self.forget()
            told = keep(journey, result, "it is brought up again as soon as that can help")
            return self._bad(told, at_once=True, wants_pass=True)
        self._bad_looks = 0
        return Looked(journey.mended(result.statuses))

    def _bad(
        self,
        passed: Passed,
        *,
        again: float | None = None,
        at_once: bool = False,
        wants_pass: bool = False,
    ) -> Looked:
        self._bad_looks += 1
        again = again or release_delay(self._bad_looks, random.uniform)
        told = at_once or self._bad_looks >= _LOOKS_BEFORE_TOLD
        return Looked(passed if told else None, again, wants_pass)


def _ill(journey: Journey, verdict: Verdict) -> Passed:
    """What runs is not good, and bringing it up again would not help, or not yet."""
    result = RolloutResult(Phase.VERIFY, verdict.faults, verdict.statuses)
    return keep(journey, result, "it is left to its restart policy, and looked at again")
