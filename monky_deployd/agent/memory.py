"""What a pass leaves behind: state and report in one transaction, and when to try again."""

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Unpack

from monky_deployd import __version__
from monky_deployd.agent.housekeeping import pulled_by
from monky_deployd.agent.journey import Passed
from monky_deployd.domain.backoff import release_delay, retry_after_delay
from monky_deployd.domain.plan import History
from monky_deployd.domain.report import Outcome, Phase, Report, Trouble, build_report
from monky_deployd.errors import FileError, MonkyError, Reason, StateError
from monky_deployd.host.journal import fields
from monky_deployd.host.releases import Releases
from monky_deployd.host.store import AgentState, StateChanges, Store

logger = logging.getLogger(__name__)

# How many heartbeats may be lost before tenancy takes the agent for dead.
_PROMISED_HEARTBEATS = 2
_PROMISE_MARGIN = 60.0
_HOLDING = {Reason.ROLLED_BACK, Reason.ROLLBACK_FAILED, Reason.STOPPED}


@dataclass(frozen=True)
class Memory:
    """The agent's memory: the store, and the releases on disk. `heartbeat` is in seconds.

    `notes` gives what every report of this moment has to say beside its outcome.
    """

    store: Store
    releases: Releases
    heartbeat: float
    notes: Callable[[], Sequence[str]] = tuple

    def history(self) -> History:
        """What the next pass has to know."""
        state = self.store.state()
        return History(
            applied_generation=state.applied_generation,
            applied_digest=state.applied_digest,
            good_release=state.good_release,
            current=self.releases.current(),
            held_release=state.held_release,
        )

    def is_decommissioned(self) -> bool:
        """Whether tenancy gave the environment up, by the last that was heard of it."""
        return self.store.state().decommissioned

    def decommission(self, gone: bool) -> None:
        """Remember that tenancy gave the environment up, or took it back: a restart is no reason
        to touch what is left of it."""
        self._keep(decommissioned=gone)

    def remember_contact(self, problem: MonkyError | None) -> None:
        """Keep why there is no contact with tenancy, and since when; None where there is."""
        before = self.store.state().contact
        if (before and before.reason) == (problem and problem.reason):
            return
        trouble = Trouble(problem.reason, str(problem), datetime.now(UTC)) if problem else None
        self._keep(contact=trouble)

    def _keep(self, **changes: Unpack[StateChanges]) -> None:
        """Keep what is good to know; that it can't be kept is only logged."""
        try:
            self.store.update(**changes)
        except StateError as error:
            logger.error("%s", error)

    def record(self, passed: Passed) -> Outcome:
        """Keep the outcome and queue its report; the outcome with its history and next try."""
        state = self.store.state()
        failures = 0 if passed.good else _failures(state, passed) + 1
        outcome = self._complete(passed, state.last_outcome, failures)
        changes = {
            "attempt": passed.digest,
            "failures": failures,
            "held_release": _held(state, passed),
        }
        if passed.good:
            changes |= {
                "applied_generation": outcome.generation,
                "applied_digest": passed.digest,
                "good_release": passed.release_id,
            }
        self.store.record(
            outcome,
            agent_version=__version__,
            next_contact_by=self.next_contact_by(),
            notes=self.notes(),
            **changes,  # type: ignore[arg-type]
        )
        _log(outcome)
        self._collect(passed, passed.release_id if passed.good else state.good_release)
        return outcome

    def says_bad(self) -> bool:
        """Whether the last outcome is that the good release is not good, as a look found."""
        state = self.store.state()
        return not state.failures and state.last_outcome is not None and not state.last_outcome.good

    def record_look(self, passed: Passed, again: float | None) -> Outcome:
        """Keep what a look at the good release came to, and queue its report; the outcome.

        Nothing of what the next pass has to know is changed by it. `again` is in how many
        seconds there is another look.
        """
        state = self.store.state()
        last, seen = state.last_outcome, passed.outcome
        if state.failures and last is not None:
            outcome = seen.beside(last)
        else:
            next_try = seen.finished_at + timedelta(seconds=again) if again is not None else None
            outcome = replace(seen.with_history(last), next_try=next_try)
        self.store.record(
            outcome,
            agent_version=__version__,
            next_contact_by=self.next_contact_by(),
            notes=self.notes(),
        )
        _log(seen)
        return outcome

    def heartbeat_report(self, report_id: str) -> Report | None:
        """A sign of life: the last outcome again, under the `seq` of the last stored report."""
        state = self.store.state()
        if state.last_outcome is None:
            return None
        last = state.last_outcome
        return build_report(
            replace(last, phase=Phase.HEARTBEAT, notes=(*last.notes, *self.notes())),
            report_id=report_id,
            seq=state.last_seq,
            agent_version=__version__,
            next_contact_by=self.next_contact_by(),
        )

    def next_contact_by(self) -> datetime:
        """By when tenancy hears of this agent again, unless it is dead or cut off."""
        seconds = self.heartbeat * _PROMISED_HEARTBEATS + _PROMISE_MARGIN
        return datetime.now(UTC) + timedelta(seconds=seconds)

    def _collect(self, passed: Passed, good: str | None) -> None:
        """Remove old releases, after failures too: their number must not grow for ever.

        The good one, the one just tried, the current one and the newest of the others stay.
        """
        if passed.release_id is None:
            return
        try:
            others = [release_id for release_id in self.releases.ids() if release_id != good]
            keep = {good or "", passed.release_id, *others[-passed.keep_releases :]}
            if going := self.releases.superfluous(keep):
                # Before they go: a crash in between must not leave their images for ever.
                images = pulled_by(self.releases, going)
                known = self.store.state().unused_images
                self.store.update(unused_images={**known, **images})
            removed = self.releases.collect(keep)
        except (FileError, StateError) as error:
            logger.warning("old releases can't be removed: %s", error)
            return
        for name in removed:
            logger.info("release %s is no longer needed and was removed", name)

    def _complete(self, passed: Passed, earlier: Outcome | None, failures: int) -> Outcome:
        outcome = passed.outcome
        if passed.held and not outcome.faults and earlier and earlier.reason in _HOLDING:
            # Nothing was tried: what led to holding stands as it was, and is not counted again.
            return replace(outcome, reason=earlier.reason, faults=earlier.faults)
        return replace(
            outcome.with_history(earlier), next_try=_next_try(passed, failures, outcome.finished_at)
        )


