"""One agent for one state directory: a lock that the kernel gives back when its holder dies."""

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from monky_deployd.errors import LockedError
from monky_deployd.host.files import failing, opened

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK


class StateLock:
    """Holds `<state_dir>/lock` while used with `with`; no child inherits it.

    Entering raises LockedError, with the holder's pid, where another agent works there, and
    FileError where the lock can't be taken at all.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "lock"
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with failing(self._path, "be locked"), contextlib.ExitStack() as on_failure:
            descriptor = on_failure.enter_context(opened(self._path, _FLAGS))
            os.fchmod(descriptor, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._locked_by(descriptor) from None
            _leave_pid(descriptor)
            self._held = on_failure.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.close()

    def _locked_by(self, descriptor: int) -> LockedError:
        pid = os.pread(descriptor, 16, 0).strip()
        holder = f" (pid {int(pid)})" if pid.isdigit() else ""
        return LockedError(
            f"another monky-deployd{holder} works on {self._path.parent}",
            remedy="`systemctl reload monky-deployd` makes it reconcile at once",
        )


def _leave_pid(descriptor: int) -> None:
    # For people; the lock itself is the kernel's. A full disk must not keep the agent from
    # starting and saying so.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
