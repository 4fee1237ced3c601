"""The demo's stage: every real part started, one environment set up, and all of it taken down."""

import functools
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from monky_deployd.demo.child import Child
from monky_deployd.demo.engine import DEFAULT_SOCKET, Engine, answers
from monky_deployd.demo.images import LABEL, SERVE, cleanup, make_image
from monky_deployd.demo.interrupts import Interrupts
from monky_deployd.demo.openbao import OpenBao
from monky_deployd.demo.registry import Registry
from monky_deployd.demo.serving import LOOPBACK, serve
from monky_deployd.demo.tenancy_server import FakeTenancy
from monky_deployd.domain.secret import Secret
from monky_deployd.host.files import make_private_dir, write_private

REPOSITORY = "shop/web"
PAGE = "hello from the image that only the agent may pull"
NOTICE = "hello from a file that the manifest brought"

_PAGE_FILE = "www/index.html"
_REPORT_SECONDS = 60

Say = Callable[[str], None]


class AgentProcess:
    """The real agent as a child, its log passed on line by line while it is waited for."""

    def __init__(self, config: Path, log: Path, on_line: Say) -> None:
        """Start `run`. MonkyError if it can't be started."""
        self.log = log
        self._on_line = on_line
        self._offset = 0
        # As under systemd: nothing of this shell's environment, no HOME and no login of anybody's.
        path = f"PATH={os.defpath}"
        argv = [sys.executable, "-m", "monky_deployd", "--config", str(config), "run"]
        self._child = Child(["env", "-i", path, *argv], log)
        self._child.name = "monky-deployd"

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    def wait_for_report(self, read: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
        """Wait for the report that `read` is looking for. MonkyError if none comes in 60 s."""

        def look() -> dict[str, Any] | None:
            report = read()
            # After it, because what the report is about was logged before it was sent.
            self._pass_on()
            return report

        return self._child.wait_for(look, seconds=_REPORT_SECONDS)

    def follow(self) -> None:
        """Pass the log on until interrupted. MonkyError when the agent ends by itself."""
        self._child.wait_for(self._pass_on, seconds=float("inf"))

    def stop(self) -> None:
        """End it with SIGTERM, as systemd does."""
        self._child.stop()

    def _pass_on(self) -> None:
        with self.log.open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole + newline)
        for line in whole.decode("utf-8", "replace").splitlines():
            self._on_line(line)


