"""Logging: what journald or a person at a terminal gets to see, and what nobody does."""

import array
import fcntl
import io
import json
import logging
import os
import pty
import re
import socket
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO

import pytest

from monky_deployd.domain.secret import MASK, Scrubber, Secret
from monky_deployd.host import journal
from monky_deployd.host.journal import JournalHandler, StderrHandler, fields, setup_logging

PASSWORD = "hunter2-and-more"


@dataclass
class Received:
    """One message as journald would take it: the entry, and how it came."""

    entry: dict[str, str]
    names: list[str]
    datagram: bytes
    seals: int | None = None


class Journald:
    """The receiving end of the native protocol, read by the letter of its documentation."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(5)

    def close(self) -> None:
        self.socket.close()

    def receive(self) -> Received:
        room = socket.CMSG_SPACE(array.array("i", [0]).itemsize)
        datagram, ancillary, _, _ = self.socket.recvmsg(1 << 20, room)
        if not ancillary:
            return Received(*parse(datagram), datagram)
        descriptor = array.array("i", ancillary[0][2])[0]
        with os.fdopen(descriptor, "rb") as file:
            seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
            file.seek(0)
            return Received(*parse(file.read()), datagram, seals)


def parse(content: bytes) -> tuple[dict[str, str], list[str]]:
    stream = io.BytesIO(content)
    pairs: list[tuple[str, str]] = []
    while line := stream.readline():
        assert line.endswith(b"\n"), "a field is not ended by a newline"
        name, equals, value = line[:-1].partition(b"=")
        if not equals:
            length = int.from_bytes(stream.read(8), "little")
            value = stream.read(length)
            assert len(value) == length
            assert stream.read(1) == b"\n"
        assert re.fullmatch(rb"[A-Z0-9][A-Z0-9_]{0,63}", name), name
        pairs.append((name.decode(), value.decode()))
    return dict(pairs), [name for name, _ in pairs]


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[Journald]:
    server = Journald(tmp_path / "journal")
    yield server
    server.close()


@pytest.fixture
def scrubber() -> Scrubber:
    return Scrubber([Secret(PASSWORD)])


@pytest.fixture
def stderr() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def to_journal(journald: Journald, scrubber: Scrubber, stderr: io.StringIO) -> logging.Logger:
    handler = JournalHandler(scrubber, fallback=stderr, socket_path=journald.path)
    return logger_with(handler)


@pytest.fixture
def to_terminal(scrubber: Scrubber, stderr: io.StringIO) -> logging.Logger:
    return logger_with(StderrHandler(scrubber, stderr, prefixed=False))


def logger_with(handler: logging.Handler) -> logging.Logger:
    logger = logging.Logger("test")
    logger.addHandler(handler)
    return logger


def log_failure(logger: logging.Logger, error: Exception) -> None:
    try:
        raise error
    except type(error):
        logger.exception("the pass failed")


# --- journald


def test_an_entry_holds_message_priority_identifier_and_place(
    journald: Journald, to_journal: logging.Logger
) -> None:
    to_journal.warning("service %s is slow", "web")

    received = journald.receive()
    assert received.entry["MESSAGE"] == "service web is slow"
    assert received.entry["PRIORITY"] == "4"
    assert received.entry["SYSLOG_IDENTIFIER"] == "monky-deployd"
    assert received.entry["CODE_FILE"] == __file__
    assert received.entry["CODE_FUNC"].startswith("test_an_entry")
    assert int(received.entry["CODE_LINE"]) > 0
    assert len(received.names) == len(set(received.names))
    assert not [name for name in received.names if name.startswith("MONKY_")]


@pytest.mark.parametrize(
    ("level", "priority"),
    [
        (logging.DEBUG, "7"),
        (logging.INFO, "6"),
        (logging.WARNING, "4"),
        (logging.ERROR, "3"),
        (logging.CRITICAL, "2"),
    ],
)
def test_each_level_has_its_syslog_priority(
    journald: Journald, to_journal: logging.Logger, level: int, priority: str
) -> None:
    to_journal.log(level, "x")
    assert journald.receive().entry["PRIORITY"] == priority


def test_fields_arrive_under_the_names_that_operators_search_for(
    journald: Journald, to_journal: logging.Logger
) -> None:
    to_journal.error(
        "denied",
        extra=fields(
            environment="env-dev-01",
            generation=7,
            phase="pull",
            service="web",
            image="harbor.example/p/web:1",
            registry="harbor.example",
            error_kind="auth",
            reason="pull-failed",
        ),
    )

    entry = journald.receive().entry
    assert {name: value for name, value in entry.items() if name.startswith("MONKY_")} == {
        "MONKY_ENVIRONMENT": "env-dev-01",
        "MONKY_GENERATION": "7",
        "MONKY_PHASE": "pull",
        "MONKY_SERVICE": "web",
        "MONKY_IMAGE": "harbor.example/p/web:1",
        "MONKY_REGISTRY": "harbor.example",
        "MONKY_ERROR_KIND": "auth",
        "MONKY_REASON": "pull-failed",
    }


def test_empty_fields_are_left_out(journald: Journald, to_journal: logging.Logger) -> None:
    to_journal.error("denied", extra=fields(service="web", generation=0))

    names = journald.receive().names
    assert [name for name in names if name.startswith("MONKY_")] == [
        "MONKY_GENERATION",
        "MONKY_SERVICE",
    ]


def test_the_environment_stands_in_every_entry(
    journald: Journald, scrubber: Scrubber, stderr: io.StringIO
) -> None:
    logger = logger_with(
        JournalHandler(
            scrubber, fallback=stderr, socket_path=journald.path, environment="env-dev-01"
        )
    )
    logger.info("started")
    assert journald.receive().entry["MONKY_ENVIRONMENT"] == "env-dev-01"


def test_a_message_of_several_lines_arrives_whole(
    journald: Journald, to_journal: logging.Logger
) -> None:
    message = 'denied: "robot$p+n"\nMONKY_SERVICE=forged\n\nZugriff verweigert — 拒否'
    to_journal.error(message)

    received = journald.receive()
    assert received.entry["MESSAGE"] == message
    assert "MONKY_SERVICE" not in received.entry


def test_a_traceback_follows_the_message(journald: Journald, to_journal: logging.Logger) -> None:
    log_failure(to_journal, ValueError("what went wrong"))

    message = journald.receive().entry["MESSAGE"]
    assert message.startswith("the pass failed\nTraceback (most recent call last):\n")
    assert message.endswith("ValueError: what went wrong")


def test_an_entry_too_large_for_a_datagram_comes_as_a_sealed_file(
    journald: Journald, to_journal: logging.Logger
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        largest = probe.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    message = "layer failed\n" + "x" * largest
    to_journal.error(message, extra=fields(service="web"))

    received = journald.receive()
    assert received.datagram == b""
    assert received.seals == (
        fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
    )
    assert received.entry["MESSAGE"] == message
    assert received.entry["MONKY_SERVICE"] == "web"


def test_a_message_with_terminal_escapes_stays_readable_in_journalctl(
    journald: Journald, to_journal: logging.Logger
) -> None:
    to_journal.error("pull \x1b[31mfailed")
    assert journald.receive().entry["MESSAGE"] == r"pull \x1b[31mfailed"


def test_while_journald_is_away_stderr_gets_the_record_with_priorities(
    journald: Journald, to_journal: logging.Logger, stderr: io.StringIO
) -> None:
    to_journal.info("before")
    journald.receive()
    journald.close()
    to_journal.error("pull failed:\ndenied", extra=fields(service="web", error_kind="auth"))

    assert stderr.getvalue() == "<3>pull failed: [service=web kind=auth]\n<3>    denied\n"


def test_journald_is_used_again_once_it_is_back(
    journald: Journald, to_journal: logging.Logger, stderr: io.StringIO, tmp_path: Path
) -> None:
    journald.close()
    Path(journald.path).unlink()
    to_journal.error("while away")
    successor = Journald(tmp_path / "journal")
    to_journal.error("back again")

    assert successor.receive().entry["MESSAGE"] == "back again"
    assert stderr.getvalue() == "<3>while away\n"
    successor.close()


# --- stderr


def test_a_person_gets_time_level_message_and_fields_on_one_line(
    to_terminal: logging.Logger, stderr: io.StringIO
) -> None:
    record = logging.makeLogRecord(
        {
            "msg": "pull of %s failed",
            "args": ("web",),
            "levelname": "ERROR",
            "levelno": logging.ERROR,
            "created": 1796094000.25,
            **fields(service="web", error_kind="auth"),
        }
    )
    to_terminal.handle(record)

    assert stderr.getvalue() == (
        "2026-12-01T03:00:00Z ERROR pull of web failed [service=web kind=auth]\n"
    )


def test_further_lines_are_indented_and_control_characters_are_escaped(
    to_terminal: logging.Logger, stderr: io.StringIO
) -> None:
    to_terminal.error("first\n\tsecond\x1b]0;title\x07\r\nthird \u202eright to left")

    _, _, shown = stderr.getvalue().partition(" ERROR ")
    assert shown == ("first\n    \tsecond\\x1b]0;title\\x07\\r\n    third \\u202eright to left\n")


def test_a_field_cannot_begin_a_line_of_its_own(
    to_terminal: logging.Logger, stderr: io.StringIO
) -> None:
    to_terminal.error("x", extra=fields(service="web\x1b[2J"))
    assert stderr.getvalue().endswith(" ERROR x [service=web\\x1b[2J]\n")


def test_a_closed_stderr_does_not_stop_the_agent(scrubber: Scrubber) -> None:
    gone = io.StringIO()
    gone.close()
    logger_with(StderrHandler(scrubber, gone, prefixed=False)).error("nobody reads this")


# --- secrets


def both(journald: Journald, stderr: io.StringIO) -> tuple[str, str]:
    """What journald and what stderr got of the last record."""
    return json.dumps(journald.receive().entry), stderr.getvalue()


@pytest.fixture
def everywhere(to_journal: logging.Logger, to_terminal: logging.Logger) -> logging.Logger:
    to_journal.addHandler(to_terminal.handlers[0])
    return to_journal


def test_a_secret_is_masked_in_message_and_arguments(
    journald: Journald, everywhere: logging.Logger, stderr: io.StringIO
) -> None:
    everywhere.error(f"login {PASSWORD} as %s and %r", PASSWORD, {"password": PASSWORD})

    for seen in both(journald, stderr):
        assert PASSWORD not in seen
        assert seen.count(MASK) == 3


def test_a_secret_is_masked_in_a_traceback_and_its_causes(
    journald: Journald, everywhere: logging.Logger, stderr: io.StringIO
) -> None:
    error = RuntimeError(f"outer {PASSWORD}")
    error.__cause__ = ValueError(f"inner {PASSWORD}")
    error.add_note(f"note {PASSWORD}")
    log_failure(everywhere, error)

    for seen in both(journald, stderr):
        assert PASSWORD not in seen
        assert "Traceback" in seen
        assert seen.count(MASK) == 3


def test_a_secret_is_masked_in_fields(
    journald: Journald, everywhere: logging.Logger, stderr: io.StringIO
) -> None:
    everywhere.error("x", extra=fields(image=f"harbor.example/{PASSWORD}"))

    for seen in both(journald, stderr):
        assert PASSWORD not in seen
        assert f"harbor.example/{MASK}" in seen


def test_a_secret_of_several_lines_is_masked_line_by_line(
    journald: Journald, everywhere: logging.Logger, stderr: io.StringIO, scrubber: Scrubber
) -> None:
    scrubber.add([Secret("-----BEGIN KEY-----\nMIIEvQIBADANBg\n-----END KEY-----")])
    everywhere.error("the file holds\n  MIIEvQIBADANBg\nonly")

    for seen in both(journald, stderr):
        assert "MIIEvQIBADANBg" not in seen


def test_a_log_call_with_wrong_arguments_is_reported_without_them(
    journald: Journald,
    everywhere: logging.Logger,
    stderr: io.StringIO,
    capsys: pytest.CaptureFixture[str],
) -> None:
    everywhere.error("%d reports to %s", PASSWORD)

    for seen in (*both(journald, stderr), capsys.readouterr().err):
        assert PASSWORD not in seen
    assert "%d reports to %s (the arguments do not fit: TypeError)" in stderr.getvalue()


# --- setup


@pytest.fixture
def global_logging() -> Iterator[None]:
    root = logging.getLogger()
    names = ("", "httpx", "httpcore")
    before = root.handlers[:], {name: logging.getLogger(name).level for name in names}
    root.handlers = []
    yield
    logging.captureWarnings(False)
    root.handlers = before[0]
    for name, level in before[1].items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def stderr_file(tmp_path: Path) -> Iterator[io.TextIOWrapper]:
    with (tmp_path / "stderr").open("w+") as file:
        yield file


class SetUp(Protocol):
    """`setup_logging` with `stream` as the process's stderr."""

    def __call__(self, stream: TextIO, environ: dict[str, str], level: str = "info") -> None: ...


