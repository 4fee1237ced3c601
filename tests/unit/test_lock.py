"""One agent for one state directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from monky_deployd.errors import ExitCode, LockedError
from monky_deployd.host.lock import StateLock

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
