"""Files are written whole, private, and never through a symlink, whatever fails on the way."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monky_deployd.errors import FileError, Reason
from monky_deployd.host import files
from monky_deployd.host.files import make_private_dir, read_regular, write_private

MODES = [0o600, 0o444, 0o640, 0o755]


class Crash(BaseException):
    """The process dies here."""


@pytest.fixture(params=[0o000, 0o022, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def crash_at(monkeypatch: pytest.MonkeyPatch, step: int, error: BaseException) -> list[str]:
    """Let the `step`-th file system call of the module under test raise. The calls seen."""
    seen: list[str] = []

    def failing(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            if len(seen) == step:
                raise error
            return real(*args, **kwargs)

        return call

    for module, name in (
        (os, "open"),
        (os, "fchmod"),
        (os, "fsync"),
        (Path, "replace"),
    ):
        monkeypatch.setattr(module, name, failing(name, getattr(module, name)))
    return seen


@pytest.mark.parametrize("mode", MODES, ids=oct)
def test_a_new_file_has_exactly_its_mode(tmp_path: Path, umask: int, mode: int) -> None:
    assert write_private(tmp_path / "f", b"content", mode) is True
    assert mode_of(tmp_path / "f") == mode
    assert (tmp_path / "f").read_bytes() == b"content"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_the_same_content_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_private(path, b"content")
    before = path.stat()
    assert write_private(path, b"content") is False
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(("content", "mode"), [(b"other!!", 0o600), (b"content", 0o400)])
def test_other_content_or_another_mode_is_written(
    tmp_path: Path, content: bytes, mode: int
) -> None:
    write_private(tmp_path / "f", b"content")
    assert write_private(tmp_path / "f", content, mode) is True
    assert ((tmp_path / "f").read_bytes(), mode_of(tmp_path / "f")) == (content, mode)


def test_a_group_is_given(tmp_path: Path) -> None:
    group = os.getegid()
    write_private(tmp_path / "f", b"x", 0o640, group=group)
    assert (tmp_path / "f").stat().st_gid == group
    assert write_private(tmp_path / "f", b"x", 0o640, group=group) is False


def test_a_symlink_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"content")
    (tmp_path / "f").symlink_to(victim)
    assert write_private(tmp_path / "f", b"content") is True
    assert not (tmp_path / "f").is_symlink()
    assert (tmp_path / "f").stat().st_ino != victim.stat().st_ino


def test_a_crash_at_any_step_leaves_the_old_file_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, step = tmp_path / "f", 0
    while True:
        step += 1
        write_private(path, b"old", 0o600)
        with monkeypatch.context() as patch:
            seen = crash_at(patch, step, Crash())
            try:
                write_private(path, b"new", 0o600)
            except Crash:
                assert path.read_bytes() in {b"old", b"new"}
            else:
                break
        assert write_private(path, b"new", 0o600) in {True, False}
        assert path.read_bytes() == b"new"
    assert {"open", "fchmod", "fsync", "replace"} <= set(seen)
    assert step > 4


def test_a_full_disk_leaves_the_old_file_and_has_its_own_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_private(tmp_path / "f", b"old")
    with monkeypatch.context() as patch:

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(files.os, "fsync", full)
        with pytest.raises(FileError, match="No space left on device") as caught:
            write_private(tmp_path / "f", b"new")
    assert caught.value.reason is Reason.DISK
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


def test_a_directory_is_private_and_its_parents_are_made(tmp_path: Path, umask: int) -> None:
    if umask == 0o777:
        (tmp_path / "a").mkdir(mode=0o700)
        (tmp_path / "a").chmod(0o700)
    make_private_dir(tmp_path / "a" / "b")
    assert mode_of(tmp_path / "a" / "b") == 0o700
    (tmp_path / "a" / "b").chmod(0o755)
    make_private_dir(tmp_path / "a" / "b")
    assert mode_of(tmp_path / "a" / "b") == 0o700


def test_a_directory_of_another_user_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "d"
    path.mkdir()
    os.chown(path, 12345, -1)
    with pytest.raises(FileError, match=f"belongs to user id 12345.*chown {os.geteuid()} "):
        make_private_dir(path)


@pytest.mark.parametrize("kind", ["symlink", "file"])
def test_something_else_in_a_directorys_place_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "d"
    if kind == "symlink":
        (tmp_path / "elsewhere").mkdir()
        path.symlink_to("elsewhere")
    else:
        path.touch()
    with pytest.raises(FileError, match="not a directory of the agent's own; move it away"):
        make_private_dir(path)


def test_only_a_regular_file_of_bounded_size_is_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("f")
    os.mkfifo(tmp_path / "fifo")
    assert read_regular(tmp_path / "f", limit=5) == b"12345"
    for name, words in {
        "f": "larger than 4 bytes",
        "link": "symbolic link",
        "fifo": "not a regular file",
        "absent": "No such file",
        ".": "not a regular file|Is a directory",
    }.items():
        with pytest.raises(FileError, match=words):
            read_regular(tmp_path / name, limit=4)
