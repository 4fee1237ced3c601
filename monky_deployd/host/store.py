"""What the agent remembers: one SQLite file with its state and the outbox of reports.

A report is stored in the same transaction as the state that it describes, so after a crash
the two never disagree. Nothing secret comes here; bodies arrive scrubbed and are not logged.
"""

import dataclasses
import json
import logging
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack

from monky_deployd.domain.report import (
    ErrorKind,
    Fault,
    Outcome,
    Phase,
    Report,
    ServiceStatus,
    Trouble,
    build_report,
)
from monky_deployd.errors import Reason
from monky_deployd.host.database import (
    open_database,
    open_for_reading,
    schema_of,
    transaction,
    translated,
)

T = TypeVar("T")

DEFAULT_OUTBOX_LIMIT = 1000

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgentState:
    """Everything that is remembered between two passes.

    `applied_generation` was applied last and found good, `applied_digest` is the digest of its
    manifest's text, `good_release` its release. `attempt` is the digest of the manifest that was
    tried last, and `failures` how often in a row that failed. `held_release` was found bad and is
    not tried again by itself. `decommissioned`: tenancy gave the environment up. `contact` is why
    there is none with tenancy. `unused_images` (reference by id) were of releases that are gone,
    and nobody looked yet whether they may go too. `last_seq`, `reports_pending` and
    `reports_dropped` describe the outbox and are kept by the store itself.
    """

    applied_generation: int | None = None
    applied_digest: str | None = None
    good_release: str | None = None
    attempt: str | None = None
    failures: int = 0
    held_release: str | None = None
    decommissioned: bool = False
    contact: Trouble | None = None
    unused_images: Mapping[str, str] = field(default_factory=dict)
    last_outcome: Outcome | None = None
    last_seq: int = 0
    reports_pending: int = 0
    reports_dropped: int = 0


class StateChanges(TypedDict, total=False):
    """The fields of `AgentState` that a caller may set; None clears one."""

    applied_generation: int | None
    applied_digest: str | None
    good_release: str | None
    attempt: str | None
    failures: int
    held_release: str | None
    decommissioned: bool
    contact: Trouble | None
    unused_images: Mapping[str, str]


