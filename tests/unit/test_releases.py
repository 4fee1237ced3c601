"""Releases are whole or absent; `current` always names a whole one."""

import errno
import os
import stat
from pathlib import Path

import pytest

from monky_deployd.domain.rendering import RenderedFile
from monky_deployd.errors import FileError, Reason
from monky_deployd.host import trees
from monky_deployd.host.files import make_dir_at
from monky_deployd.host.releases import Releases
from tests.unit.dying import dies_at, fails_with

OLD = "1-aaaaaaaaaaaaaaaa"
NEW = "2-bbbbbbbbbbbbbbbb"
FILES = {
    "compose.yaml": RenderedFile(b"services: {}"),
    ".env": RenderedFile(b'A="1"\n'),
    "conf/deep/app.conf": RenderedFile(b"x", 0o444),
}


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    return Releases(tmp_path / "state")


def content_of(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(directory)): (path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
        for path in directory.rglob("*")
        if path.is_file()
    }


def content_of_files() -> dict[str, tuple[bytes, int]]:
    return {name: (file.content, file.mode) for name, file in FILES.items()}


def is_whole(directory: Path) -> bool:
    return content_of(directory) == content_of_files()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


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


def test_staging_again_leaves_the_agents_records_and_a_containers_data_alone(
    releases: Releases, caplog: pytest.LogCaptureFixture
) -> None:
    directory = releases.stage(NEW, FILES)
    (directory / "conf" / "data").mkdir()
    (directory / "conf" / "data" / "db").write_bytes(b"data")
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    releases.stage(NEW, FILES)
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*")} == before
    assert caplog.text == ""


def test_what_was_mended_is_named_and_its_content_is_not(
    releases: Releases, caplog: pytest.LogCaptureFixture
) -> None:
    directory = releases.stage(NEW, FILES)
    (directory / "conf/deep/app.conf").chmod(0o644)
    releases.stage(NEW, FILES)
    assert f"{directory}/conf/deep/app.conf was not as it was rendered" in caplog.text
    assert len(caplog.records) == 1


@pytest.mark.parametrize("mode", [0o000, 0o777], ids=oct)
def test_modes_do_not_depend_on_the_umask(releases: Releases, mode: int) -> None:
    before = os.umask(mode)
    try:
        directory = releases.stage(NEW, FILES)
    finally:
        os.umask(before)
    assert is_whole(directory)
    assert {str(p.relative_to(directory)): mode_of(p) for p in directory.rglob("*/")} == {
        "conf": 0o755,
        "conf/deep": 0o755,
    }
    (directory / "conf").chmod(0o700)
    directory.chmod(0o755)
    releases.stage(NEW, FILES)
    assert (mode_of(directory), mode_of(directory / "conf")) == (0o700, 0o755)


def test_a_symlink_on_the_way_is_replaced_and_not_followed(
    releases: Releases, tmp_path: Path
) -> None:
    directory = releases.stage(NEW, {"compose.yaml": FILES["compose.yaml"]})
    outside = tmp_path / "outside"
    outside.mkdir()
    (directory / "conf").symlink_to(outside)
    releases.stage(NEW, FILES)
    assert is_whole(directory)
    assert list(outside.iterdir()) == []


