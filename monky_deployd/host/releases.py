"""Releases on disk: each one a whole directory, and `current`, a symlink to one of them."""

import contextlib
import logging
import re
import secrets
import stat
from collections.abc import Collection, Mapping
from pathlib import Path

from monky_deployd.domain.rendering import RenderedFile
from monky_deployd.errors import FileError
from monky_deployd.host.files import (
    TEMPORARY_PREFIX,
    file_error,
    fsync_dir,
    make_private_dir,
    remove_tree,
    write_private,
)

logger = logging.getLogger(__name__)

_RELEASE_ID = re.compile(r"[0-9]{1,16}-[0-9a-f]{12,64}")
_STAGING_PREFIX = ".staging-"


class Releases:
    """`<state_dir>/releases/<id>/` and the symlink `<state_dir>/current`. Raises FileError."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._root = state_dir / "releases"
        self.current_link = state_dir / "current"
        make_private_dir(self._root)

    def path(self, release_id: str) -> Path:
        """The directory of a release, whether it is there or not."""
        if not _RELEASE_ID.fullmatch(release_id):
            raise FileError(f"{release_id!a} is not the id of a release")
        return self._root / release_id

    def stage(self, release_id: str, files: Mapping[str, RenderedFile]) -> Path:
        """Put a release on disk, whole and durable. Its directory.

        One that is there already is mended file by file, each in one step, because it may be
        the current one: at no moment is it missing.
        """
        target = self.path(release_id)
        if target.is_dir() and not target.is_symlink():
            for name, file in files.items():
                _write_below(target, name, file)
            return target
        staging = self._root / f"{_STAGING_PREFIX}{secrets.token_hex(6)}"
        try:
            make_private_dir(staging)
            for name, file in files.items():
                _write_below(staging, name, file)
            staging.rename(target)
            fsync_dir(self._root)
        except OSError as error:
            raise file_error(target, "be staged", error) from error
        finally:
            remove_tree(staging)
        return target

    def current(self) -> str | None:
        """The id of the release that `current` names, None where nothing was deployed yet."""
        try:
            target = self.current_link.readlink()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FileError(
                f"{self.current_link} is not a symbolic link",
                remedy=f"move it away: mv {self.current_link} {self.current_link}.old",
            ) from error
        if target.parent.name != "releases" or not _RELEASE_ID.fullmatch(target.name):
            raise FileError(
                f"{self.current_link} points to {target}, which is no release",
                remedy=f"remove it: rm {self.current_link}",
            )
        if not self.path(target.name).is_dir():
            logger.warning("%s points to %s, which is gone", self.current_link, target)
            return None
        return target.name

    def switch(self, release_id: str) -> None:
        """Make `current` name this release, in one step and durable."""
        if not self.path(release_id).is_dir():
            raise FileError(f"release {release_id} is not on disk")
        temporary = self._state_dir / f"{TEMPORARY_PREFIX}current-{secrets.token_hex(6)}"
        try:
            temporary.symlink_to(Path("releases") / release_id)
            temporary.rename(self.current_link)
            fsync_dir(self._state_dir)
        except OSError as error:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            raise file_error(self.current_link, "be switched", error) from error

    def ids(self) -> list[str]:
        """The ids of all releases on disk, sorted by generation."""
        names = [path.name for path in self._root.iterdir() if _RELEASE_ID.fullmatch(path.name)]
        return sorted(names, key=lambda name: (int(name.split("-")[0]), name))

    def collect(self, keep: Collection[str]) -> list[str]:
        """Remove every release but the current one and those in `keep`. The removed ids."""
        spared = {*keep, self.current()}
        removed = [name for name in self.ids() if name not in spared]
        for name in removed:
            remove_tree(self._root / name)
        return removed

    def sweep(self) -> None:
        """Remove what a crash left half-made."""
        for path in self._root.glob(f"{_STAGING_PREFIX}*"):
            remove_tree(path)
        for path in self._state_dir.rglob(f"{TEMPORARY_PREFIX}*"):
            if path.is_symlink() or path.is_file():
                path.unlink(missing_ok=True)


def _write_below(root: Path, name: str, file: RenderedFile) -> None:
    """Write one file of a release; no directory on the way may be a symlink."""
    directory = root
    for part in name.split("/")[:-1]:
        directory /= part
        _make_inner_dir(directory)
    write_private(root / name, file.content, file.mode)


def _make_inner_dir(path: Path) -> None:
    # Below the 0700 root. Open to all inside it, because a container that mounts it may not be
    # root, and it passes through no other directory of the host's.
    with contextlib.suppress(FileExistsError):
        try:
            path.mkdir(mode=0o755)
            path.chmod(0o755)
            fsync_dir(path.parent)
        except FileExistsError:
            raise
        except OSError as error:
            raise file_error(path, "be made", error) from error
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise FileError(f"{path} is not a directory of the release's own")
