"""Releases on disk: each one a whole directory, and `current`, a symlink to one of them."""

import contextlib
import logging
import re
import secrets
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from monky_deployd.domain.rendering import RenderedFile
from monky_deployd.errors import FileError
from monky_deployd.host.files import (
    failing,
    fsync_dir,
    make_private_dir,
    remove_leftovers,
    remove_tree,
    rename_dir,
    replace_link,
)
from monky_deployd.host.trees import mend_tree, write_tree

logger = logging.getLogger(__name__)

_RELEASE_ID = re.compile(r"[0-9]{1,16}-[0-9a-f]{12,64}")
_STAGING_PREFIX = ".staging-"
_REMOVED_PREFIX = ".removed-"
_DIRECTORY_NAME = "releases"


class Releases:
    """`<state_dir>/releases/<id>/` and the symlink `<state_dir>/current`. Raises FileError.

    Only the holder of the state directory's lock may call what changes releases or the symlink.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._root = state_dir / _DIRECTORY_NAME
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
        if _is_directory(target):
            for name in mend_tree(target, files):
                logger.warning(
                    "%s was not as it was rendered, and was written again", target / name
                )
            return target
        staging = self._root / f"{_STAGING_PREFIX}{secrets.token_hex(8)}"
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(_discard, staging)
            write_tree(staging, files)
            remove_tree(target)
            rename_dir(staging, target)
            on_failure.pop_all()
        return target

    @contextlib.contextmanager
    def scratch(self, files: Mapping[str, RenderedFile]) -> Iterator[Path]:
        """A directory with these files that nobody takes for a release, and that goes afterwards.

        Nobody needs the lock for it. What a crash leaves of it, the next start removes.
        """
        directory = self._root / f"{_STAGING_PREFIX}{secrets.token_hex(8)}"
        try:
            write_tree(directory, files)
            yield directory
        finally:
            _discard(directory)

    def current(self) -> str | None:
        """The id of the release that `current` names, None where there is none.

        A release that is gone counts as none and is logged. Raises FileError, with the remedy,
        for a link to elsewhere and for anything but a link.
        """
        release_id = self._linked()
        if release_id is not None and not _is_directory(self.path(release_id)):
            logger.warning("%s points to release %s, which is gone", self.current_link, release_id)
            return None
        return release_id

    def switch(self, release_id: str) -> None:
        """Make `current` name this release, in one step and durable.

        Raises FileError where `current` is not the agent's own link: see `current`.
        """
        if not _is_directory(self.path(release_id)):
            raise FileError(f"release {release_id} is not on disk")
        # A crash may have come between the naming of the release and its becoming durable.
        fsync_dir(self._root)
        if self._linked() == release_id:
            fsync_dir(self._state_dir)
        else:
            replace_link(self.current_link, f"{_DIRECTORY_NAME}/{release_id}")

    def ids(self) -> list[str]:
        """The ids of all releases on disk, sorted by generation."""
        with failing(self._root, "be read"):
            names = [path.name for path in self._root.iterdir() if _is_directory(path)]
        found = [name for name in names if _RELEASE_ID.fullmatch(name)]
        return sorted(found, key=lambda name: (int(name.split("-")[0]), name))

    def collect(self, keep: Collection[str]) -> list[str]:
        """Remove every release but the current one and those in `keep`. The removed ids.

        Each loses its name first, so that no half-removed one is ever taken for a release.
        """
        removed = self.superfluous(keep)
        for name in removed:
            aside = self._root / f"{_REMOVED_PREFIX}{secrets.token_hex(8)}"
            rename_dir(self._root / name, aside)
            _discard(aside)
        return removed

    def superfluous(self, keep: Collection[str]) -> list[str]:
        """The ids of what `collect` would remove."""
        spared = {*keep, self._linked()}
        return [name for name in self.ids() if name not in spared]

    def sweep(self) -> None:
        """Remove what a crash left half-made; what can't be removed is logged."""
        with failing(self._state_dir, "be read"):
            directories = [path for path in self._state_dir.iterdir() if _is_directory(path)]
        for directory in (self._state_dir, *directories):
            with _only_logged():
                remove_leftovers(directory)
        for prefix in (_STAGING_PREFIX, _REMOVED_PREFIX):
            for path in self._root.glob(f"{prefix}*"):
                _discard(path)

    def _linked(self) -> str | None:
        """The id that the link `current` holds, whether that release is there or not."""
        link = self.current_link
        with failing(link, "be read"):
            try:
                is_link = stat.S_ISLNK(link.lstat().st_mode)
            except FileNotFoundError:
                return None
            if not is_link:
                raise FileError(
                    f"{link} is not a symbolic link", remedy=f"move it away: mv {link} {link}.old"
                )
            target = str(link.readlink())
        directory, _, release_id = target.partition("/")
        if directory != _DIRECTORY_NAME or not _RELEASE_ID.fullmatch(release_id):
            raise FileError(
                f"{link} points to {target!a}, which is no release of this agent's",
                remedy=f"remove it: rm {link}",
            )
        return release_id


def _is_directory(path: Path) -> bool:
    with failing(path, "be read"), contextlib.suppress(FileNotFoundError):
        return stat.S_ISDIR(path.lstat().st_mode)
    return False


def _discard(path: Path) -> None:
    """Remove what nobody looks at any more."""
    with _only_logged():
        remove_tree(path)


@contextlib.contextmanager
def _only_logged() -> Iterator[None]:
    """What stays behind is no reason to stop, but an operator should know of it."""
    try:
        yield
    except FileError as error:
        logger.warning("%s", error)