def test_a_directory_swapped_for_a_symlink_meanwhile_is_not_followed(
    releases: Releases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()

    def swap(parent: int, name: str, mode: int, shown: Path) -> None:
        make_dir_at(parent, name, mode, shown)
        if name == "deep":
            os.rmdir(name, dir_fd=parent)
            os.symlink(outside, name, dir_fd=parent)

    monkeypatch.setattr(trees, "make_dir_at", swap)
    with pytest.raises(FileError, match="Not a directory"):
        releases.stage(NEW, FILES)
    assert list(outside.iterdir()) == []
    assert releases.ids() == []


def test_a_directory_in_a_files_place_is_replaced(releases: Releases) -> None:
    """dockerd makes one where the source of a bind mount is missing."""
    directory = releases.stage(NEW, FILES)
    (directory / "conf/deep/app.conf").unlink()
    (directory / "conf/deep/app.conf/inner").mkdir(parents=True)
    releases.stage(NEW, FILES)
    assert is_whole(directory)


@pytest.mark.parametrize("kind", ["file", "symlink"])
def test_something_else_in_a_releases_place_is_replaced(
    releases: Releases, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "outside").mkdir()
    if kind == "file":
        releases.path(NEW).touch()
    else:
        releases.path(NEW).symlink_to(tmp_path / "outside")
    assert releases.ids() == []
    assert is_whole(releases.stage(NEW, FILES))
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "compose.yaml/x", "conf"])
def test_a_name_that_leads_elsewhere_is_refused(
    releases: Releases, tmp_path: Path, name: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=r"absolute|'\.\.' part|below another file|is a directory"):
        releases.stage(NEW, {**FILES, name: RenderedFile(b"x")})
    assert sorted(tmp_path.rglob("*")) == before