@pytest.fixture
def set_up(global_logging: None, scrubber: Scrubber, monkeypatch: pytest.MonkeyPatch) -> SetUp:
    def call(stream: TextIO, environ: dict[str, str], level: str = "info") -> None:
        monkeypatch.setattr("sys.stderr", stream)
        setup_logging(level, environ=environ, scrubber=scrubber, environment="env-dev-01")

    return call


def written(file: io.TextIOWrapper) -> str:
    return Path(file.name).read_text()


def stream_name(file: io.TextIOWrapper) -> str:
    status = os.fstat(file.fileno())
    return f"{status.st_dev}:{status.st_ino}"


def test_journald_is_used_where_stderr_is_its_stream(
    journald: Journald,
    stderr_file: io.TextIOWrapper,
    set_up: SetUp,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal, "JOURNAL_SOCKET", journald.path)
    environ = {"JOURNAL_STREAM": stream_name(stderr_file), "INVOCATION_ID": "x"}
    set_up(stderr_file, environ)
    logging.getLogger("any.library").info("hello")

    entry = journald.receive().entry
    assert entry["MESSAGE"] == "hello"
    assert entry["MONKY_ENVIRONMENT"] == "env-dev-01"
    assert written(stderr_file) == ""


@pytest.mark.parametrize("stream", ["", "1:2", "nonsense"])
def test_an_inherited_journal_stream_does_not_take_the_lines_from_a_redirected_stderr(
    stderr_file: io.TextIOWrapper, set_up: SetUp, stream: str
) -> None:
    set_up(stderr_file, {"JOURNAL_STREAM": stream})
    logging.getLogger("a").warning("hello %s", PASSWORD)

    assert re.fullmatch(
        rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ WARNING hello {re.escape(MASK)}\n",
        written(stderr_file),
    )


