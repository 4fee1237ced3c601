"""One environment as an agent meets it: real engine, registry and OpenBao, reference tenancy."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from monky_deployd.demo.engine import Engine
from monky_deployd.demo.grants import GrantIssuer
from monky_deployd.demo.images import cleanup
from monky_deployd.demo.openbao import OpenBao
from monky_deployd.demo.registry import Registry
from monky_deployd.demo.tenancy_server import FakeTenancy

AGENT = [sys.executable, "-m", "monky_deployd"]
PATIENCE = 60


@dataclass(frozen=True)
class Ran:
    """How a command of the agent's ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.stdout)
        return document

    @property
    def errors(self) -> dict[str, dict[str, Any]]:
        """The outcome's errors by service."""
        return {error["service"]: error for error in self.json["errors"]}


@dataclass
class World:
    """All that one agent needs. `slug` names the environment and the Compose project."""

    base: Path
    slug: str
    engine: Engine
    registry: Registry
    openbao: OpenBao
    tenancy: FakeTenancy
    tenancy_port: int
    settle_time: float = 0.2

    @property
    def state(self) -> Path:
        return self.base / "state"

    @property
    def config(self) -> Path:
        return self.base / "config.yaml"

    @property
    def grant_file(self) -> Path:
        return self.base / "grant"

    def configure(self, **settings: Any) -> None:
        """Write the config, with `settings` laid over (one level deep) what the tests use."""
        document: dict[str, Any] = {
            "environment": self.slug,
            "tenancy": {"host": "127.0.0.1", "port": self.tenancy_port, "scheme": "http"},
            "openbao": {"url": self.openbao.url},
            "docker": {"socket": str(self.engine.socket), "settle_time": self.settle_time},
            "state_dir": str(self.state),
            "grant_file": str(self.grant_file),
        }
        for section, value in settings.items():
            if isinstance(value, dict):
                document.setdefault(section, {}).update(value)
            else:
                document[section] = value
        self.config.write_text(yaml.safe_dump(document))

    def install_grant(self, grant: str | None = None) -> str:
        """Put a grant in place as an operator does: a new file with its name."""
        grant = grant or self.tenancy.grant(self.slug)
        fresh = self.grant_file.with_suffix(".new")
        fresh.touch(mode=0o600)
        fresh.write_text(grant)
        fresh.replace(self.grant_file)
        return grant

    def put(self, name: str, data: Mapping[str, Any]) -> str:
        """Write a secret below the environment's prefix; its path."""
        path = f"{self.slug}/{name}"
        self.openbao.put(path, data)
        return path

    def robot_entry(self, *, password: str | None = None) -> dict[str, Any]:
        """A registry-auth entry, put into OpenBao; without `password` with the right one."""
        login = {
            "username": self.registry.username,
            "password": password or self.registry.password.reveal(),
        }
        return {
            "name": "robot",
            "path": self.put("robot", login),
            "use": "registry-auth",
            "registry_host": self.registry.host,
        }

    def publish(
        self,
        generation: int,
        services: Mapping[str, Any],
        *,
        entries: Sequence[Mapping[str, Any]] | None = None,
        deploy: Mapping[str, Any] | None = None,
        **top_level: Any,
    ) -> None:
        """Publish a manifest with one inline compose file. Without `entries`: the robot.

        A service that says nothing of networks gets none: making one for each test takes long.
        """
        if "networks" not in top_level:
            services = {name: _without_network(service) for name, service in services.items()}
        compose = json.dumps({"services": services, **top_level})
        self.tenancy.publish(
            self.slug,
            {
                "schema": 1,
                "environment": self.slug,
                "generation": generation,
                "project": self.slug,
                "compose": {"files": [{"name": "compose.yaml", "content": compose}]},
                "entries": list(entries if entries is not None else [self.robot_entry()]),
                "deploy": {"wait_timeout": 20, **(deploy or {})},
            },
        )

    def command(self, *args: str) -> list[str]:
        """The argv of one command of the agent's."""
        return [*AGENT, "--config", str(self.config), *args]

    def agent(
        self, *args: str, env: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
    ) -> Ran:
        """Run one command of the agent's to its end; `prefix` is a program that starts it."""
        done = subprocess.run(
            [*prefix, *self.command(*args)],
            capture_output=True,
            text=True,
            env={**os.environ, **(env or {})},
            timeout=300,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def once(self, *, prefix: Sequence[str] = (), **env: str) -> Ran:
        return self.agent("once", "--json", env=env, prefix=prefix)

    def deploy(self, generation: int, services: Mapping[str, Any], **manifest: Any) -> Ran:
        """Publish, and make one pass that has to converge."""
        self.publish(generation, services, **manifest)
        ran = self.once()
        assert ran.code == 0, ran.stdout + ran.stderr
        return ran

    @contextmanager
    def daemon(self, *, prefix: Sequence[str] = ()) -> "Iterator[Daemon]":
        """The agent as a daemon, stopped at the end with SIGTERM; `prefix` starts it by exec."""
        daemon = Daemon([*prefix, *self.command("run")])
        try:
            yield daemon
        finally:
            daemon.stop()

    def report(self) -> dict[str, Any]:
        """The newest report that tenancy has."""
        return self.tenancy.reports(self.slug)[-1]

    def wait_for_report(self, number: int) -> dict[str, Any]:
        """The report number `number` (from 1) that tenancy got, as soon as it is there."""
        reports = self.tenancy.reports
        eventually(lambda: len(reports(self.slug)) >= number, f"report {number}")
        return reports(self.slug)[number - 1]

    def use_compose(self, binary: Path) -> None:
        """Make the docker CLI take this Compose: it looks below DOCKER_CONFIG first."""
        for directory in (self.state, self.state / "docker", self.state / "docker/cli-plugins"):
            directory.mkdir(mode=0o700, exist_ok=True)
        (self.state / "docker/cli-plugins/docker-compose").symlink_to(binary)

    def docker(self, *args: str) -> str:
        """The output of the docker CLI, as a person with no login would run it."""
        return self._docker(*args).decode()

    def container(self, service: str) -> dict[str, Any]:
        """The inspect document of a service's only container."""
        found: list[dict[str, Any]] = json.loads(self.docker("inspect", f"{self.slug}-{service}-1"))
        return found[0]

    def incarnation(self, service: str) -> tuple[str, str]:
        """Which container a service has, and since when it runs: both change when it is touched."""
        container = self.container(service)
        return container["Id"], container["State"]["StartedAt"]

    def inside(self, service: str, *command: str) -> bytes:
        """The output of a command inside a service's container."""
        return self._docker("exec", f"{self.slug}-{service}-1", *command)

    def variables(self, service: str) -> dict[bytes, bytes]:
        """The environment that a service's first process was started with, from its kernel."""
        block = self.inside(service, "cat", "/proc/1/environ")
        return dict(item.split(b"=", 1) for item in block.split(b"\0") if item)

    def close(self) -> None:
        """Remove everything of the project from the engine."""
        cleanup(self.engine, f"com.docker.compose.project={self.slug}")

    def _docker(self, *args: str) -> bytes:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.base),
            "DOCKER_HOST": self.engine.docker_host,
        }
        return subprocess.run(
            ["docker", *args], capture_output=True, check=True, env=environment
        ).stdout