class Store:
    """The database at `path`, opened for reading and writing. For one thread.

    A damaged or foreign file is renamed (and kept), and a new one begun. Raises StateError where
    the database can't be opened, or has a newer schema than this agent knows; FileError where
    it can't be made. Every method raises StateError when the database fails under it.
    """

    def __init__(self, path: Path, *, outbox_limit: int = DEFAULT_OUTBOX_LIMIT) -> None:
        self.outbox_limit = outbox_limit
        self._path = path
        self._db = open_database(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the database; the store can't be used afterwards."""
        self._db.close()

    def state(self) -> AgentState:
        """The state as it was last recorded."""
        with translated(self._path):
            return _read_state(self._db)

    def last_seq(self) -> int:
        """The `seq` of the last report that was recorded; 0 where there was none yet."""
        with translated(self._path):
            return self._counter("last_seq")

    def update(self, **changes: Unpack[StateChanges]) -> None:
        """Set the given fields of the state, and nothing else."""
        with transaction(self._db, self._path):
            self._set_changes(changes)

    def record(
        self,
        outcome: Outcome,
        *,
        agent_version: str,
        next_contact_by: datetime,
        notes: Sequence[str] = (),
        **changes: Unpack[StateChanges],
    ) -> Report:
        """Set `changes` and `last_outcome`, and put the report of `outcome` into the outbox.

        `notes` stand in this report beside the outcome's own, and are not kept with it. All of
        it happens, or nothing. Returns the report with its new `report_id` and `seq`.
        """
        with transaction(self._db, self._path):
            self._set_changes(changes)
            self._set("last_outcome", outcome)
            reported = dataclasses.replace(outcome, notes=(*outcome.notes, *notes))
            report = self._enqueue(reported, agent_version, next_contact_by)
            evicted = self._evict(newest=report.seq)
        self._log_evicted(evicted)
        return report

    def pending(self, limit: int) -> list[Report]:
        """The first `limit` reports that are still to be delivered, in order of `seq`."""
        with translated(self._path):
            rows = self._db.execute(
                "SELECT report_id, seq, body FROM outbox ORDER BY seq LIMIT ?", (limit,)
            ).fetchall()
        return [Report(report_id, seq, json.loads(body)) for report_id, seq, body in rows]

    def delivered(self, report_ids: Iterable[str]) -> None:
        """Forget the reports that tenancy has taken."""
        with transaction(self._db, self._path):
            self._delete(report_ids)

    def dropped(self, report_ids: Iterable[str], why: str) -> None:
        """Forget reports that tenancy will never take, count them, and say so as errors."""
        with transaction(self._db, self._path):
            gone = self._delete(report_ids)
            self._count_dropped(len(gone))
        for seq, report_id in gone:
            _log.error("report %s (seq %d) is dropped undelivered: %s", report_id, seq, why)

    def _set_changes(self, changes: StateChanges) -> None:
        unknown = changes.keys() - StateChanges.__annotations__.keys()
        if unknown:
            raise TypeError(f"not a field of the state that can be set: {sorted(unknown)}")
        for key, value in changes.items():
            self._set(key, value)

    def _set(self, key: str, value: object) -> None:
        self._db.execute(
            "INSERT INTO state VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
            (key, _encode(value)),
        )

    def _enqueue(self, outcome: Outcome, agent_version: str, next_contact_by: datetime) -> Report:
        # The counter is kept apart from the outbox, which may be empty.
        seq = self._counter("last_seq") + 1
        report = build_report(
            outcome,
            report_id=uuid.uuid4().hex,
            seq=seq,
            agent_version=agent_version,
            next_contact_by=next_contact_by,
        )
        self._set("last_seq", seq)
        self._db.execute(
            "INSERT INTO outbox VALUES (?, ?, ?, ?)",
            (seq, report.report_id, report.is_failure, json.dumps(report.body)),
        )
        return report

    def _evict(self, *, newest: int) -> list[tuple[int, str]]:
        """Bring the outbox back to its limit: failures go last, and the oldest goes first.

        The newest report always stays: it alone tells how the host is now.
        """
        excess = self._db.execute("SELECT count(*) FROM outbox").fetchone()[0] - self.outbox_limit
        if excess <= 0:
            return []
        rows = self._db.execute(
            "SELECT report_id FROM outbox WHERE seq <> ? ORDER BY failure, seq LIMIT ?",
            (newest, excess),
        ).fetchall()
        gone = self._delete(report_id for (report_id,) in rows)
        self._count_dropped(len(gone))
        return gone

    def _log_evicted(self, evicted: Iterable[tuple[int, str]]) -> None:
        for seq, report_id in evicted:
            _log.warning(
                "the outbox is full (%d reports): report %s (seq %d) is dropped undelivered",
                self.outbox_limit,
                report_id,
                seq,
            )

    def _delete(self, report_ids: Iterable[str]) -> list[tuple[int, str]]:
        gone: list[tuple[int, str]] = []
        for report_id in report_ids:
            gone += self._db.execute(
                "DELETE FROM outbox WHERE report_id = ? RETURNING seq, report_id", (report_id,)
            ).fetchall()
        return gone

    def _count_dropped(self, number: int) -> None:
        self._set("reports_dropped", self._counter("reports_dropped") + number)

    def _counter(self, key: str) -> int:
        row = self._db.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
        return int(row[0]) if row else 0


def read_state(path: Path) -> AgentState:
    """The state in the database at `path`, read while an agent may be writing to it.

    Changes nothing. Raises StateError where there is no database, or not a readable one.
    """
    with open_for_reading(path) as db:
        return _read_state(db) if schema_of(db, path) else AgentState()


def _read_state(db: sqlite3.Connection) -> AgentState:
    # One statement, so that a reader beside the agent sees one moment.
    rows = db.execute(
        "SELECT key, value FROM state UNION ALL "
        "SELECT 'reports_pending', CAST(count(*) AS TEXT) FROM outbox"
    )
    known = {field.name for field in dataclasses.fields(AgentState)}
    values = {key: json.loads(value) for key, value in rows if key in known}
    values["last_outcome"] = _informing(_outcome, values.get("last_outcome"))
    values["contact"] = _informing(_trouble, values.get("contact"))
    return AgentState(**values)


def _encode(value: object) -> str:
    if isinstance(value, Outcome | Trouble):
        value = dataclasses.asdict(value)
    return json.dumps(value, default=datetime.isoformat)


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _informing(decode: Callable[[Any], T], document: Mapping[str, Any] | None) -> T | None:
    if document is None:
        return None
    try:
        return decode(document)
    except (LookupError, TypeError, ValueError) as error:
        # It informs people and decides nothing: after a downgrade the agent must still start.
        _log.warning("the last outcome was recorded by another version of the agent: %s", error)
        return None


def _outcome(document: Mapping[str, Any]) -> Outcome:
    return Outcome(
        **_decoded(
            document,
            reason=Reason,
            phase=Phase,
            started_at=_moment,
            finished_at=_moment,
            next_try=_moment,
            faults=lambda faults: tuple(_fault(fault) for fault in faults),
            services=lambda services: tuple(ServiceStatus(**service) for service in services),
            notes=tuple,
        )
    )


def _trouble(document: Mapping[str, Any]) -> Trouble:
    return Trouble(**_decoded(document, reason=Reason, since=_moment))


def _fault(document: Mapping[str, Any]) -> Fault:
    return Fault(**_decoded(document, kind=ErrorKind, first_seen=_moment))


def _decoded(document: Mapping[str, Any], **decoders: Callable[[Any], object]) -> dict[str, Any]:
    decoded = {key: decode(document[key]) for key, decode in decoders.items()}
    return {**document, **decoded}
