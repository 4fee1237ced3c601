"""Logging: to journald with fields under systemd, else as plain lines on stderr.

Every handler masks secrets and makes control characters visible itself, so that no logger,
exception or library gets round it. Format of the datagrams: the native journal protocol,
https://systemd.io/JOURNAL_NATIVE_PROTOCOL/.
"""

import contextlib
import errno
import fcntl
import logging
import os
import socket
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import TextIO

from monky_deployd.domain.secret import Scrubber

JOURNAL_SOCKET = "/run/systemd/journal/socket"
IDENTIFIER = "monky-deployd"

# What a record may carry, and the short name that it has on stderr. In the journal each is
# MONKY_ and its name in capitals.
_FIELDS = {
    "environment": "environment",
    "generation": "generation",
    "phase": "phase",
    "service": "service",
    "image": "image",
    "registry": "registry",
    "error_kind": "kind",
    "reason": "reason",
}
_DEBUG_SHOWS_HEADERS = ("httpx", "httpcore")
_SEND_TIMEOUT = 1.0  # seconds
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
# What a wrong number or kind of arguments to a log call, or their own __str__, comes out as.
_FORMAT_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


def fields(
    *,
    environment: str = "",
    generation: int | None = None,
    phase: str = "",
    service: str = "",
    image: str = "",
    registry: str = "",
    error_kind: str = "",
    reason: str = "",
) -> dict[str, dict[str, str]]:
    """The `extra` of a log call that gives the record these fields; empty ones are left out."""
    given = {
        "environment": environment,
        "generation": "" if generation is None else str(generation),
        "phase": phase,
        "service": service,
        "image": image,
        "registry": registry,
        "error_kind": error_kind,
        "reason": reason,
    }
    # str() makes a plain string of a StrEnum, whose repr is another.
    return {"monky": {name: str(value) for name, value in given.items() if value}}


def setup_logging(
    level: str, *, environ: Mapping[str, str], scrubber: Scrubber, environment: str = ""
) -> None:
    """Send every logger's records to where this process is read; may be called again.

    `level` is debug, info, warning or error. `environment`, where it is known, becomes a field
    of every record in the journal. `scrubber` may take in more secrets later.
    """
    threshold = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(
        level=threshold, handlers=[_handler(environ, scrubber, environment)], force=True
    )
    logging.captureWarnings(True)
    # Python's own hook would print a traceback past the scrubber.
    sys.excepthook = _log_uncaught
    for name in _DEBUG_SHOWS_HEADERS:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    logging.getLogger("monky_deployd").critical(
        "the agent ends on an unexpected error; please report it", exc_info=(kind, error, trace)
    )


def _handler(environ: Mapping[str, str], scrubber: Scrubber, environment: str) -> logging.Handler:
    stderr = sys.stderr
    if _is_journal(stderr, environ.get("JOURNAL_STREAM", "")):
        return JournalHandler(
            scrubber, fallback=stderr, socket_path=JOURNAL_SOCKET, environment=environment
        )
    # Programs that a user manager started inherit INVOCATION_ID, down to a person's shell.
    under_systemd = "INVOCATION_ID" in environ and not stderr.isatty()
    return StderrHandler(scrubber, stderr, prefixed=under_systemd)