def _without_network(service: Any) -> Any:
    networked = {"networks", "network_mode", "ports", "links", "extends"}
    if not isinstance(service, Mapping) or networked & service.keys():
        return service
    return {**service, "network_mode": "none"}


@contextmanager
def open_world(
    base: Path, engine: Engine, registry: Registry, openbao: OpenBao, issuer: GrantIssuer
) -> Iterator[World]:
    """A fresh environment for one agent, in a working order, below `base`."""
    tenancy = FakeTenancy(issuer)
    openbao.configure(issuer.public_key_pem)
    with tenancy.serve() as served:
        slug = f"env-{uuid.uuid4().hex[:8]}"
        world = World(base, slug, engine, registry, openbao, tenancy, served.port)
        world.configure()
        world.install_grant()
        try:
            yield world
        finally:
            world.close()


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait until `condition` holds, where nothing tells of it by itself."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about"
        time.sleep(0.05)


class Daemon:
    """A running agent, whose log can be waited for."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        self._lines: list[str] = []
        self._grew = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        with self._grew:
            return "\n".join(self._lines)

    def wait_for(self, text: str, *, since: int = 0) -> int:
        """Wait until a log line from number `since` on holds `text`; the number after it."""
        with self._grew:
            found = self._grew.wait_for(lambda: self._find(text, since), PATIENCE)
        assert found, f"no log line with {text!r} in:\n{self.log}"
        return found

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> int:
        """Wait until it has ended by itself; its exit code, or the negative signal number."""
        return self._process.wait(PATIENCE)

    def stop(self) -> int:
        """End it as systemd does; its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        self._reader.join(PATIENCE)
        return code

    def _find(self, text: str, since: int) -> int:
        for number, line in enumerate(self._lines[since:], since):
            if text in line:
                return number + 1
        return 0

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._grew:
                self._lines.append(line.rstrip("\n"))
                self._grew.notify_all()
