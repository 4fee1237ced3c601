"""Where a pass is, what it knows so far, and the outcome that it comes to."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from monky_deployd.domain import sentences
from monky_deployd.domain.report import ErrorKind, Fault, Outcome, Phase, ServiceStatus
from monky_deployd.domain.secret import Scrubber
from monky_deployd.errors import FileError, MonkyError, PolicyError, Reason
from monky_deployd.host.journal import fields
from monky_deployd.host.releases import Releases

logger = logging.getLogger(__name__)

OnPhase = Callable[[Phase], None]


@dataclass(frozen=True)
class Passed:
    """The outcome of a pass, and what it means for the agent's memory.

    `good`: `release_id` was verified, from the manifest with `digest`. `held`: it was found bad
    and taken away again, so it is not tried again by itself. `retryable`: trying again unchanged
    can help; `retry_after` is how many seconds the other side wants to be left alone.
    `keep_releases` is how many releases the manifest wants kept beside the good one.
    """

    outcome: Outcome
    release_id: str | None = None
    digest: str = ""
    good: bool = False
    held: bool = False
    retryable: bool = True
    retry_after: float | None = None
    keep_releases: int = 1


@dataclass
class Journey:
    """One pass under way. Its methods make the `Passed` for each way in which it can end.

    Whatever leaves it is scrubbed of secrets, the engine's words too. `stopped`: the current
    release was found bad, and its containers were stopped.
    """

    releases: Releases
    digest: str
    scrubber: Scrubber
    on_phase: OnPhase | None = None
    stopped: bool = False
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    phase: Phase = Phase.FETCH
    generation: int = 0
    release_id: str | None = None
    keep_releases: int = 1
    notes: tuple[str, ...] = ()

    def enter(self, phase: Phase) -> None:
        """Note that `phase` begins, and tell whoever watches."""
        self.phase = phase
        if phase is Phase.SWITCH:
            self.stopped = False
        logger.debug("phase %s", phase, extra=fields(generation=self.generation, phase=phase))
        if self.on_phase is not None:
            self.on_phase(phase)

    def scrub(self, text: str) -> str:
        """`text` without secrets, and while a release is admitted without parts of them either:
        what is refused is then a piece of a value that Compose cut up."""
        if self.phase is Phase.ADMIT:
            return self.scrubber.scrub_fragments(text)
        return self.scrubber.scrub(text)

    def running(self) -> int | None:
        """The generation that runs: whose release is current, None where that was stopped."""
        try:
            current = self.releases.current()
        except FileError as error:
            logger.warning("%s", error)
            return None
        return generation_of(current) if current and not self.stopped else None

    def converged(self, statuses: tuple[ServiceStatus, ...]) -> Passed:
        """The release was brought up and is good."""
        self.enter(Phase.RECORD)
        return self._good(
            Reason.CONVERGED, sentences.converged(self.generation, statuses), statuses
        )

    def up_to_date(self, statuses: tuple[ServiceStatus, ...]) -> Passed:
        """The release runs already and is good."""
        self.enter(Phase.RECORD)
        return self._good(Reason.UP_TO_DATE, sentences.up_to_date(self.generation), statuses)

    def mended(self, statuses: tuple[ServiceStatus, ...]) -> Passed:
        """The good release was brought up again, as it was."""
        self.enter(Phase.RECORD)
        return self._good(Reason.CONVERGED, sentences.mended(self.generation, statuses), statuses)

    def pull_failed(self, faults: tuple[Fault, ...]) -> Passed:
        """Images are missing; nothing was touched."""
        sentence = sentences.pull_failed(self.generation, faults, self.running())
        return self.bad(Reason.PULL_FAILED, sentence, faults)

    def held(self, statuses: tuple[ServiceStatus, ...]) -> Passed:
        """The release was found bad earlier and is not tried again."""
        sentence = sentences.held(self.generation, self.running())
        reason = Reason.STOPPED if self.stopped else Reason.ROLLED_BACK
        return self.bad(reason, sentence, (), statuses, held=True)

    def failed(self, error: MonkyError) -> Passed:
        """A phase could not be done."""
        sentence = sentences.failed(str(error), self.running())
        passed = self.bad(error.reason, sentence, _faults(error))
        return replace(passed, retryable=error.retryable, retry_after=error.retry_after)

    def bad(
        self,
        reason: Reason,
        sentence: str,
        faults: tuple[Fault, ...],
        statuses: tuple[ServiceStatus, ...] = (),
        *,
        phase: Phase | None = None,
        held: bool = False,
    ) -> Passed:
        """Any end that is not good. `phase` is given where it isn't the one now entered."""
        outcome = self._outcome(reason, sentence, phase or self.phase, faults, statuses)
        return Passed(
            outcome, self.release_id, self.digest, held=held, keep_releases=self.keep_releases
        )

    def _good(self, reason: Reason, sentence: str, statuses: tuple[ServiceStatus, ...]) -> Passed:
        outcome = self._outcome(reason, sentence, self.phase, (), statuses)
        return Passed(
            outcome, self.release_id, self.digest, good=True, keep_releases=self.keep_releases
        )

    def _outcome(
        self,
        reason: Reason,
        sentence: str,
        phase: Phase,
        faults: tuple[Fault, ...],
        statuses: tuple[ServiceStatus, ...],
    ) -> Outcome:
        return Outcome(
            reason=reason,
            sentence=self.scrub(sentence),
            phase=phase,
            generation=self.generation or None,
            started_at=self.started_at,
            finished_at=datetime.now(UTC),
            faults=tuple(self._scrubbed(fault) for fault in faults),
            services=tuple(replace(s, image=self.scrub(s.image)) for s in statuses),
            notes=self.notes,
            running=self.running(),
            release=self.release_id or "",
        )

    def _scrubbed(self, fault: Fault) -> Fault:
        # An image's name may hold a value too, where a compose file says so.
        return replace(
            fault,
            message=self.scrub(fault.message),
            image=self.scrub(fault.image),
            registry=self.scrub(fault.registry),
            hint=self.scrub(fault.hint),
        )


def _faults(error: MonkyError) -> tuple[Fault, ...]:
    """One fault for an error; for a refusal by the policy one for each thing that it refuses."""
    if isinstance(error, PolicyError):
        return tuple(
            Fault(message, service=service, hint=remedy)
            for service, message, remedy in error.refusals
        )
    kind = ErrorKind.DISK if error.reason is Reason.DISK else ErrorKind.OTHER
    return (Fault(str(error), kind),)


def generation_of(release_id: str) -> int:
    """The generation in a release's id."""
    return int(release_id.split("-", 1)[0])


def internal(error: Exception) -> MonkyError:
    """A fault of the agent's own, as an error that can be reported."""
    return MonkyError(
        f"a fault of the agent's own: {type(error).__name__}: {error}",
        remedy="please report it, with the journal",
    )