@dataclass(frozen=True)
class Stage:
    """All that the demo's one environment consists of. Everything of it is below `base`."""

    base: Path
    slug: str
    engine: Engine
    registry: Registry
    openbao: OpenBao
    tenancy: FakeTenancy
    admin_url: str
    image: str
    port: int
    db_password: Secret
    start_agent: Callable[[Say], AgentProcess]

    @property
    def state(self) -> Path:
        """The agent's state directory."""
        return self.base / "state"

    @property
    def config(self) -> Path:
        """The agent's configuration file."""
        return self.base / "config.yaml"

    @property
    def url(self) -> str:
        """Where the deployed service answers."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def container(self) -> str:
        """The name of the service's container."""
        return f"{self.slug}-web-1"

    def reference(self, tag: str) -> str:
        """The image's reference with `tag`, which need not exist."""
        return f"{self.image.rpartition(':')[0]}:{tag}"

    def compose(self, tag: str) -> str:
        """The compose file of a generation that runs the image with `tag`."""
        service = {
            "image": self.reference(tag),
            "env_file": [".env"],
            "ports": [f"{LOOPBACK}:{self.port}:80"],
            "volumes": ["./site/notice.txt:/www/notice.txt:ro"],
        }
        return yaml.safe_dump({"services": {"web": service}}, sort_keys=False)

    def manifest(self, generation: int, tag: str) -> dict[str, Any]:
        """The manifest of a generation that runs the image with `tag`."""
        return {
            "schema": 1,
            "environment": self.slug,
            "generation": generation,
            "project": self.slug,
            "compose": {"files": [{"name": "compose.yaml", "content": self.compose(tag)}]},
            "entries": [
                {"name": "LOG_LEVEL", "value": "info"},
                {"name": "DB_PASSWORD", "path": f"{self.slug}/db", "key": "password"},
                {"name": "notice", "value": NOTICE, "use": "file", "target": "site/notice.txt"},
                {
                    "name": "harbor",
                    "path": f"{self.slug}/harbor",
                    "use": "registry-auth",
                    "registry_host": self.registry.host,
                },
            ],
            "deploy": {"on_failure": "rollback", "wait_timeout": 30},
        }

    def report(self, generation: int) -> dict[str, Any] | None:
        """The first report on `generation` that tenancy has, if there is one."""
        reports = self.tenancy.reports(self.slug)
        return next((report for report in reports if report["generation"] == generation), None)

    def docker(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The docker CLI, run by a person of this host who never logged in anywhere."""
        home = self.base / "person"
        make_private_dir(home)
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(home),
            "DOCKER_CONFIG": str(home / ".docker"),
            "DOCKER_HOST": self.engine.docker_host,
        }
        return subprocess.run(
            ["docker", *arguments], env=environment, capture_output=True, text=True
        )


@contextmanager
def open_stage(interrupts: Interrupts, say: Say) -> Iterator[Stage]:
    """Start every part, and take all of it down when the block ends, whichever way it ends.

    `say` is told what is started. MonkyError if a part doesn't start or can't be removed.
    """
    with ExitStack() as stack:
        try:
            with interrupts.held():
                stage = _build(stack, interrupts, say)
            yield stage
        finally:
            interrupts.ignore()


def _build(stack: ExitStack, interrupts: Interrupts, say: Say) -> Stage:
    base = Path(tempfile.mkdtemp(prefix="monky-demo-"))
    stack.callback(shutil.rmtree, base)
    slug = f"env-demo-{secrets.token_hex(3)}"
    say(f"environment {slug}; everything of it is kept below {base}")
    engine = _start_engine(stack, base, say)
    registry = Registry.start(_directory(base, "registry"))
    stack.callback(registry.stop)
    say(f"a private registry: {registry.host}, user {registry.username}")
    openbao = OpenBao.start(_directory(base, "openbao"))
    stack.callback(openbao.stop)
    say(f"OpenBao: {openbao.url}")
    tenancy = FakeTenancy()
    served = stack.enter_context(tenancy.serve())
    admin = stack.enter_context(serve(tenancy.admin))
    say(f"the reference tenancy server: {served.url}")
    stack.callback(cleanup, engine, f"com.docker.compose.project={slug}")
    label = f"{LABEL}={slug}"
    stack.callback(cleanup, engine, label)
    files = {_PAGE_FILE: f"{PAGE}\n".encode()}
    image = make_image(engine, registry, REPOSITORY, "1", label=label, files=files, cmd=SERVE)
    say(f"an image, pushed and removed from this host again: {image}")
    stage = Stage(
        base=base,
        slug=slug,
        engine=engine,
        registry=registry,
        openbao=openbao,
        tenancy=tenancy,
        admin_url=f"{admin.url}/admin/environments/{slug}",
        image=image,
        port=_free_port(),
        # What a .env file makes the most of: each of these means something to Compose or a shell.
        db_password=Secret(f"{secrets.token_urlsafe(12)} $HOME '\"#\\n"),
        start_agent=functools.partial(_start_agent, stack, interrupts, base),
    )
    _fill_openbao(stage)
    _configure_agent(stage, served.port)
    return stage


def _start_engine(stack: ExitStack, base: Path, say: Say) -> Engine:
    running = answers(DEFAULT_SOCKET)
    engine = Engine.ensure(_directory(base, "engine"))
    stack.callback(engine.stop)
    version = engine.request("GET", "/version").json()["Version"]
    say(f"Docker Engine {version}: {'it runs already' if running else 'started'}")
    return engine


def _start_agent(
    stack: ExitStack, interrupts: Interrupts, base: Path, on_line: Say
) -> AgentProcess:
    with interrupts.held():
        agent = AgentProcess(base / "config.yaml", base / "agent.log", on_line)
        stack.callback(agent.stop)
    return agent


def _fill_openbao(stage: Stage) -> None:
    stage.openbao.configure(stage.tenancy.issuer.public_key_pem)
    robot = {"username": stage.registry.username, "password": stage.registry.password.reveal()}
    stage.openbao.put(f"{stage.slug}/harbor", robot)
    stage.openbao.put(f"{stage.slug}/db", {"password": stage.db_password.reveal()})


def _configure_agent(stage: Stage, tenancy_port: int) -> None:
    grant_file = stage.base / "grant"
    write_private(grant_file, stage.tenancy.grant(stage.slug).encode())
    settings: Mapping[str, Any] = {
        "environment": stage.slug,
        "tenancy": {"host": LOOPBACK, "port": tenancy_port, "scheme": "http"},
        "openbao": {"url": stage.openbao.url},
        "docker": {"settle_time": 1},
        "state_dir": str(stage.state),
        "grant_file": str(grant_file),
    }
    write_private(stage.config, yaml.safe_dump(settings, sort_keys=False).encode())


def _directory(base: Path, name: str) -> Path:
    path = base / name
    make_private_dir(path)
    return path


def _free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