def test_under_systemd_without_a_journal_each_line_begins_with_its_priority(
    stderr_file: io.TextIOWrapper, set_up: SetUp
) -> None:
    set_up(stderr_file, {"INVOCATION_ID": "x"})
    logging.getLogger("a").error("one\ntwo")
    assert written(stderr_file) == "<3>one\n<3>    two\n"


def test_a_person_at_a_terminal_gets_plain_lines_whatever_the_shell_inherited(
    set_up: SetUp,
) -> None:
    controller, terminal = pty.openpty()
    with os.fdopen(controller, "rb"), os.fdopen(terminal, "w") as screen:
        set_up(screen, {"INVOCATION_ID": "x"})
        logging.getLogger("a").error("hello")
        seen = b""
        while not seen.endswith(b"\n"):
            seen += os.read(controller, 100)
        assert seen.endswith(b"Z ERROR hello\r\n")


def test_a_stderr_that_is_not_a_file_is_written_to(set_up: SetUp, stderr: io.StringIO) -> None:
    set_up(stderr, {"JOURNAL_STREAM": "1:2"})
    logging.getLogger("a").error("hello")
    assert stderr.getvalue().endswith(" ERROR hello\n")


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_the_level_says_what_is_logged(
    stderr_file: io.TextIOWrapper, set_up: SetUp, level: str, expected: list[str]
) -> None:
    set_up(stderr_file, {}, level)
    for name in ("debug", "info", "warning", "error"):
        logging.getLogger("a").log(logging.getLevelName(name.upper()), name)
    assert [line.split()[-1] for line in written(stderr_file).splitlines()] == expected


