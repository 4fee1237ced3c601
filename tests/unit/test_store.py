"""The store: state and outbox in one file, through crashes, damage and other versions."""

import contextlib
import logging
import os
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from monky_deployd.domain.report import (
    ErrorKind,
    Fault,
    Outcome,
    Phase,
    Report,
    ServiceStatus,
)
from monky_deployd.errors import Reason, StateError
from monky_deployd.host import database
from monky_deployd.host.store import AgentState, StateChanges, Store, read_state

NOW = datetime(2026, 12, 1, 3, 0, 0, 123456, tzinfo=UTC)


def outcome(reason: Reason = Reason.CONVERGED, **fields: Any) -> Outcome:
    return Outcome(
        reason=reason,
        sentence=fields.pop("sentence", "as it is"),
        phase=Phase.VERIFY,
        generation=fields.pop("generation", 7),
        started_at=NOW,
        finished_at=NOW + timedelta(seconds=3),
        **fields,
    )


GOOD = outcome()
BAD = outcome(Reason.PULL_FAILED)


def record(store: Store, what: Outcome = GOOD, **changes: Any) -> Report:
    return store.record(what, agent_version="1.0", next_contact_by=NOW, **changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store(path) as opened:
        yield opened


def seqs(store: Store) -> list[int]:
    return [report.seq for report in store.pending(1000)]


@contextlib.contextmanager
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    """The database as another program sees it."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        yield db


# --- state


def test_a_new_store_remembers_nothing(store: Store) -> None:
    assert store.state() == AgentState()
    assert store.pending(10) == []
    assert store.last_seq() == 0


def test_the_state_survives_a_restart(path: Path) -> None:
    changes = StateChanges(
        applied_generation=7,
        applied_digest="sha256:ab",
        good_release="7-ab",
        attempt="digest-8",
        failures=3,
        held_release="8-cd",
    )
    with Store(path) as store:
        store.update(**changes)
    with Store(path) as store:
        assert store.state() == AgentState(**changes)


def test_an_update_leaves_the_other_fields_and_none_clears_one(store: Store) -> None:
    store.update(held_release="7-ab", failures=2, attempt="digest-7")
    store.update(held_release=None, attempt=None)
    assert store.state() == AgentState(failures=2)


@pytest.mark.parametrize("field", ["last_outcome", "last_seq", "reports_dropped", "failure"])
def test_only_the_agents_own_fields_can_be_set(store: Store, field: str) -> None:
    with pytest.raises(TypeError, match=field):
        store.update(**{field: 1})  # type: ignore[arg-type]
    assert store.state() == AgentState()


def test_the_last_outcome_comes_back_whole(path: Path) -> None:
    whole = outcome(
        Reason.PULL_FAILED,
        sentence='denied: "robot$p+n"\n拒否 \udc80',
        generation=None,
        faults=(
            Fault("denied", ErrorKind.AUTH, "web", "h/p/web:1", "h", "see", NOW, 4),
            Fault("no such host"),
        ),
        services=(ServiceStatus("web", "h/p/web:1", "exited", "none", 2, 137, "c1", False),),
        notes=("the grant expires soon",),
        running=6,
        release="7-ab",
        next_try=NOW,
    )
    with Store(path) as store:
        record(store, whole)
    with Store(path) as store:
        assert store.state().last_outcome == whole


def test_an_outcome_in_the_words_of_a_newer_agent_does_not_stop_an_older_one(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Store(path) as store:
        record(store, failures=2)
    with raw(path) as db:
        db.execute("UPDATE state SET value = replace(value, 'converged', 'from-the-future')")

    with Store(path) as store:
        assert store.state().last_outcome is None
        assert store.state().failures == 2
    assert "another version" in caplog.text


def test_a_key_of_a_newer_agent_is_left_alone(path: Path) -> None:
    with Store(path) as store:
        store.update(failures=2)
    with raw(path) as db:
        db.execute("INSERT INTO state VALUES ('from_the_future', '1')")
    with Store(path) as store:
        assert store.state() == AgentState(failures=2)


# --- reports


def test_a_record_sets_the_state_and_enqueues_its_report(store: Store) -> None:
    report = record(store, BAD, failures=1)

    state = store.state()
    assert state.last_outcome == BAD
    assert state.failures == 1
    assert (state.last_seq, state.reports_pending) == (1, 1)
    assert store.pending(10) == [report]
    assert report.body["seq"] == 1
    assert report.body["report_id"] == report.report_id
    assert report.body["outcome"] == "pull-failed"
    assert report.body["agent_version"] == "1.0"
    assert report.body["next_contact_by"] == "2026-12-01T03:00:00.123Z"


def test_each_report_has_an_identity_of_its_own(store: Store) -> None:
    ids = {record(store).report_id for _ in range(5)}
    assert len(ids) == 5
    assert all(len(report_id) == 32 for report_id in ids)


def test_reports_are_pending_in_order_and_in_batches(store: Store) -> None:
    for _ in range(5):
        record(store)
    assert [report.seq for report in store.pending(3)] == [1, 2, 3]


def test_delivered_reports_are_forgotten_and_the_others_stay(store: Store) -> None:
    reports = [record(store) for _ in range(4)]
    store.delivered([reports[0].report_id, reports[2].report_id, "unknown"])
    assert seqs(store) == [2, 4]
    assert store.state().reports_dropped == 0


def test_a_number_is_never_given_twice(path: Path) -> None:
    with Store(path) as store:
        reports = [record(store) for _ in range(3)]
        store.delivered(report.report_id for report in reports)
        assert record(store).seq == 4
        store.dropped([store.pending(1)[0].report_id], "refused")
    with Store(path, outbox_limit=1) as store:
        assert store.last_seq() == 4
        assert [record(store).seq for _ in range(3)] == [5, 6, 7]
        assert store.last_seq() == 7


def test_reports_that_tenancy_refuses_are_dropped_loudly(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = record(store, outcome(sentence="not for the log")), record(store)
    store.dropped([first.report_id, "unknown"], "tenancy answered 422")

    assert store.pending(10) == [second]
    assert store.state().reports_dropped == 1
    errors = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.ERROR]
    assert len(errors) == 1
    assert first.report_id in errors[0]
    assert "tenancy answered 422" in errors[0]
    assert "not for the log" not in caplog.text


def test_a_full_outbox_drops_its_oldest_report_and_says_which(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Store(path, outbox_limit=3) as store:
        reports = [record(store) for _ in range(5)]

        assert seqs(store) == [3, 4, 5]
        assert store.state().reports_dropped == 2
        assert store.state().reports_pending == 3
    warnings = [entry.getMessage() for entry in caplog.records]
    assert [entry.levelno for entry in caplog.records] == [logging.WARNING] * 2
    assert reports[0].report_id in warnings[0]
    assert reports[1].report_id in warnings[1]


def test_failures_leave_a_full_outbox_last(path: Path) -> None:
    with Store(path, outbox_limit=3) as store:
        for what in (BAD, GOOD, BAD, GOOD):
            record(store, what)
        assert seqs(store) == [1, 3, 4]
        record(store, BAD)
        assert seqs(store) == [1, 3, 5]
        record(store, BAD)
        assert seqs(store) == [3, 5, 6]


def test_the_newest_report_stays_even_beside_nothing_but_failures(path: Path) -> None:
    with Store(path, outbox_limit=2) as store:
        for what in (BAD, BAD, GOOD):
            record(store, what)
        assert seqs(store) == [2, 3]


def test_a_smaller_limit_takes_effect_with_the_next_report(path: Path) -> None:
    with Store(path) as store:
        for _ in range(6):
            record(store)
        store.outbox_limit = 2
        record(store)
        assert seqs(store) == [6, 7]


# --- all or nothing


def test_when_the_report_cannot_be_stored_the_state_does_not_change_either(path: Path) -> None:
    with Store(path) as store:
        record(store, GOOD, failures=0)
        with raw(path) as db:
            db.execute(
                "CREATE TRIGGER refuse BEFORE INSERT ON outbox BEGIN SELECT RAISE(ABORT, 'no'); END"
            )
        before = store.state()
        with pytest.raises(StateError, match="no"):
            record(store, BAD, failures=1)

        assert store.state() == before
        with raw(path) as db:
            db.execute("DROP TRIGGER refuse")
        assert record(store, BAD).seq == 2


CRASHING_AGENT = textwrap.dedent(
    """
    import sys
    from datetime import UTC, datetime
    from pathlib import Path
    from monky_deployd.domain.report import Outcome, Phase
    from monky_deployd.errors import Reason
    from monky_deployd.host.store import Store

    now = datetime.now(UTC)
    with Store(Path(sys.argv[1])) as store:
        while True:
            number = store.last_seq() + 1
            outcome = Outcome(Reason.UP_FAILED, "x" * 5000, Phase.UP, number, now, now)
            store.record(outcome, agent_version="1", next_contact_by=now, failures=number)
            print(number, flush=True)
    """
)


def test_killed_at_any_point_state_and_outbox_agree_and_nothing_acknowledged_is_lost(
    path: Path,
) -> None:
    for wanted in (1, 20, 45):
        with subprocess.Popen(
            [sys.executable, "-c", CRASHING_AGENT, str(path)], stdout=subprocess.PIPE, text=True
        ) as agent:
            assert agent.stdout
            acknowledged = 0
            while acknowledged < wanted:
                acknowledged = int(agent.stdout.readline())
            agent.kill()
            acknowledged = max([acknowledged, *map(int, agent.stdout.read().split())])

        with Store(path) as store:
            reports = store.pending(10_000)
            state = store.state()
        assert [report.seq for report in reports] == list(range(1, len(reports) + 1))
        assert len(reports) >= acknowledged
        assert state.last_seq == state.failures == reports[-1].seq
        assert state.last_outcome
        assert state.last_outcome.generation == reports[-1].body["generation"] == state.last_seq
    assert list(path.parent.glob("*.unusable-*")) == []


# --- the file


def test_the_files_are_private_whatever_the_umask(path: Path) -> None:
    before = os.umask(0)
    try:
        with Store(path) as store:
            record(store)
            modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"state.db": 0o600, "state.db-wal": 0o600, "state.db-shm": 0o600}


def test_a_database_that_others_can_read_is_made_private(path: Path) -> None:
    Store(path).close()
    path.chmod(0o644)
    Store(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_every_commit_reaches_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def watched(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        opened.append(connect(*args, **kwargs))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", watched)
    with Store(path):
        [db] = opened
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA synchronous").fetchone() == (2,)


def test_the_schema_number_stands_in_the_file(path: Path) -> None:
    Store(path).close()
    with raw(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
        assert db.execute("PRAGMA application_id").fetchone() == (database.APPLICATION_ID,)


def test_an_older_schema_is_brought_up_with_its_content(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(path) as store:
        record(store, failures=2)
    step = ("CREATE TABLE added (x TEXT) STRICT",)
    monkeypatch.setattr(database, "STEPS", (*database.STEPS, step))

    with Store(path) as store:
        assert store.state().failures == 2
        assert seqs(store) == [1]
    with raw(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (2,)
        assert db.execute("SELECT count(*) FROM added").fetchone() == (0,)


def test_a_newer_schema_is_refused_with_the_remedy_and_left_untouched(path: Path) -> None:
    with Store(path) as store:
        record(store)
    with raw(path) as db:
        db.execute("PRAGMA user_version = 2")
    before = path.read_bytes()

    for attempt in (Store, read_state):
        with pytest.raises(StateError, match="has schema 2, and this agent knows 1") as caught:
            attempt(path)
        assert "upgrade monky-deployd" in caught.value.remedy
        assert caught.value.reason is Reason.STATE_UNUSABLE
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"not yet"], ids=["empty", "interrupted"])
def test_a_file_from_a_start_that_was_cut_short_is_simply_used(
    path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.touch()
    if content:
        with raw(path) as db:
            db.execute("PRAGMA journal_mode = WAL")
    with Store(path) as store:
        assert record(store).seq == 1
    assert caplog.records == []


def set_aside(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir() if ".unusable-" in file.name)


def test_a_file_that_is_no_database_is_kept_under_another_name(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(b"this is not a database " * 100)

    with Store(path) as store:
        assert record(store).seq == 1
    [kept] = set_aside(path)
    assert (path.parent / kept).read_bytes().startswith(b"this is not a database")
    [entry] = caplog.records
    assert entry.levelno == logging.ERROR
    assert kept in entry.getMessage()
    assert "damaged" in entry.getMessage()
    assert path.stat().st_mode & 0o777 == 0o600


def damage(path: Path) -> bytes:
    """Overwrite one page in the middle; the file's content afterwards."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(content)
    return bytes(content)


def test_a_damaged_page_is_noticed_at_the_start(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Store(path) as store:
        for _ in range(20):
            record(store, outcome(sentence="x" * 2000))
    content = damage(path)

    with Store(path) as store:
        assert store.pending(10) == []
    [kept] = set_aside(path)
    assert (path.parent / kept).read_bytes() == content
    assert "damaged" in caplog.text


def test_the_log_of_a_damaged_database_goes_with_it(path: Path) -> None:
    with Store(path) as store:
        for _ in range(20):
            record(store, outcome(sentence="x" * 2000))
    # While somebody reads, SQLite leaves its companion files behind.
    with raw(path) as reader:
        reader.execute("SELECT count(*) FROM state").fetchone()
        damage(path)
        with Store(path) as store:
            assert store.state() == AgentState()
            kept, kept_shm, kept_wal = set_aside(path)
    assert (kept_shm, kept_wal) == (f"{kept}-shm", f"{kept}-wal")


@pytest.mark.parametrize("its_own_schema", [0, 1])
def test_another_programs_database_is_not_taken_for_ours(
    path: Path, caplog: pytest.LogCaptureFixture, its_own_schema: int
) -> None:
    with raw(path) as db:
        db.execute(f"PRAGMA user_version = {its_own_schema}")
        db.execute("CREATE TABLE state (key TEXT, value TEXT)")
        db.execute("INSERT INTO state VALUES ('failures', '9')")

    with Store(path) as store:
        assert store.state() == AgentState()
    [kept] = set_aside(path)
    with raw(path.parent / kept) as db:
        assert db.execute("SELECT value FROM state").fetchone() == ("9",)
    assert "another program's" in caplog.text


def test_two_damaged_files_are_both_kept(path: Path) -> None:
    for content in (b"first " * 100, b"second " * 100):
        path.write_bytes(content)
        Store(path).close()
    assert len(set_aside(path)) == 2


def test_a_symlink_is_not_followed(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    path.symlink_to(target)
    with pytest.raises(StateError, match="not a regular file"):
        Store(path)
    assert not target.exists()


def test_a_full_disk_is_reported_as_such_and_the_store_goes_on_afterwards(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def watched(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        opened.append(connect(*args, **kwargs))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", watched)
    with Store(path) as store:
        record(store)
        opened[0].execute("PRAGMA max_page_count = 8")
        with pytest.raises(StateError, match="no room") as caught:
            record(store, outcome(sentence="x" * 100_000))
        assert caught.value.reason is Reason.DISK
        assert store.last_seq() == 1

        opened[0].execute("PRAGMA max_page_count = 1000")
        assert record(store, outcome(sentence="x" * 100_000)).seq == 2


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE])
def test_whatever_found_no_room_is_told_as_a_full_disk(path: Path, code: int) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    with pytest.raises(StateError, match="no room") as caught, database.translated(path):
        raise error
    assert caught.value.reason is Reason.DISK


def test_a_database_locked_by_another_process_is_named_as_such(
    path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_BUSY_TIMEOUT", 0)
    with raw(path) as other, Store(path) as impatient:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StateError, match="locked by another process"):
            record(impatient)


# --- the reader beside the agent


def test_a_reader_sees_what_the_agent_recorded_while_it_runs(path: Path, store: Store) -> None:
    record(store, BAD, failures=1)
    assert read_state(path) == store.state()
    record(store, GOOD, failures=0)
    assert read_state(path).last_outcome == GOOD


def test_a_reader_does_not_wait_for_a_writer(path: Path, store: Store) -> None:
    record(store, failures=1)
    with raw(path) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE state SET value = '9' WHERE key = 'failures'")
        assert read_state(path).failures == 1


def test_a_reader_sees_the_state_of_an_agent_that_has_stopped(path: Path) -> None:
    with Store(path) as store:
        record(store, failures=4)
    before = path.read_bytes()
    assert read_state(path).failures == 4
    assert path.read_bytes() == before


def test_a_reader_cannot_write(path: Path, store: Store) -> None:
    with (
        pytest.raises(StateError, match="readonly"),
        database.open_for_reading(path) as db,
    ):
        db.execute("DELETE FROM outbox")


def test_a_reader_of_a_database_that_is_still_empty_sees_nothing(path: Path) -> None:
    path.touch()
    assert read_state(path) == AgentState()


def test_a_reader_says_where_there_is_no_database_and_makes_none(path: Path) -> None:
    with pytest.raises(StateError, match="there is no state database") as caught:
        read_state(path)
    assert str(path) in caught.value.cause
    assert not path.exists()


def test_a_reader_leaves_a_damaged_file_where_it_is(path: Path) -> None:
    path.write_bytes(b"this is not a database " * 100)
    with pytest.raises(StateError, match="damaged"):
        read_state(path)
    assert set_aside(path) == []
