"""The one place that writes files: whole or not at all, private, and never through a symlink."""

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from monky_deployd.errors import FileError, Reason

TEMPORARY_PREFIX = ".new-"
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_PRIVATE_DIR = 0o700


def write_private(
    path: Path, content: bytes, mode: int = 0o600, *, group: int | None = None
) -> bool:
    """Put `content` at `path`, with exactly this mode under any umask; durable on return.

    A reader sees the old file or the new one, never a part. False, with the file untouched, if
    it had the same content and mode already. A symlink in its place is replaced, not followed.
    `group` (an id) is given to the file before it gets its name. Raises FileError.
    """
    with _failing(path, "be written"):
        if _holds(path, content, mode, group):
            return False
        temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name[:64]}-{secrets.token_hex(6)}")
        try:
            _write_new(temporary, content, mode, group)
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            raise
        fsync_dir(path.parent)
    return True


def make_private_dir(path: Path) -> None:
    """Make the directory `path`, 0700 under any umask, and its parents where they are missing.

    A mode that is too open is tightened. Raises FileError for a symlink, for something else in
    its place, and for a directory of another user.
    """
    with _failing(path, "be made"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir(mode=_PRIVATE_DIR)
        except FileExistsError:
            _check_directory(path)
        else:
            fsync_dir(path.parent)
        if stat.S_IMODE(path.lstat().st_mode) != _PRIVATE_DIR:
            path.chmod(_PRIVATE_DIR)


def read_regular(path: Path, *, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes. A symlink is not followed.

    Raises FileError, for a missing file too.
    """
    with _failing(path, "be read"):
        # O_NONBLOCK, so that a FIFO in the file's place can't hold the agent up.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise FileError(f"{path} is not a regular file")
            content = file.read(limit + 1)
    if len(content) > limit:
        raise FileError(f"{path} is larger than {limit} bytes")
    return content


def fsync_dir(path: Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(path: Path) -> None:
    """Remove a directory and all below it, following no symlink. Raises FileError."""
    with _failing(path, "be removed"), contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


@contextlib.contextmanager
def _failing(path: Path, verb: str) -> Iterator[None]:
    """Turn the system's refusal into a FileError that names `path`."""
    try:
        yield
    except OSError as error:
        raise file_error(path, verb, error) from error


def file_error(path: Path, verb: str, error: OSError) -> FileError:
    """The FileError for `path can't <verb>`; a full disk has a reason of its own."""
    if error.errno in _NO_SPACE:
        return FileError(
            f"{path} can't {verb}: {error.strerror}",
            remedy="free some space on that file system",
            reason=Reason.DISK,
        )
    words = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
    return FileError(f"{path} can't {verb}: {words}")


def _holds(path: Path, content: bytes, mode: int, group: int | None) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(status.st_mode) or stat.S_IMODE(status.st_mode) != mode:
        return False
    if status.st_size != len(content) or (group is not None and status.st_gid != group):
        return False
    return path.read_bytes() == content


def _write_new(path: Path, content: bytes, mode: int, group: int | None) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
        file.write(content)
        file.flush()
        if group is not None:
            os.fchown(descriptor, -1, group)
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)


def _check_directory(path: Path) -> None:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode) or not stat.S_ISDIR(status.st_mode):
        raise FileError(
            f"{path} is not a directory of the agent's own",
            remedy=f"move it away: mv {path} {path}.old",
        )
    if status.st_uid != os.geteuid():
        raise FileError(
            f"{path} belongs to user id {status.st_uid}, and the agent runs as {os.geteuid()}",
            remedy=f"chown {os.geteuid()} {path}",
        )
