"""Files are written whole, private, and never through a symlink, whatever fails on the way."""

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from monky_deployd.errors import FileError, Reason
from monky_deployd.host.files import (
    make_private_dir,
    read_regular,
    remove_leftovers,
    remove_tree,
    replace_link,
    write_private,
)
from tests.unit.dying import CALLS, dies_at, fails_with

MODES = [0o600, 0o444, 0o640, 0o755]
NOBODY = 65534
IS_ROOT = os.geteuid() == 0


@pytest.fixture(params=[0o000, 0o022, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def ordinary_user() -> Iterator[Path]:
    """A directory of a user without root's rights, who runs the test."""
    with tempfile.TemporaryDirectory() as directory:
        if IS_ROOT:
            os.chown(directory, NOBODY, NOBODY)
            os.setegid(NOBODY)
            os.seteuid(NOBODY)
        try:
            yield Path(directory)
        finally:
            if IS_ROOT:
                os.seteuid(0)
                os.setegid(0)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def names_in(path: Path) -> list[str]:
    return sorted(found.name for found in path.iterdir())


@pytest.mark.parametrize("mode", MODES, ids=oct)
def test_a_new_file_has_exactly_its_mode(tmp_path: Path, umask: int, mode: int) -> None:
    assert write_private(tmp_path / "f", b"content", mode) is True
    assert mode_of(tmp_path / "f") == mode
    assert (tmp_path / "f").read_bytes() == b"content"
    assert names_in(tmp_path) == ["f"]


@pytest.mark.parametrize("content", [b"", b"content"])
def test_the_same_content_is_not_written_again(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "f"
    write_private(path, content)
    before = path.stat()
    assert write_private(path, content) is False
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(
    ("content", "mode"), [(b"other!!", 0o600), (b"longer than content", 0o600), (b"content", 0o400)]
)
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


@pytest.mark.skipif(not IS_ROOT, reason="only root gives files away")
def test_the_same_content_of_another_user_is_made_ours(tmp_path: Path) -> None:
    write_private(tmp_path / "f", b"content")
    os.chown(tmp_path / "f", NOBODY, NOBODY)
    assert write_private(tmp_path / "f", b"content") is True
    assert (tmp_path / "f").stat().st_uid == os.geteuid()


def test_a_file_that_its_owner_can_not_read_is_replaced(ordinary_user: Path) -> None:
    write_private(ordinary_user / "f", b"content", 0o000)
    assert write_private(ordinary_user / "f", b"content") is True
    assert (ordinary_user / "f").read_bytes() == b"content"


def test_a_symlink_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    write_private(victim, b"content")
    (tmp_path / "f").symlink_to(victim)
    assert write_private(tmp_path / "f", b"content") is True
    assert not (tmp_path / "f").is_symlink()
    assert (tmp_path / "f").stat().st_ino != victim.stat().st_ino


def test_a_fifo_in_the_place_of_a_file_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f", 0o600)
    assert write_private(tmp_path / "f", b"") is True
    assert (tmp_path / "f").is_file()


def test_a_symlink_in_the_directorys_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "d").symlink_to("elsewhere")
    with pytest.raises(FileError, match=r"Not a directory; .*symbolic link"):
        write_private(tmp_path / "d" / "f", b"content")
    assert names_in(tmp_path / "elsewhere") == []


def test_a_directory_in_the_files_place_is_named_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "a file's name"
    path.mkdir()
    with pytest.raises(FileError, match=r"Is a directory; .*mv '") as caught:
        write_private(path, b"content")
    assert caught.value.reason is Reason.STATE_UNUSABLE
    assert names_in(tmp_path) == ["a file's name"]


def test_a_crash_at_any_step_leaves_the_old_file_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, step, died = tmp_path / "f", 0, True
    while died:
        step += 1
        write_private(path, b"the old content", 0o600)
        died = dies_at(monkeypatch, step, lambda: write_private(path, b"the new content", 0o400))
        seen = (path.read_bytes(), mode_of(path))
        assert seen in {(b"the old content", 0o600), (b"the new content", 0o400)}
        write_private(path, b"the new content", 0o400)
        remove_leftovers(tmp_path)
        assert path.read_bytes() == b"the new content"
        assert names_in(tmp_path) == ["f"]
    assert step > 7


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT], ids=os.strerror)
@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_full_disk_leaves_the_old_file_and_has_its_own_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    write_private(tmp_path / "f", b"old")

    def write_to_full_disk() -> None:
        with pytest.raises(FileError, match=f"f can't be written: {os.strerror(code)}; free some"):
            write_private(tmp_path / "f", b"new")

    assert fails_with(monkeypatch, call, code, write_to_full_disk) == 1
    assert names_in(tmp_path) == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


