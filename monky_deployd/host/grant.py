"""The grant's file: who may own it, with which mode, and whether it changed."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from monky_deployd.domain.grant import Grant, parse_grant
from monky_deployd.errors import FileError, GrantError, Reason
from monky_deployd.host.files import read_regular

_MAX_GRANT = 64 * 1024
_OWN_MODES = {0o600, 0o400}
_ROOTS_MODE = 0o640
_CREDENTIAL_NAME = "grant"


@dataclass(frozen=True)
class Identity:
    """Whom this process runs as."""

    uid: int
    gids: frozenset[int]

    @classmethod
    def current(cls) -> "Identity":
        """The effective user and all groups of this process."""
        return cls(os.geteuid(), frozenset({os.getegid(), *os.getgroups()}))


class GrantFile:
    """The grant at `path`, or, where systemd hands one over, the credential named `grant`."""

    def __init__(self, path: Path, credentials_directory: Path | None = None) -> None:
        credential = credentials_directory / _CREDENTIAL_NAME if credentials_directory else None
        self._is_credential = credential is not None and credential.exists()
        self.path = credential if self._is_credential and credential else path
        self._seen: tuple[int, ...] | None = None

    def load(self) -> Grant:
        """Read, check and parse the grant. Raises GrantError; the next `changed()` is from here."""
        self._seen = self._signature()
        return read_grant(self.path, Identity.current(), is_credential=self._is_credential)

    def changed(self) -> bool:
        """Whether the file is another one than at the last `load()`: one stat, nothing more."""
        return self._signature() != self._seen

    def _signature(self) -> tuple[int, ...] | None:
        try:
            status = self.path.lstat()
        except OSError:
            return None
        # The owner and mode count too: mending them is what makes a refused file usable.
        return (
            status.st_dev,
            status.st_ino,
            status.st_mtime_ns,
            status.st_size,
            status.st_mode,
            status.st_uid,
            status.st_gid,
        )


def read_grant(path: Path, me: Identity, *, is_credential: bool = False) -> Grant:
    """The grant in `path`. Raises GrantError: missing, unsafe (with the remedy), or no JWT."""
    try:
        status = path.lstat()
    except OSError as error:
        raise GrantError(
            f"there is no grant at {path}: {error.strerror}",
            remedy="install the kit's grant with `monky-deployd grant install`",
            reason=Reason.GRANT_MISSING,
        ) from error
    if not is_credential:
        check_permissions(path, status, me)
    try:
        content = read_regular(path, limit=_MAX_GRANT)
    except FileError as error:
        raise GrantError(error.cause, remedy=error.remedy, reason=Reason.GRANT_UNSAFE) from error
    try:
        return parse_grant(content.decode())
    except UnicodeDecodeError:
        raise GrantError(f"{path} is not text, so it holds no grant") from None


def check_permissions(path: Path, status: os.stat_result, me: Identity) -> None:
    """Raise GrantError (GRANT_UNSAFE) unless the file is one that only this agent can read."""
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        raise _unsafe(path, "is not a regular file", f"replace it: rm {path}")
    if status.st_uid == me.uid and mode in _OWN_MODES:
        return
    if status.st_uid == 0 and status.st_gid in me.gids and mode == _ROOTS_MODE:
        return
    if status.st_uid == me.uid:
        raise _unsafe(path, f"has mode {mode:04o}", f"chmod 0600 {path}")
    if status.st_uid != 0:
        raise _unsafe(
            path, f"belongs to user id {status.st_uid}", f"chown {me.uid} {path}; chmod 0600 {path}"
        )
    raise _unsafe(
        path,
        f"belongs to root with group id {status.st_gid} and mode {mode:04o}",
        f"chgrp monky-deployd {path}; chmod 0640 {path}",
    )


def _unsafe(path: Path, what: str, remedy: str) -> GrantError:
    return GrantError(f"the grant file {path} {what}", remedy=remedy, reason=Reason.GRANT_UNSAFE)
