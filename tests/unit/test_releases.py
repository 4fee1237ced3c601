"""Releases are whole or absent; `current` always names a whole one."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monky_deployd.domain.rendering import RenderedFile
from monky_deployd.errors import FileError
from monky_deployd.host.releases import Releases

OLD = "1-aaaaaaaaaaaaaaaa"
NEW = "2-bbbbbbbbbbbbbbbb"
FILES = {
    "compose.yaml": RenderedFile(b"services: {}"),
    ".env": RenderedFile(b'A="1"\n'),
    "conf/deep/app.conf": RenderedFile(b"x", 0o444),
}


class Crash(BaseException):
    """The process dies here."""


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    return Releases(tmp_path / "state")


def content_of(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(directory)): (path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
        for path in directory.rglob("*")
        if path.is_file()
    }


def is_whole(directory: Path) -> bool:
    return content_of(directory) == {name: (f.content, f.mode) for name, f in FILES.items()}


def test_a_release_is_staged_whole_and_private(releases: Releases) -> None:
    directory = releases.stage(NEW, FILES)
    assert is_whole(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    # A container that mounts the directory may not be root.
    assert stat.S_IMODE((directory / "conf").stat().st_mode) == 0o755
    assert releases.ids() == [NEW]


def test_nothing_is_current_before_the_first_switch(releases: Releases) -> None:
    assert releases.current() is None
    releases.stage(OLD, FILES)
    assert releases.current() is None
    releases.switch(OLD)
    assert releases.current() == OLD
    assert releases.current_link.readlink() == Path("releases") / OLD


def test_a_release_that_is_not_there_can_not_become_current(releases: Releases) -> None:
    with pytest.raises(FileError, match="not on disk"):
        releases.switch(NEW)


def test_staging_again_mends_what_somebody_changed_and_touches_nothing_else(
    releases: Releases,
) -> None:
    directory = releases.stage(NEW, FILES)
    before = (directory / ".env").stat().st_ino
    (directory / "compose.yaml").write_bytes(b"tampered")
    (directory / "conf/deep/app.conf").unlink()
    releases.stage(NEW, FILES)
    assert is_whole(directory)
    assert (directory / ".env").stat().st_ino == before


def test_a_symlink_on_the_way_is_not_followed(releases: Releases, tmp_path: Path) -> None:
    directory = releases.stage(NEW, {"compose.yaml": FILES["compose.yaml"]})
    outside = tmp_path / "outside"
    outside.mkdir()
    (directory / "conf").symlink_to(outside)
    with pytest.raises(FileError):
        releases.stage(NEW, FILES)
    assert list(outside.iterdir()) == []


def test_a_crash_at_any_step_leaves_whole_releases_and_converges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = 0
    while True:
        step += 1
        state = tmp_path / str(step)
        releases = Releases(state)
        releases.stage(OLD, FILES)
        releases.switch(OLD)
        crashed = _crash(monkeypatch, step, lambda: _deploy(releases))  # noqa: B023
        after = Releases(state)
        assert all(is_whole(after.path(name)) for name in after.ids())
        assert after.current() in {OLD, NEW}
        after.sweep()
        _deploy(after)
        assert after.current() == NEW
        left = {path.name for path in state.iterdir()} | {
            path.name for path in (state / "releases").iterdir()
        }
        assert left == {"releases", "current", OLD, NEW}
        if not crashed:
            break
    assert step > 20


def _deploy(releases: Releases) -> None:
    releases.stage(NEW, FILES)
    releases.switch(NEW)


def _crash(monkeypatch: pytest.MonkeyPatch, step: int, action: Callable[[], None]) -> bool:
    count = 0

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            # A dead process runs no clean-up either.
            if count >= step:
                raise Crash
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for owner, name in (
            (os, "open"),
            (os, "fsync"),
            (os, "fchmod"),
            (os, "mkdir"),
            (os, "unlink"),
            (os, "rmdir"),
            (os, "rename"),
            (os, "replace"),
            (os, "symlink"),
        ):
            patch.setattr(owner, name, failing(getattr(owner, name)))
        try:
            action()
        except Crash:
            return True
    return False


def test_collecting_spares_the_current_and_the_named_ones(releases: Releases) -> None:
    names = [f"{number}-{'a' * 16}" for number in (1, 2, 9, 10)]
    for name in names:
        releases.stage(name, FILES)
    releases.switch(names[0])
    assert releases.ids() == names
    assert releases.collect({names[3]}) == names[1:3]
    assert releases.ids() == [names[0], names[3]]


@pytest.mark.parametrize("name", ["../x", "x", "1-AAAAAAAAAAAA", "1-aaa", "", "1-aaaaaaaaaaaa/"])
def test_only_a_release_id_names_a_directory(releases: Releases, name: str) -> None:
    with pytest.raises(FileError, match="not the id of a release"):
        releases.path(name)


def test_a_dangling_current_counts_as_none(
    releases: Releases, caplog: pytest.LogCaptureFixture
) -> None:
    releases.current_link.symlink_to(Path("releases") / OLD)
    assert releases.current() is None
    assert "gone" in caplog.text


@pytest.mark.parametrize("target", ["/etc", "releases/..", "elsewhere"])
def test_a_foreign_current_is_refused_with_the_remedy(releases: Releases, target: str) -> None:
    releases.current_link.symlink_to(target)
    with pytest.raises(FileError, match="which is no release; remove it: rm "):
        releases.current()


def test_a_directory_in_the_place_of_current_is_refused(releases: Releases) -> None:
    releases.current_link.mkdir()
    with pytest.raises(FileError, match="not a symbolic link; move it away"):
        releases.current()
