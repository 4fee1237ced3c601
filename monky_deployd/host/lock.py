"""One agent for one state directory: a lock that the kernel gives back when its holder dies."""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from monky_deployd.errors import LockedError
from monky_deployd.host.files import file_error


class StateLock:
    """Holds `<state_dir>/lock` while used with `with`. A second holder gets LockedError."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "lock"
        self._descriptor = -1

    def __enter__(self) -> Self:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._descriptor = os.open(self._path, flags, 0o600)
        except OSError as error:
            raise file_error(self._path, "be opened", error) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            raise LockedError(
                f"another monky-deployd (pid {holder or 'unknown'}) works on {self._path.parent}",
                remedy="`systemctl reload monky-deployd` makes it reconcile at once",
            ) from None
        # The pid is for people; the lock itself is the kernel's.
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)
