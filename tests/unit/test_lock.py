"""One agent for one state directory."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from monky_deployd.errors import ExitCode, FileError, LockedError
from monky_deployd.host.lock import StateLock
from tests.unit.dying import fails_with

HOLD = """
import sys
from pathlib import Path
from monky_deployd.host.lock import StateLock
with StateLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_agent_is_refused_and_told_the_pid(tmp_path: Path) -> None:
    with StateLock(tmp_path):
        with pytest.raises(LockedError, match=rf"\(pid {os.getpid()}\).*reload") as caught:
            StateLock(tmp_path).__enter__()
        assert caught.value.exit_code is ExitCode.CONFIGURATION
    with StateLock(tmp_path):
        pass


def test_the_lock_is_given_back_when_the_agent_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), StateLock(tmp_path):
        raise RuntimeError
    with StateLock(tmp_path):
        pass


def test_a_killed_holder_leaves_no_lock_behind(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(LockedError, match=rf"pid {holder.pid}"):
        StateLock(tmp_path).__enter__()
    holder.kill()
    holder.communicate()
    with StateLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_child_does_not_inherit_the_lock(tmp_path: Path) -> None:
    with StateLock(tmp_path):
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
    try:
        with StateLock(tmp_path):
            pass
    finally:
        child.communicate()


@pytest.mark.parametrize("content", ["1234567\n", "no pid\n", "", "9" * 4000])
def test_stale_content_does_no_harm(tmp_path: Path, content: str) -> None:
    (tmp_path / "lock").write_text(content)
    with StateLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_only_a_pid_is_quoted_from_the_file(tmp_path: Path) -> None:
    with StateLock(tmp_path):
        (tmp_path / "lock").write_text("\x1b[2Jx")
        with pytest.raises(LockedError, match="another monky-deployd works on"):
            StateLock(tmp_path).__enter__()


@pytest.mark.parametrize("mask", [0o000, 0o777], ids=oct)
def test_the_file_is_private_under_any_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with StateLock(tmp_path):
            assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_a_full_disk_does_not_keep_the_agent_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lock() -> None:
        with StateLock(tmp_path), pytest.raises(LockedError):
            StateLock(tmp_path).__enter__()

    assert fails_with(monkeypatch, "pwrite", errno.ENOSPC, lock) == 1


def test_a_symlink_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to("elsewhere")
    with pytest.raises(FileError, match="lock can't be locked: "):
        StateLock(tmp_path).__enter__()
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_system_without_locks_is_named_and_nothing_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    before = open_descriptors()
    with pytest.raises(FileError, match="lock can't be locked: No locks available"):
        StateLock(tmp_path).__enter__()
    assert open_descriptors() == before


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