def _failures(state: AgentState, passed: Passed) -> int:
    """How often in a row the same manifest failed before."""
    return state.failures if state.attempt == passed.digest else 0


def _held(state: AgentState, passed: Passed) -> str | None:
    """The release to hold from now on: until another is held, or one is good."""
    if passed.held:
        return passed.release_id
    return None if passed.good else state.held_release


def _next_try(passed: Passed, failures: int, now: datetime) -> datetime | None:
    if passed.good or passed.held or not passed.retryable:
        return None
    delay = release_delay(failures, random.uniform)
    if passed.retry_after is not None:
        delay = max(delay, retry_after_delay(passed.retry_after, random.uniform))
    return now + timedelta(seconds=delay)


def _log(outcome: Outcome) -> None:
    """The outcome as one line, and before it each error as its own, with its fields."""
    for fault in outcome.faults:
        logger.error(
            "%s%s%s",
            f"{fault.service}: " if fault.service else "",
            fault.message,
            f" ({fault.hint})" if fault.hint else "",
            extra=fields(
                generation=outcome.generation,
                phase=outcome.phase,
                service=fault.service,
                image=fault.image,
                registry=fault.registry,
                error_kind=fault.kind,
                reason=outcome.reason,
            ),
        )
    for note in outcome.notes:
        logger.warning("%s", note, extra=fields(generation=outcome.generation))
    wait = f"; next try at {outcome.next_try:%H:%M:%S}Z" if outcome.next_try else ""
    logger.log(
        logging.INFO if outcome.good else logging.ERROR,
        "%s%s",
        outcome.sentence,
        wait,
        extra=fields(generation=outcome.generation, phase=outcome.phase, reason=outcome.reason),
    )
