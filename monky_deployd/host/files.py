"""The one place that writes files: whole or not at all, private, and never through a symlink.

All of it is synchronous, and durable on return. Names are looked up in directories that are held
open, so that a directory swapped for a symlink in between changes nothing.
"""

import contextlib
import errno
import os
import re
import secrets
import shlex
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from monky_deployd.errors import FileError, Reason

PRIVATE_DIR = 0o700

# A file or link that has not got its name yet: a crash leaves it behind, nothing else makes it.
_TEMPORARY = re.compile(r"\.new-[0-9a-f]{16}")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW

_NO_ACCESS = "check owner and mode of it and of the directories above: namei -l {path}"
_NO_DIRECTORY = "a directory is needed there, and a symbolic link to one is not followed"
_REMEDIES = {
    errno.ENOSPC: "free some space on that file system",
    errno.EDQUOT: "free some space, or raise the quota of the user who runs this",
    errno.EROFS: "the file system is mounted read-only, or the unit's ReadWritePaths= lacks it",
    errno.EACCES: _NO_ACCESS,
    errno.EPERM: _NO_ACCESS,
    errno.ELOOP: "a symbolic link is not followed here; put the file itself in its place",
    errno.ENOTDIR: _NO_DIRECTORY,
    errno.EISDIR: "a directory stands in the file's place; move it away: mv {path} {path}.old",
    errno.ENXIO: "a socket or device stands in the file's place; move it away",
    errno.EIO: "the disk may be failing: journalctl -k",
}
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


def write_private(
    path: Path, content: bytes, mode: int = 0o600, *, group: int | None = None
) -> bool:
    """Put `content` at `path`, with exactly this mode under any umask; durable on return.

    A reader sees the old file or the new one, never a part. False, with the file untouched, if
    it is ours and had the same content and mode already. A symlink in its place is replaced; one
    in its directory's place is refused. `group` (an id) is given to the file before it gets its
    name. Raises FileError.
    """
    with failing(path, "be written"), opened(path.parent, DIRECTORY) as directory:
        return write_at(directory, path.name, content, mode, group=group)


def write_at(
    directory: int, name: str, content: bytes, mode: int, *, group: int | None = None
) -> bool:
    """`write_private` for `name` in the open `directory`. Raises OSError."""
    if _holds(directory, name, content, mode, group):
        return False
    with _taking_the_name(directory, name) as temporary:
        create_at(directory, temporary, content, mode, group=group)
    return True


def create_at(
    directory: int, name: str, content: bytes, mode: int, *, group: int | None = None
) -> None:
    """A new file in the open `directory`, its content durable; its name not yet. Raises OSError."""
    with opened(name, _CREATE, parent=directory) as descriptor:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if group is not None:
            os.fchown(descriptor, -1, group)
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)


def replace_link(path: Path, target: str) -> None:
    """Make `path` a symlink to `target` in one step; durable on return. Raises FileError."""
    with (
        failing(path, "be written"),
        opened(path.parent, DIRECTORY) as directory,
        _taking_the_name(directory, path.name) as temporary,
    ):
        os.symlink(target, temporary, dir_fd=directory)


def make_private_dir(path: Path) -> None:
    """Make the directory `path`, 0700 under any umask, and its parents where they are missing.

    A mode that is too open is tightened. Raises FileError for a symlink, for something else in
    its place, and for a directory of another user.
    """
    with failing(path, "be made"):
        if not path.parent.is_dir():
            make_private_dir(path.parent)
        with opened(path.parent, os.O_RDONLY | os.O_DIRECTORY) as parent:
            make_dir_at(parent, path.name, PRIVATE_DIR, path)


def make_dir_at(parent: int, name: str, mode: int, shown: Path) -> None:
    """`name` in the open `parent` is a directory of ours with exactly this mode, made or mended.

    `shown` is its whole path, for messages. Raises FileError and OSError.
    """
    try:
        os.mkdir(name, PRIVATE_DIR, dir_fd=parent)
        os.fsync(parent)
    except FileExistsError:
        pass
    # O_PATH, because a umask may have left it without any permission, even to be opened.
    with opened(name, os.O_PATH | os.O_NOFOLLOW, parent=parent) as descriptor:
        status = os.fstat(descriptor)
        _check_directory(status, shown)
        if stat.S_IMODE(status.st_mode) != mode:
            # fchmod takes no O_PATH descriptor.
            Path(f"/proc/self/fd/{descriptor}").chmod(mode)


