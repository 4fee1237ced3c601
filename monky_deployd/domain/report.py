"""Outcomes and reports: what one pass found, as data, and the document that tenancy gets.

PROTOCOL.md owns the wire form (`schema` 1).
"""

import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from monky_deployd.errors import ExitCode, Reason, exit_code

_NUMBER = re.compile(r"[0-9]+")


class Phase(StrEnum):
    """Where a pass was when it ended. `heartbeat` is a sign of life outside of any pass."""

    FETCH = "fetch"
    RESOLVE = "resolve"
    RENDER = "render"
    ADMIT = "admit"
    PULL = "pull"
    SWITCH = "switch"
    UP = "up"
    VERIFY = "verify"
    RECORD = "record"
    HEARTBEAT = "heartbeat"


class ErrorKind(StrEnum):
    """What sort of fault a registry, engine or Compose message is about."""

    AUTH = "auth"
    NOT_FOUND = "not-found"
    DNS = "dns"
    CONNECT = "connect"
    TLS = "tls"
    TIMEOUT = "timeout"
    RATE_LIMIT = "rate-limit"
    DISK = "disk"
    PLATFORM = "platform"
    OTHER = "other"


@dataclass(frozen=True)
class Fault:
    """One error as data. `message` is the other side's own words, with only secrets masked."""

    message: str
    kind: ErrorKind = ErrorKind.OTHER
    service: str = ""
    image: str = ""
    registry: str = ""
    hint: str = ""
    first_seen: datetime | None = None
    count: int = 1

    def as_json(self) -> dict[str, Any]:
        """The fault as it stands in a report."""
        document: dict[str, Any] = {
            "kind": self.kind.value,
            "message": self.message,
            "service": self.service,
            "image": self.image,
            "registry": self.registry,
            "count": self.count,
        }
        if self.hint:
            document["hint"] = self.hint
        if self.first_seen:
            document["first_seen"] = rfc3339(self.first_seen)
        return document


@dataclass(frozen=True)
class ServiceStatus:
    """What one service of the project looks like now, by the Engine's own account."""

    service: str
    image: str
    state: str
    health: str = ""
    restarts: int = 0
    exit_code: int | None = None
    container: str = ""
    good: bool = True

    def as_json(self) -> dict[str, Any]:
        """The service as it stands in a report."""
        return {
            "service": self.service,
            "image": self.image,
            "state": self.state,
            "health": self.health,
            "restarts": self.restarts,
            "exit_code": self.exit_code,
            "container": self.container,
            "good": self.good,
        }


@dataclass(frozen=True)
class Outcome:
    """What one pass came to: a stable reason, one sentence, and what stands behind them.

    `generation` is the manifest's; `running` is the generation whose release is `current` at
    the end (None where nothing was ever deployed). `next_try` is when the agent tries again by
    itself, None where it waits for a change.
    """

    reason: Reason
    sentence: str
    phase: Phase
    generation: int | None
    started_at: datetime
    finished_at: datetime
    faults: tuple[Fault, ...] = ()
    services: tuple[ServiceStatus, ...] = ()
    notes: tuple[str, ...] = ()
    running: int | None = None
    release: str = ""
    next_try: datetime | None = None

    @property
    def exit_code(self) -> ExitCode:
        """What `monky-deployd once` exits with after this outcome."""
        return exit_code(self.reason)

    @property
    def good(self) -> bool:
        """Whether the host matches the manifest."""
        return self.exit_code is ExitCode.CONVERGED

    def with_history(self, earlier: "Outcome | None") -> "Outcome":
        """The same outcome, its faults carrying first_seen and count over from `earlier`.

        A fault is the same if service, image, kind and message are. Numbers in the message
        don't count: a local port or a count of restarts differs from one try to the next.
        """
        known = {_identity(fault): fault for fault in earlier.faults} if earlier else {}
        return replace(self, faults=tuple(_carry(f, known, self.finished_at) for f in self.faults))

    def beside(self, failure: "Outcome") -> "Outcome":
        """This outcome told with an earlier `failure` that still waits to be tried again.

        An error outlives its back-off: reason, errors and next try stay those of the failure.
        """
        return replace(
            failure,
            started_at=self.started_at,
            finished_at=self.finished_at,
            services=self.services,
            notes=(*self.notes, self.sentence),
            running=self.running,
        )

    def as_json(self) -> dict[str, Any]:
        """The outcome for `once --json` and, with the envelope of `report()`, for tenancy."""
        return {
            "generation": self.generation,
            "phase": self.phase.value,
            "outcome": self.reason.value,
            "message": self.sentence,
            "started_at": rfc3339(self.started_at),
            "finished_at": rfc3339(self.finished_at),
            "errors": [fault.as_json() for fault in self.faults],
            "services": [status.as_json() for status in self.services],
            "notes": list(self.notes),
            "running_generation": self.running,
            "next_try": rfc3339(self.next_try) if self.next_try else None,
        }


def _identity(fault: Fault) -> tuple[str, str, str, str]:
    return (fault.service, fault.image, fault.kind, _NUMBER.sub("0", fault.message))


def _carry(fault: Fault, known: dict[tuple[str, str, str, str], Fault], now: datetime) -> Fault:
    before = known.get(_identity(fault))
    if before is None:
        return replace(fault, first_seen=now, count=1)
    return replace(fault, first_seen=before.first_seen or now, count=before.count + 1)


@dataclass(frozen=True)
class Trouble:
    """Why tenancy can't be reached or refuses, and since when."""

    reason: Reason
    sentence: str
    since: datetime

    def as_json(self) -> dict[str, Any]:
        """The trouble for `status --json`."""
        return {
            "reason": self.reason.value,
            "message": self.sentence,
            "since": rfc3339(self.since),
        }


@dataclass(frozen=True)
class Report:
    """One report as it is stored in the outbox and sent: `body` is the whole JSON document."""

    report_id: str
    seq: int
    body: dict[str, Any] = field(repr=False)

    @property
    def is_failure(self) -> bool:
        """Whether the report tells of a failure: those leave a full outbox last."""
        return bool(self.body.get("errors")) or self.body.get("outcome") not in (
            Reason.CONVERGED.value,
            Reason.UP_TO_DATE.value,
        )


def build_report(
    outcome: Outcome, *, report_id: str, seq: int, agent_version: str, next_contact_by: datetime
) -> Report:
    """The report of `outcome`. `next_contact_by` is the agent's promise to be heard again."""
    body = {
        "report_id": report_id,
        "seq": seq,
        **outcome.as_json(),
        "agent_version": agent_version,
        "next_contact_by": rfc3339(next_contact_by),
    }
    return Report(report_id=report_id, seq=seq, body=body)


def rfc3339(moment: datetime) -> str:
    """`moment` in UTC as RFC 3339 with milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