def test_the_http_libraries_do_not_log_requests_at_any_level(
    stderr_file: io.TextIOWrapper, set_up: SetUp
) -> None:
    set_up(stderr_file, {}, "debug")
    logging.getLogger("httpx").info("HTTP Request: GET https://tenancy")
    logging.getLogger("httpcore.http11").debug("send_request_headers.started")
    logging.getLogger("httpx").warning("worth knowing")
    assert written(stderr_file).count("\n") == 1

    set_up(stderr_file, {}, "error")
    logging.getLogger("httpx").warning("not worth it now")
    assert written(stderr_file).count("\n") == 1


def test_setting_up_again_replaces_what_was_there(
    stderr_file: io.TextIOWrapper, set_up: SetUp
) -> None:
    logging.getLogger().addHandler(logging.StreamHandler(stderr_file))
    set_up(stderr_file, {})
    set_up(stderr_file, {})
    logging.getLogger("a").error("once, %s", PASSWORD)
    assert written(stderr_file).count("once") == 1
    assert PASSWORD not in written(stderr_file)


def test_warnings_of_libraries_are_logged_and_scrubbed_too(
    stderr_file: io.TextIOWrapper, set_up: SetUp
) -> None:
    set_up(stderr_file, {})
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn(f"careful with {PASSWORD}", stacklevel=1)
    assert f"careful with {MASK}" in written(stderr_file)