def _is_journal(stream: TextIO, journal_stream: str) -> bool:
    """Whether `stream` is the one that JOURNAL_STREAM (`device:inode`) names."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return journal_stream == f"{status.st_dev}:{status.st_ino}"


class StderrHandler(logging.Handler):
    """Writes lines to `stream`; a record's second and further lines are indented.

    With `prefixed`, each line begins with its priority as `<N>` (sd-daemon(3)), and has no
    time of its own.
    """

    def __init__(self, scrubber: Scrubber, stream: TextIO, *, prefixed: bool) -> None:
        super().__init__()
        self._scrubber = scrubber
        self._stream = stream
        self._prefixed = prefixed

    def emit(self, record: logging.LogRecord) -> None:
        """Write `record`; if the stream is gone there is nobody left to tell."""
        lines = _lines(_text(record, self._scrubber), _fields_of(record, self._scrubber))
        if self._prefixed:
            written = "".join(f"<{_priority(record.levelno)}>{line}\n" for line in lines)
        else:
            moment = datetime.fromtimestamp(record.created, UTC)
            written = f"{moment:%Y-%m-%dT%H:%M:%SZ} {record.levelname} " + "\n".join(lines) + "\n"
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(written)
            self._stream.flush()


class JournalHandler(logging.Handler):
    """Sends records to journald at `socket_path`; to `fallback` while it is away.

    `environment` is the value of that field in records that don't carry one.
    """

    def __init__(
        self,
        scrubber: Scrubber,
        *,
        fallback: TextIO,
        socket_path: str,
        environment: str = "",
    ) -> None:
        super().__init__()
        self._scrubber = scrubber
        self._fallback = StderrHandler(scrubber, fallback, prefixed=True)
        self._environment = environment
        self._socket_path = socket_path

    def emit(self, record: logging.LogRecord) -> None:
        """Send `record` as one journal entry."""
        try:
            _send(self._socket_path, b"".join(_assignments(self._entry(record))))
        except OSError:
            self._fallback.emit(record)

    def _entry(self, record: logging.LogRecord) -> dict[str, str]:
        carried = _fields_of(record, self._scrubber)
        if self._environment:
            carried.setdefault("environment", self._environment)
        return {
            "MESSAGE": _text(record, self._scrubber),
            "PRIORITY": str(_priority(record.levelno)),
            "SYSLOG_IDENTIFIER": IDENTIFIER,
            "CODE_FILE": record.pathname,
            "CODE_LINE": str(record.lineno),
            "CODE_FUNC": record.funcName or "",
            **{f"MONKY_{name.upper()}": value for name, value in carried.items()},
        }


def _priority(level: int) -> int:
    """The syslog priority of a logging level."""
    if level >= logging.CRITICAL:
        return 2
    if level >= logging.ERROR:
        return 3
    if level >= logging.WARNING:
        return 4
    return 6 if level >= logging.INFO else 7


def _text(record: logging.LogRecord, scrubber: Scrubber) -> str:
    """The record's message, with its traceback below, fit to be shown."""
    parts = [_message(record)]
    if record.exc_info and record.exc_info[1]:
        parts.append(logging.Formatter().formatException(record.exc_info))
    if record.stack_info:
        parts.append(record.stack_info)
    return _visible(scrubber.scrub("\n".join(parts)).rstrip("\n"))


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except _FORMAT_ERRORS as error:
        # logging's own answer to this prints the arguments, and nobody masks them.
        template = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
        return f"{template} (the arguments do not fit: {type(error).__name__})"


def _fields_of(record: logging.LogRecord, scrubber: Scrubber) -> dict[str, str]:
    carried: Mapping[str, str] = getattr(record, "monky", {})
    return {name: _visible(scrubber.scrub(carried[name])) for name in _FIELDS if name in carried}


def _visible(text: str) -> str:
    """`text` with escapes for what a terminal would obey or hide; tab and newline stay."""
    if text.isprintable():
        return text
    return "".join(_visible_character(character) for character in text)


def _visible_character(character: str) -> str:
    if character in "\t\n" or unicodedata.category(character) not in _INVISIBLE:
        return character
    return ascii(character)[1:-1]


def _lines(text: str, carried: Mapping[str, str]) -> list[str]:
    first, *rest = text.split("\n")
    if carried:
        pairs = " ".join(f"{_FIELDS[name]}={value}" for name, value in carried.items())
        first = f"{first} [{pairs}]"
    return [first, *(f"    {line}" for line in rest)]


def _assignments(entry: Mapping[str, str]) -> Iterable[bytes]:
    """Each field in the form that its value needs: with a newline in it, length and bytes."""
    for name, text in entry.items():
        value = text.encode("utf-8", "backslashreplace")
        if b"\n" in value:
            yield name.encode() + b"\n" + len(value).to_bytes(8, "little") + value + b"\n"
        else:
            yield name.encode() + b"=" + value + b"\n"


def _send(address: str, datagram: bytes) -> None:
    # A socket of its own for each record: it outlives a restart of journald without any state.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(_SEND_TIMEOUT)
        sender.connect(address)
        try:
            sender.send(datagram)
        except OSError as error:
            if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                raise
            _send_as_file(sender, datagram)


def _send_as_file(sender: socket.socket, content: bytes) -> None:
    """Pass `content` in a sealed memory file, beside an empty datagram."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    with os.fdopen(os.memfd_create(IDENTIFIER, flags), "wb") as file:
        file.write(content)
        file.flush()
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
        descriptor = file.fileno().to_bytes(4, sys.byteorder)
        sender.sendmsg([], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor)])
