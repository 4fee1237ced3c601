"""Real parts for the tests: started here when needed, stopped by process id at the end."""

import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from monky_deployd.demo.engine import DEFAULT_SOCKET, Engine, answers
from monky_deployd.demo.grants import GrantIssuer
from monky_deployd.demo.images import LABEL, cleanup, make_image
from monky_deployd.demo.registry import Registry
from tests.parts import require
from tests.real.world import World, open_world
from tests.servers import ALL_PARTS
from tests.servers import issuer as issuer
from tests.servers import openbao as openbao
from tests.servers import other_registry as other_registry
from tests.servers import registry as registry

if TYPE_CHECKING:
    from monky_deployd.demo.openbao import OpenBao


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
def image(engine: Engine, registry: Registry, run_label: str) -> Callable[..., str]:
    """`image(repository, tag, files=…, cmd=…)`: a reference that the engine has to pull."""
    require("busybox-static", Path("/bin/busybox").exists(), ALL_PARTS)
    return partial(make_image, engine, registry, label=run_label)


@pytest.fixture(scope="session")
def idle(image: Callable[..., str]) -> str:
    """An image that runs until it is told to stop, for tests that aren't about pulling."""
    return image("shared/idle", "1")


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
    tmp_path: Path, engine: Engine, registry: Registry, openbao: "OpenBao", issuer: GrantIssuer
) -> Iterator[World]:
    """A fresh environment for one agent, in a working order."""
    with open_world(tmp_path, engine, registry, openbao, issuer) as opened:
        yield opened


@pytest.fixture
def watchful(world: World) -> None:
    """The agent watches what came up as long as a service takes that crashes after a second."""
    world.settle_time = 1
    world.configure()


@pytest.fixture(scope="module")
def lasting_world(
    tmp_path_factory: pytest.TempPathFactory,
    engine: Engine,
    registry: Registry,
    openbao: "OpenBao",
    issuer: GrantIssuer,
) -> Iterator[World]:
    """One environment for a module's tests that leave what runs as they found it."""
    base = tmp_path_factory.mktemp("world")
    with open_world(base, engine, registry, openbao, issuer) as opened:
        yield opened


@pytest.fixture(params=["installed", "2.26.1"])
def every_compose(request: pytest.FixtureRequest, world: World) -> str:
    """Runs the test twice: with the host's Compose, and with the oldest that is supported."""
    if request.param == "2.26.1":
        world.use_compose(request.getfixturevalue("compose_226"))
    return str(request.param)
