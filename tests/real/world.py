"""One environment as an agent meets it: real engine, registry and OpenBao, reference tenancy."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from monky_deployd.demo.engine import Engine
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
    settings: dict[str, Any] = field(default_factory=dict)

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
            "docker": {"socket": str(self.engine.socket), "settle_time": 1},
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

    def robot_entry(self) -> dict[str, Any]:
        """A registry-auth entry with the registry's right credential, put into OpenBao."""
        login = {
            "username": self.registry.username,
            "password": self.registry.password.reveal(),
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
        """Publish a manifest with one inline compose file. Without `entries`: the robot."""
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

    def agent(self, *args: str, env: Mapping[str, str] | None = None) -> Ran:
        """Run one command of the agent's to its end."""
        done = subprocess.run(
            [*AGENT, "--config", str(self.config), *args],
            capture_output=True,
            text=True,
            env={**os.environ, **(env or {})},
            timeout=300,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def once(self, **env: str) -> Ran:
        return self.agent("once", "--json", env=env)

    @contextmanager
    def daemon(self) -> "Iterator[Daemon]":
        """The agent as a daemon, stopped at the end with SIGTERM."""
        daemon = Daemon([*AGENT, "--config", str(self.config), "run"])
        try:
            yield daemon
        finally:
            daemon.stop()

    def docker(self, *args: str) -> str:
        """The output of the docker CLI, as a person with no login would run it."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.base),
            "DOCKER_HOST": self.engine.docker_host,
        }
        return subprocess.run(
            ["docker", *args], capture_output=True, text=True, check=True, env=environment
        ).stdout

    def container(self, service: str) -> dict[str, Any]:
        """The inspect document of a service's only container."""
        found: list[dict[str, Any]] = json.loads(self.docker("inspect", f"{self.slug}-{service}-1"))
        return found[0]

    def close(self) -> None:
        """Remove everything of the project from the engine."""
        cleanup(self.engine, f"com.docker.compose.project={self.slug}")


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