def test_all_of_a_release_is_durable_before_it_gets_its_name(
    releases: Releases, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[int | str] = []
    fsync, rename = os.fsync, os.rename

    def noting_fsync(descriptor: int) -> None:
        fsync(descriptor)
        events.append(os.fstat(descriptor).st_ino)

    def noting_rename(source: Path, target: Path) -> None:
        rename(source, target)
        events.append("named")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", noting_fsync)
        patch.setattr(os, "rename", noting_rename)
        directory = releases.stage(NEW, FILES)
    named = events.index("named")
    assert {path.stat().st_ino for path in [directory, *directory.rglob("*")]} <= {*events[:named]}
    assert directory.parent.stat().st_ino in events[named:]


@pytest.mark.parametrize("call", ["open", "write", "fsync", "mkdir", "rename"])
def test_a_full_disk_leaves_nothing_half_staged(
    releases: Releases, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def stage() -> None:
        with pytest.raises(FileError, match="No space left on device; free some space") as caught:
            releases.stage(NEW, FILES)
        assert caught.value.reason is Reason.DISK

    assert fails_with(monkeypatch, call, errno.ENOSPC, stage) >= 1
    assert releases.ids() == []
    if call == "open":
        # Then it can't be removed at once either.
        releases.sweep()
    assert everything(releases) == {"releases"}


def test_a_crash_at_any_step_leaves_whole_releases_and_converges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, died = 0, True
    while died:
        step += 1
        releases = Releases(tmp_path / str(step))
        releases.stage(OLD, FILES)
        releases.switch(OLD)
        died = dies_at(monkeypatch, step, lambda: deploy(releases))  # noqa: B023
        after = Releases(tmp_path / str(step))
        assert all(is_whole(after.path(name)) for name in after.ids())
        assert after.current() in {OLD, NEW}
        after.sweep()
        deploy(after)
        assert after.current() == NEW
        assert everything(after) == {"releases", "current", OLD, NEW}
    assert step > 20


def test_a_crash_while_mending_leaves_each_file_old_or_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, died = 0, True
    while died:
        step += 1
        releases = Releases(tmp_path / str(step))
        directory = releases.stage(OLD, {name: RenderedFile(b"damaged") for name in FILES})
        releases.switch(OLD)
        died = dies_at(monkeypatch, step, lambda: releases.stage(OLD, FILES))  # noqa: B023
        assert releases.current() == OLD
        for name, file in FILES.items():
            whole = {(b"damaged", 0o600), (file.content, file.mode)}
            assert content_of(directory)[name] in whole
        releases.stage(OLD, FILES)
        assert {name: content_of(directory)[name] for name in FILES} == content_of_files()
    assert step > 20


def test_a_crash_while_collecting_leaves_no_half_a_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, died = 0, True
    while died:
        step += 1
        releases = Releases(tmp_path / str(step))
        deploy(releases)
        releases.stage(OLD, FILES)
        died = dies_at(monkeypatch, step, lambda: releases.collect([]))  # noqa: B023
        assert all(is_whole(releases.path(name)) for name in releases.ids())
        releases.sweep()
        releases.collect([])
        assert everything(releases) == {"releases", "current", NEW}
    assert step > 5


def deploy(releases: Releases) -> None:
    releases.stage(NEW, FILES)
    releases.switch(NEW)


def everything(releases: Releases) -> set[str]:
    state = releases.current_link.parent
    return {path.name for place in (state, state / "releases") for path in place.iterdir()}


def test_switching_to_the_current_release_keeps_the_link(releases: Releases) -> None:
    deploy(releases)
    before = releases.current_link.lstat().st_ino
    releases.switch(NEW)
    assert releases.current_link.lstat().st_ino == before


def test_sweeping_spares_whatever_is_no_leftover(releases: Releases) -> None:
    deploy(releases)
    docker = releases.current_link.parent / "docker"
    docker.mkdir()
    (docker / "config.json").touch()
    (docker / ".new-0123456789abcdef").touch()
    releases.stage(OLD, {**FILES, ".new-0123456789abcdef": RenderedFile(b"of the manifest")})
    releases.sweep()
    assert [path.name for path in docker.iterdir()] == ["config.json"]
    assert (releases.path(OLD) / ".new-0123456789abcdef").is_file()
    assert releases.current() == NEW


def test_what_can_not_be_removed_is_logged_and_does_not_stop_the_rest(
    releases: Releases, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deploy(releases)
    releases.stage(OLD, FILES)
    fails_with(monkeypatch, "rmdir", errno.EACCES, lambda: releases.collect([]))
    assert releases.ids() == [NEW]
    assert "can't be removed: Permission denied; a container may have written there" in caplog.text
    releases.sweep()
    assert everything(releases) == {"releases", "current", NEW}


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


@pytest.mark.parametrize(
    "target",
    ["/etc", "releases/..", "elsewhere", f"x/{OLD}", f"/releases/{OLD}", f"x/releases/{OLD}"],
)
def test_a_foreign_current_is_refused_with_the_remedy(releases: Releases, target: str) -> None:
    releases.stage(OLD, FILES)
    releases.current_link.symlink_to(target)
    for action in (releases.current, lambda: releases.switch(OLD), lambda: releases.collect([])):
        with pytest.raises(FileError, match="which is no release of this agent's; remove it: rm "):
            action()
    assert str(releases.current_link.readlink()) == target
    assert releases.ids() == [OLD]


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_something_else_in_the_place_of_current_is_refused(releases: Releases, kind: str) -> None:
    releases.stage(OLD, FILES)
    releases.current_link.mkdir() if kind == "directory" else releases.current_link.touch()
    for action in (releases.current, lambda: releases.switch(OLD)):
        with pytest.raises(FileError, match="not a symbolic link; move it away"):
            action()


def test_a_release_that_is_a_symlink_does_not_count(releases: Releases, tmp_path: Path) -> None:
    releases.path(OLD).symlink_to(tmp_path)
    releases.current_link.symlink_to(f"releases/{OLD}")
    assert releases.current() is None
    with pytest.raises(FileError, match="not on disk"):
        releases.switch(OLD)


# A directory to try things in


def test_scratch_has_the_files_of_a_release_and_is_none(releases: Releases) -> None:
    with releases.scratch(FILES) as directory:
        assert content_of(directory) == content_of_files()
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert releases.ids() == []
    assert not directory.exists()


def test_scratch_goes_also_where_what_was_tried_fails(releases: Releases) -> None:
    with pytest.raises(ZeroDivisionError), releases.scratch(FILES) as directory:
        raise ZeroDivisionError
    assert not directory.exists()


def test_what_a_crash_leaves_of_scratch_the_next_start_removes(releases: Releases) -> None:
    held = releases.scratch(FILES)
    directory = held.__enter__()
    releases.sweep()
    assert not directory.exists()
