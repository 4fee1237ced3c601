"""The daemon as systemd runs it: what keeps it from starting is seen where an operator looks."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monky_deployd.host.lock import StateLock


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The service manager's end of NOTIFY_SOCKET."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(5)
        yield receiver


def run_service(config: Path, manager: socket.socket) -> subprocess.CompletedProcess[str]:
    """The daemon with a config with which it can't start, in an environment like systemd's."""
    socket_path = manager.getsockname()
    return subprocess.run(
        [sys.executable, "-m", "monky_deployd", "--config", str(config), "run"],
        env={**os.environ, "NOTIFY_SOCKET": socket_path, "INVOCATION_ID": "of-the-test"},
        capture_output=True,
        text=True,
    )


def test_a_wrong_config_is_an_error_in_the_log_and_in_status(
    tmp_path: Path, manager: socket.socket
) -> None:
    missing = tmp_path / "nowhere.yaml"
    done = run_service(missing, manager)
    assert done.returncode == 2
    assert done.stderr.startswith(f"<3>{missing} can't be read: ")
    assert manager.recv(4096).startswith(f"STATUS={missing} can't be read: ".encode())
    assert manager.recv(4096) == b"BARRIER=1"


def test_a_state_directory_that_is_locked_is_worth_another_try(
    tmp_path: Path, manager: socket.socket
) -> None:
    config, state = tmp_path / "config.yaml", tmp_path / "state"
    config.write_text(
        "environment: env-1\n"
        "tenancy: {host: tenancy.invalid}\n"
        "openbao: {url: 'https://openbao.invalid'}\n"
        f"state_dir: {state}\n"
    )
    state.mkdir(mode=0o700)
    with StateLock(state):
        done = run_service(config, manager)
    assert done.returncode == 1
    assert done.stderr.startswith("<3>another monky-deployd")
    assert manager.recv(4096).startswith(b"STATUS=another monky-deployd")
