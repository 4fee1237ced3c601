"""Messages to the service manager: the sd_notify datagram protocol.

Format: sd_notify(3), https://www.freedesktop.org/software/systemd/man/sd_notify.html.
"""

import logging
import os
import select
import socket
import sys
import time
from collections.abc import Mapping, Sequence

# systemd reads at most 4,096 bytes of a datagram and ignores the whole of a longer one.
_STATUS_LIMIT = 4000
_SEND_TIMEOUT = 1.0  # seconds

_log = logging.getLogger(__name__)


class Notifier:
    """Tells the service manager how the agent is. Never raises; without a socket does nothing.

    `socket_path` is the value of NOTIFY_SOCKET: an absolute path, or `@name` for an abstract one.
    """

    def __init__(self, socket_path: str | None) -> None:
        self._address = _address(socket_path)

    def ready(self) -> None:
        """Start-up, or a reload, is finished."""
        self._send("READY=1")

    def status(self, text: str) -> None:
        """The line that `systemctl status` shows; it is made one line, and cut if too long."""
        line = " ".join(text.splitlines())
        self._send(f"STATUS={_cut(line, _STATUS_LIMIT)}")

    def reloading(self) -> None:
        """A reload begins; `ready()` ends it."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now}")

    def stopping(self) -> None:
        """The agent is shutting down."""
        self._send("STOPPING=1")

    def watchdog(self) -> None:
        """A sign of life for WatchdogSec=."""
        self._send("WATCHDOG=1")

    def extend_timeout(self, seconds: float) -> None:
        """Ask for `seconds` more, from now, to start or stop in."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1_000_000)}")

    def barrier(self) -> None:
        """Wait (at most a second) until all of this was read: what a process that has ended said
        can't be told apart from what a stranger says, and is dropped (sd_notify_barrier(3))."""
        reader, writer = os.pipe()
        with os.fdopen(reader, "rb") as ours:
            with os.fdopen(writer, "wb") as theirs:
                descriptor = theirs.fileno().to_bytes(4, sys.byteorder)
                self._send("BARRIER=1", [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor)])
            # The service manager closes its copy of the other end, and no other is left.
            select.select([ours], [], [], _SEND_TIMEOUT)

    def _send(self, message: str, passed: Sequence[tuple[int, int, bytes]] = ()) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(_SEND_TIMEOUT)
                sender.connect(self._address)
                sender.sendmsg([message.encode("utf-8", "replace")], passed)
        except OSError as error:
            _log.debug("the service manager could not be told %.20r: %s", message, error)


def watchdog_interval(environ: Mapping[str, str], pid: int) -> float | None:
    """How many seconds may pass between two signs of life: half of what the unit allows.

    None where process `pid` is not the one that the service manager watches
    (sd_watchdog_enabled(3): WATCHDOG_USEC and, if it is set, WATCHDOG_PID).
    """
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    allowed = environ.get("WATCHDOG_USEC", "")
    if not (allowed.isascii() and allowed.isdigit() and int(allowed) > 0):
        return None
    return int(allowed) / 1_000_000 / 2


def _address(socket_path: str | None) -> str | None:
    if not socket_path:
        return None
    if socket_path.startswith("@"):
        return "\0" + socket_path[1:]
    if not socket_path.startswith("/"):
        _log.debug("NOTIFY_SOCKET is of a kind that is not supported: %s", socket_path)
        return None
    return socket_path


def _cut(text: str, limit: int) -> str:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit:
        return text
    return encoded[:limit].decode("utf-8", "ignore") + "…"
