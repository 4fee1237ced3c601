"""The grant's file: who may own it, with which mode, and whether it changed."""

import grp
import os
import pwd
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path

from monky_deployd.domain.grant import INSTALL, Grant, parse_grant
from monky_deployd.errors import FileError, GrantError, Reason
from monky_deployd.host.files import read_with_status

_MAX_GRANT = 64 * 1024
_OWN_MODES = {0o600, 0o400}
_ROOTS_MODE = 0o640
_CREDENTIAL_NAME = "grant"


@dataclass(frozen=True)
class Identity:
    """Whom a grant file must be for: a user, and the groups in which nobody else is."""

    uid: int
    gids: frozenset[int]

    @classmethod
    def current(cls) -> "Identity":
        """The effective user and group of this process; its other groups have other members."""
        return cls(os.geteuid(), frozenset({os.getegid()}))


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
        content, status = read_with_status(path, limit=_MAX_GRANT)
    except FileError as error:
        raise _unreadable(path, me, error, is_credential=is_credential) from error
    if not is_credential:
        check_permissions(path, status, me)
    try:
        return parse_grant(content.decode())
    except UnicodeDecodeError:
        raise GrantError(
            f"{path} is not UTF-8 text, so it holds no grant",
            remedy="Windows tools may have written it as UTF-16: " + INSTALL,
        ) from None
    except GrantError as error:
        raise GrantError(f"{path}: {error.cause}", remedy=error.remedy) from None


def check_permissions(path: Path, status: os.stat_result, me: Identity) -> None:
    """Raise GrantError (GRANT_UNSAFE) unless the file is one that only this agent can read.

    That is: the agent's own with mode 0600 or 0400, or root's with the agent's group and 0640.
    """
    mode, shown = stat.S_IMODE(status.st_mode), shlex.quote(str(path))
    roots_for_us = status.st_uid == 0 and status.st_gid in me.gids
    if not stat.S_ISREG(status.st_mode):
        raise _unsafe(path, "is not a regular file", f"remove it (rm {shown}) and {INSTALL}")
    if status.st_uid == me.uid and mode in _OWN_MODES:
        return
    if roots_for_us and mode == _ROOTS_MODE:
        return
    if roots_for_us and me.uid != 0:
        raise _unsafe(path, f"has mode {mode:04o}", f"chmod 0640 {shown}")
    if status.st_uid == me.uid:
        raise _unsafe(path, f"has mode {mode:04o}", f"chmod 0600 {shown}")
    owner = f"belongs to {_user(status.st_uid)}:{_group(status.st_gid)} with mode {mode:04o}"
    if status.st_uid == 0:
        group = _group(max(me.gids))
        raise _unsafe(path, owner, f"chown root:{group} {shown} && chmod 0640 {shown}")
    raise _unsafe(path, owner, f"chown {_user(me.uid)} {shown} && chmod 0600 {shown}")


def _unreadable(path: Path, me: Identity, error: FileError, *, is_credential: bool) -> GrantError:
    """Why the grant can't be read: missing, unsafe, or what the system says."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return GrantError(
            f"there is no grant at {path}", remedy=INSTALL, reason=Reason.GRANT_MISSING
        )
    except OSError:
        return GrantError(error.cause, remedy=error.remedy, reason=Reason.GRANT_UNSAFE)
    if not is_credential:
        check_permissions(path, status, me)
    too_large = status.st_size > _MAX_GRANT
    return GrantError(
        error.cause,
        remedy=INSTALL if too_large else error.remedy,
        reason=Reason.GRANT_MALFORMED if too_large else Reason.GRANT_UNSAFE,
    )


def _unsafe(path: Path, what: str, remedy: str) -> GrantError:
    return GrantError(f"the grant file {path} {what}", remedy=remedy, reason=Reason.GRANT_UNSAFE)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