def test_the_reason_of_a_full_disk_is_disk_and_of_others_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for code, reason in {errno.ENOSPC: Reason.DISK, errno.EIO: Reason.STATE_UNUSABLE}.items():

        def write(reason: Reason = reason) -> None:
            with pytest.raises(FileError) as caught:
                write_private(tmp_path / "f", b"new")
            assert caught.value.reason is reason

        fails_with(monkeypatch, "write", code, write)


def test_a_link_is_replaced_in_one_step(tmp_path: Path) -> None:
    for target in ("one", "two"):
        replace_link(tmp_path / "link", target)
        assert (tmp_path / "link").readlink() == Path(target)
    assert names_in(tmp_path) == ["link"]


def test_a_directory_and_its_missing_parents_are_private(ordinary_user: Path, umask: int) -> None:
    path = ordinary_user / "a" / "b"
    make_private_dir(path)
    assert (mode_of(path.parent), mode_of(path)) == (0o700, 0o700)


@pytest.mark.parametrize("mode", [0o755, 0o000, 0o2770], ids=oct)
def test_a_wrong_mode_is_mended_and_the_parent_left_alone(ordinary_user: Path, mode: int) -> None:
    path = ordinary_user / "d"
    path.mkdir()
    path.chmod(mode)
    ordinary_user.chmod(0o755)
    make_private_dir(path)
    assert mode_of(path) == 0o700
    assert mode_of(ordinary_user) == 0o755


@pytest.mark.skipif(not IS_ROOT, reason="only root gives directories away")
def test_a_directory_of_another_user_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "d"
    path.mkdir(mode=0o755)
    os.chown(path, 12345, -1)
    with pytest.raises(FileError, match=f"belongs to user id 12345.*chown {os.geteuid()} "):
        make_private_dir(path)
    assert mode_of(path) == 0o755


@pytest.mark.parametrize("kind", ["symlink", "dangling", "file"])
def test_something_else_in_a_directorys_place_is_refused(tmp_path: Path, kind: str) -> None:
    path, elsewhere = tmp_path / "d", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    if kind == "file":
        path.touch()
    else:
        path.symlink_to("elsewhere" if kind == "symlink" else "nowhere")
    with pytest.raises(FileError, match="not a directory of the agent's own; move it away: mv "):
        make_private_dir(path)
    assert mode_of(elsewhere) == 0o755


def test_a_directory_that_may_not_be_made_says_why(ordinary_user: Path) -> None:
    ordinary_user.chmod(0o500)
    with pytest.raises(FileError, match=r"d can't be made: Permission denied; .*namei -l"):
        make_private_dir(ordinary_user / "d")


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
        ".": "not a regular file",
    }.items():
        with pytest.raises(FileError, match=words):
            read_regular(tmp_path / name, limit=4)


def test_a_tree_is_removed_and_no_symlink_in_it_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "f").touch()
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "d" / "e" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    for name in ("d", "link", "absent"):
        remove_tree(tmp_path / name)
    assert names_in(tmp_path) == ["kept"]
    assert names_in(tmp_path / "kept") == ["f"]


def test_what_another_user_left_in_a_tree_is_named_with_the_remedy(ordinary_user: Path) -> None:
    (ordinary_user / "d").mkdir()
    (ordinary_user / "d" / "f").touch()
    (ordinary_user / "d").chmod(0o500)
    with pytest.raises(FileError, match=r"d can't be removed: Permission denied; .*rm -r "):
        remove_tree(ordinary_user / "d")
    (ordinary_user / "d").chmod(0o700)


def test_only_leftovers_of_our_own_are_removed(tmp_path: Path) -> None:
    kept = [".new-", ".new-config", ".new-0123456789abcdeg", "x.new-0123456789abcdef"]
    for name in (*kept, ".new-0123456789abcdef"):
        (tmp_path / name).touch()
    (tmp_path / ".new-fedcba9876543210").symlink_to("nowhere")
    remove_leftovers(tmp_path)
    assert names_in(tmp_path) == sorted(kept)


def test_no_descriptor_is_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def fail() -> None:
        with pytest.raises(FileError):
            write_private(tmp_path / "f", b"new")

    before = open_descriptors()
    for call in CALLS:
        if call in {"write", "fsync", "rename"}:
            fails_with(monkeypatch, call, errno.EIO, fail)
    make_private_dir(tmp_path / "a" / "b")
    write_private(tmp_path / "a" / "b" / "f", b"x")
    read_regular(tmp_path / "a" / "b" / "f", limit=1)
    assert open_descriptors() == before