def read_regular(path: Path, *, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes. A symlink is not followed.

    Raises FileError, for a missing file too.
    """
    return read_with_status(path, limit=limit)[0]


def read_with_status(path: Path, *, limit: int) -> tuple[bytes, os.stat_result]:
    """`read_regular`, with the status of the very file that was read. Raises FileError."""
    # O_NONBLOCK, so that a FIFO in the file's place can't hold the agent up.
    with failing(path, "be read"), opened(path, _READ) as descriptor:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileError(f"{path} is not a regular file", remedy="put a file in its place")
        content = _read(descriptor, limit + 1)
    if len(content) > limit:
        raise FileError(f"{path} is larger than {limit} bytes")
    return content, status


def rename_dir(path: Path, target: Path) -> None:
    """Give a directory another name beside its own; durable on return. Raises FileError."""
    with failing(target, "be written"):
        path.rename(target)
        fsync_dir(target.parent)


def fsync_dir(path: Path) -> None:
    """Make the names in a directory durable. Raises FileError."""
    with failing(path, "be written"), opened(path, DIRECTORY) as descriptor:
        os.fsync(descriptor)


def remove_tree(path: Path) -> None:
    """Remove `path` and, if it is a directory, all below it, following no symlink.

    A missing one is no error. Raises FileError.
    """
    with failing(path, "be removed"), contextlib.suppress(FileNotFoundError):
        try:
            if stat.S_ISDIR(path.lstat().st_mode):
                shutil.rmtree(path)
            else:
                path.unlink()
        except PermissionError as error:
            raise FileError(
                f"{path} can't be removed: {error.strerror}",
                remedy=f"a container may have written there; as root: rm -r {_quoted(path)}",
            ) from error


def remove_leftovers(directory: Path) -> None:
    """Remove what a crash of a write left in `directory` (not below it). Raises FileError."""
    with failing(directory, "be cleaned"):
        for path in directory.iterdir():
            if _TEMPORARY.fullmatch(path.name):
                path.unlink()


@contextlib.contextmanager
def opened(path: Path | str, flags: int, *, parent: int | None = None) -> Iterator[int]:
    """A descriptor that no child inherits (PEP 446), closed at the end. Raises OSError."""
    descriptor = os.open(path, flags, 0o600, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def failing(path: Path, verb: str) -> Iterator[None]:
    """Turn the system's refusal into a FileError that names `path`."""
    try:
        yield
    except OSError as error:
        raise file_error(path, verb, error) from error


def file_error(path: Path, verb: str, error: OSError) -> FileError:
    """The FileError for `path can't <verb>`; a full disk has a reason of its own."""
    return FileError(
        f"{path} can't {verb}: {error.strerror or error}",
        remedy=_REMEDIES.get(error.errno or 0, "").format(path=_quoted(path)),
        reason=Reason.DISK if error.errno in _NO_SPACE else None,
    )


@contextlib.contextmanager
def _taking_the_name(directory: int, name: str) -> Iterator[str]:
    """A temporary name; what is made under it in the block replaces `name`, or goes away."""
    temporary = f".new-{secrets.token_hex(8)}"
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(_forget, directory, temporary)
        yield temporary
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        on_failure.pop_all()
    os.fsync(directory)


def _forget(directory: int, name: str) -> None:
    # The failure that led here is the one to report.
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=directory)


def _holds(directory: int, name: str, content: bytes, mode: int, group: int | None) -> bool:
    try:
        with opened(name, _READ, parent=directory) as descriptor:
            status = os.fstat(descriptor)
            return (
                stat.S_ISREG(status.st_mode)
                and stat.S_IMODE(status.st_mode) == mode
                and status.st_uid == os.geteuid()
                and group in (None, status.st_gid)
                and status.st_size == len(content)
                and _read(descriptor, len(content) + 1) == content
            )
    except OSError:
        # Missing, a symlink, or unreadable: the writing replaces it, or says why it can't.
        return False


def _read(descriptor: int, size: int) -> bytes:
    content = bytearray()
    while len(content) < size and (chunk := os.read(descriptor, size - len(content))):
        content += chunk
    return bytes(content)


def _check_directory(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise FileError(
            f"{path} is not a directory of the agent's own",
            remedy=f"move it away: mv {_quoted(path)} {_quoted(path)}.old",
        )
    if status.st_uid != os.geteuid():
        raise FileError(
            f"{path} belongs to user id {status.st_uid}, and the agent runs as {os.geteuid()}",
            remedy=f"run it as that user, or: chown {os.geteuid()} {_quoted(path)}",
        )


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
