"""A directory full of rendered files: written new, or mended in place, durable on return.

Each directory is opened in its parent and never through a symlink, so that nobody who can write
to one of them (a container that mounts it) leads the agent elsewhere.
"""

import os
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from monky_deployd.domain.paths import safe_relative_path
from monky_deployd.domain.rendering import RenderedFile
from monky_deployd.host.files import (
    DIRECTORY,
    PRIVATE_DIR,
    create_at,
    failing,
    make_dir_at,
    make_private_dir,
    opened,
    write_at,
)

# Below a 0700 directory. Open to all, because a container that mounts it may not be root.
_INNER_DIR = 0o755

_Tree = dict[str, "RenderedFile | _Tree"]
_Put = Callable[[int, str, RenderedFile], bool]


def write_tree(path: Path, files: Mapping[str, RenderedFile]) -> None:
    """Make the new directory `path` (0700) with these files, named by relative path.

    Raises FileError, and ValueError for a name that is no safe relative path.
    """
    tree = _nested(files)
    make_private_dir(path)
    with failing(path, "be written"), opened(path, DIRECTORY) as directory:
        _fill(directory, tree, path, _create)


def mend_tree(path: Path, files: Mapping[str, RenderedFile]) -> list[str]:
    """Make the files below `path` what they should be, each in one step; which ones were not.

    What is right already isn't touched, and neither is what isn't named here: it may be the
    agent's own record of the release, or a container's data. Raises as `write_tree`.
    """
    with failing(path, "be mended"), opened(path.parent, DIRECTORY) as parent:
        make_dir_at(parent, path.name, PRIVATE_DIR, path)
        with opened(path.name, DIRECTORY, parent=parent) as directory:
            return _fill(directory, _nested(files), path, _replace)


def _nested(files: Mapping[str, RenderedFile]) -> _Tree:
    tree: _Tree = {}
    for name, file in files.items():
        *parents, last = safe_relative_path(name).split("/")
        node = tree
        for part in parents:
            inner = node.setdefault(part, {})
            if isinstance(inner, RenderedFile):
                raise ValueError(f"{name!a} lies below another file")
            node = inner
        if last in node:
            raise ValueError(f"{name!a} is a directory of another file's")
        node[last] = file
    return tree


def _fill(directory: int, tree: _Tree, shown: Path, put: _Put) -> list[str]:
    """Put `tree` into the open `directory`; the relative paths of what had to be written."""
    written: list[str] = []
    for name, node in sorted(tree.items()):
        if isinstance(node, RenderedFile):
            with failing(shown / name, "be written"):
                written += [name] if put(directory, name, node) else []
            continue
        _make_way(directory, name, for_directory=True)
        make_dir_at(directory, name, _INNER_DIR, shown / name)
        with opened(name, DIRECTORY, parent=directory) as inner:
            below = _fill(inner, node, shown / name, put)
        written += [f"{name}/{path}" for path in below]
    if written:
        os.fsync(directory)
    return written


def _create(directory: int, name: str, file: RenderedFile) -> bool:
    create_at(directory, name, file.content, file.mode)
    return True


def _replace(directory: int, name: str, file: RenderedFile) -> bool:
    # dockerd makes a directory where the file of a bind mount was missing.
    _make_way(directory, name, for_directory=False)
    return write_at(directory, name, file.content, file.mode)


def _make_way(directory: int, name: str, *, for_directory: bool) -> None:
    """Remove what is of the wrong type: a directory for a file, anything else for a directory."""
    try:
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if for_directory and not stat.S_ISDIR(mode):
        os.unlink(name, dir_fd=directory)
    elif not for_directory and stat.S_ISDIR(mode):
        shutil.rmtree(name, dir_fd=directory)
