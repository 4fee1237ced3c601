"""The state database as a file: opened, checked, migrated, and set aside where it is damaged."""

import contextlib
import logging
import sqlite3
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from monky_deployd.errors import Reason, StateError
from monky_deployd.host.files import write_private

# In the file's header, so that another program's database is not taken for ours.
APPLICATION_ID = 0x4D4B4459

# The statements at index N lead from schema N to schema N + 1. Add to the end, never change one.
STEPS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE state (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
        "CREATE TABLE outbox (seq INTEGER PRIMARY KEY, report_id TEXT NOT NULL UNIQUE,"
        " failure INTEGER NOT NULL, body TEXT NOT NULL) STRICT",
    ),
)
_BUSY_TIMEOUT = 5.0  # seconds
_COMPANIONS = ("-wal", "-shm", "-journal")

_log = logging.getLogger(__name__)


class _UnusableError(StateError):
    """The file is damaged, or not one of ours: it is set aside, not repaired."""


def open_database(path: Path) -> sqlite3.Connection:
    """The database at `path`, writable, durable on commit, and of this agent's schema.

    A new one is made where there is none. A damaged or foreign one is renamed, with what belongs
    to it, and logged. Raises StateError where it can't be opened or is newer than this agent.
    """
    _ensure_private_file(path)
    try:
        return _open_checked(path)
    except _UnusableError as problem:
        aside = _set_aside(path)
        _log.error(
            "%s; it is kept as %s and a new one is begun, without the history and the "
            "undelivered reports",
            problem.cause,
            aside,
        )
    write_private(path, b"")
    return _open_checked(path)


@contextlib.contextmanager
def open_for_reading(path: Path) -> Iterator[sqlite3.Connection]:
    """The database at `path`, read-only, beside an agent that may be writing to it.

    Raises StateError where there is none, or it can't be read.
    """
    try:
        path.stat()
    except FileNotFoundError as error:
        raise StateError(
            f"there is no state database at {path}",
            remedy="check state_dir in the configuration; the agent may not have run here yet",
        ) from error
    except OSError as error:
        raise _unusable_path(path, error) from error
    with translated(path), contextlib.closing(_connect(path, mode="ro")) as db:
        yield db


def schema_of(db: sqlite3.Connection, path: Path) -> int:
    """The schema number of the database; 0 where it is still empty.

    Raises StateError where it isn't one of ours, or newer than this agent.
    """
    application = _number(db, "PRAGMA application_id")
    schema = _number(db, "PRAGMA user_version")
    if application != APPLICATION_ID:
        if application or schema or _number(db, "SELECT count(*) FROM sqlite_master"):
            raise _UnusableError(
                f"the state database {path} is another program's",
                remedy="check state_dir in the configuration",
            )
        return 0
    if schema > len(STEPS):
        raise StateError(
            f"the state database {path} has schema {schema}, and this agent knows {len(STEPS)}",
            remedy="upgrade monky-deployd, or move the file away to begin without its history",
        )
    return schema


@contextlib.contextmanager
def transaction(db: sqlite3.Connection, path: Path) -> Iterator[None]:
    """What is done inside is done wholly and durably, or not at all. Raises StateError."""
    with translated(path):
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
            db.execute("COMMIT")
        except BaseException:
            # After some errors, such as a full disk, SQLite has already rolled back by itself.
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """SQLite's errors become StateError, with the remedy that goes with each."""
    try:
        yield
    except sqlite3.Error as error:
        raise _state_error(path, error) from error


def _ensure_private_file(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        write_private(path, b"")
        return
    except OSError as error:
        raise _unusable_path(path, error) from error
    if not stat.S_ISREG(mode):
        raise StateError(f"{path} is not a regular file", remedy="remove it")
    if stat.S_IMODE(mode) != 0o600:
        try:
            path.chmod(0o600)
        except OSError as error:
            raise _unusable_path(path, error) from error


def _open_checked(path: Path) -> sqlite3.Connection:
    with translated(path), contextlib.ExitStack() as on_failure:
        db = _connect(path, mode="rw")
        on_failure.callback(db.close)
        schema = schema_of(db, path)
        _check_integrity(db, path)
        db.execute("PRAGMA journal_mode = WAL")
        # NORMAL would lose the last reports with the power.
        db.execute("PRAGMA synchronous = FULL")
        _migrate(db, path, schema)
        on_failure.pop_all()
        return db


def _connect(path: Path, *, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        timeout=_BUSY_TIMEOUT,
        isolation_level=None,
    )


def _check_integrity(db: sqlite3.Connection, path: Path) -> None:
    verdict = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if verdict != "ok":
        raise _UnusableError(f"the state database {path} is damaged: {verdict}")


def _migrate(db: sqlite3.Connection, path: Path, schema: int) -> None:
    if schema == len(STEPS):
        return
    with transaction(db, path):
        for statements in STEPS[schema:]:
            for statement in statements:
                db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {len(STEPS)}")


def _number(db: sqlite3.Connection, query: str) -> int:
    return int(db.execute(query).fetchone()[0])


def _state_error(path: Path, error: sqlite3.Error) -> StateError:
    # The low byte is the primary result code (https://www.sqlite.org/rescode.html).
    extended = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    code = extended & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _UnusableError(
            f"the state database {path} is damaged: {error}",
            remedy="restart monky-deployd, which then sets it aside and begins a new one",
        )
    # The file of shared memory, which SQLite makes beside the database, found no room either.
    if code == sqlite3.SQLITE_FULL or extended == sqlite3.SQLITE_IOERR_SHMSIZE:
        return StateError(
            f"there is no room to write to the state database {path}",
            remedy="free some space on that file system",
            reason=Reason.DISK,
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StateError(
            f"the state database {path} is locked by another process",
            remedy=f"see who holds it with: fuser -v {path}",
        )
    return _unusable_path(path, error)


def _unusable_path(path: Path, error: Exception) -> StateError:
    return StateError(
        f"the state database {path} can't be used: {getattr(error, 'strerror', None) or error}",
        remedy=f"check that {path.parent} is there and belongs to the user who runs this",
    )


def _set_aside(path: Path) -> Path:
    """Rename the database and what belongs to it; the new name of the database itself."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    aside = path.with_name(f"{path.name}.unusable-{stamp}")
    try:
        # The database goes last: its companions must not be taken for those of its successor.
        for suffix in _COMPANIONS:
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
        path.rename(aside)
    except OSError as error:
        raise _unusable_path(path, error) from error
    return aside
