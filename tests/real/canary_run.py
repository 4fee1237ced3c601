"""A full run of one agent with secrets that can be found again, and all that came of it."""

import base64
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monky_deployd.domain.secret import Secret
from tests.real.canaries import Canaries, lines_of, mark
from tests.real.services import crashing
from tests.real.world import Ran, World

SPECIAL = "$&\"'\\é /+?"
KEY_TARGET = "certs/tls.key"

# Notes what the process and its parent show to everybody in /proc, then becomes the program.
RECORDER = """#!/bin/sh
{{ cat /proc/$$/cmdline /proc/$$/environ /proc/$PPID/cmdline
   cat /proc/$PPID/environ 2>/dev/null; }} >> '{seen}/{name}-'$$
exec '{program}' "$@"
"""

# The agent with a fault of its own, in a place where secrets are at hand.
_FAULTY = """
import sys
from monky_deployd import cli
from monky_deployd.agent.memory import Memory
from monky_deployd.clients.compose import ComposeCli
from monky_deployd.domain.dotenv import parse_dotenv

held = {{}}

def fail():
    values = {{name: secret.reveal() for name, secret in held.items()}}
    try:
        return {{}}[values["PASSWORD"]]
    except KeyError as error:
        raise RuntimeError(f"no use of {{values['PASSWORD']}} in {{values}}") from error

async def pull(self, project, *args, **options):
    held.update(parse_dotenv((project.directory / ".env").read_bytes()))
    {in_the_pass}

def record(self, passed):
    fail()

ComposeCli.pull = pull
{patch}
sys.exit(cli.main(sys.argv[1:]))
"""
IN_THE_PASS = _FAULTY.format(in_the_pass="fail()", patch="")
OUTSIDE_THE_PASS = _FAULTY.format(
    in_the_pass="raise RuntimeError('the first fault')", patch="Memory.record = record"
)


def pem() -> str:
    body = (base64.b64encode(secrets.token_bytes(48)).decode() for _ in range(8))
    return "\n".join(["-----BEGIN PRIVATE KEY-----", *body, "-----END PRIVATE KEY-----", ""])


@dataclass
class Values:
    """The secrets of the run."""

    password: str = field(default_factory=lambda: f"{mark('pw')}{SPECIAL}{mark('pw2')}")
    address: tuple[str, ...] = field(default_factory=lambda: (mark("A"), mark("B"), mark("C")))
    unusable: str = field(default_factory=lambda: f"{mark('nul')}\0{mark('nul2')}")
    key: str = field(default_factory=pem)
    registry: str = field(default_factory=lambda: f"{mark('reg')}{SPECIAL}")
    grants: list[str] = field(default_factory=list)

    @property
    def whole_address(self) -> str:
        """Compose takes it apart: at `:` and `/`, and writes some of the parts in lower case."""
        return "{}:{}/{}".format(*self.address)

    def canaries(self, username: str) -> Canaries:
        login = f"{username}:{self.registry}"
        # The lines that all keys have are no secret.
        key = [(name, line) for name, line in lines_of("the key", self.key) if len(line) > 40]
        looked_for = {
            "the password": self.password,
            "the address": self.whole_address,
            "the value that can't be carried": self.unusable,
            "the registry's password": self.registry,
            "the login": login,
            "the login as base64": base64.b64encode(login.encode()).decode(),
            **dict(key),
        }
        for number, part in enumerate(self.address):
            looked_for[f"part {number} of the address"] = part
        for name in ("password", "unusable", "registry"):
            for number, word in enumerate(_words(getattr(self, name))):
                looked_for[f"word {number} of {name}"] = word
        for number, grant in enumerate(self.grants):
            _, payload, signature = grant.split(".")
            looked_for |= {
                f"grant {number}": grant,
                f"the claims of grant {number}": payload,
                f"the signature of grant {number}": signature,
            }
        return Canaries(looked_for)


def _words(value: str) -> list[str]:
    kept = "".join(c if c.isascii() and c.isalnum() else " " for c in value)
    return [word for word in kept.split() if len(word) > 8]


@dataclass
class Run:
    """What came of it: what each step said, and where the rest is to be looked for."""

    world: World
    values: Values
    image: str
    seen: Path
    said: dict[str, str] = field(default_factory=dict)
    ended: dict[str, tuple[int, str]] = field(default_factory=dict)
    databases: dict[str, bytes] = field(default_factory=dict)

    @property
    def canaries(self) -> Canaries:
        return self.values.canaries(self.world.registry.username)

    def take(self, step: str, ran: Ran) -> None:
        assert step not in self.said
        self.said[step] = f"{ran.stdout}\0{ran.stderr}"
        outcome = json.loads(ran.stdout).get("outcome", "") if ran.stdout.startswith("{") else ""
        self.ended[step] = ran.code, outcome
        # As it is now: what was sent or overwritten is gone later.
        files = self.world.state.glob("state.db*")
        self.databases[step] = b"\0".join(file.read_bytes() for file in files)

    def once(self, step: str) -> None:
        self.take(step, self.world.once())

    def publish(
        self, generation: int, *more: dict[str, Any], web: dict[str, Any] | None = None
    ) -> None:
        """A generation with `more` entries, and with `web` laid over its service."""
        path = self.world.put("app", {"password": self.values.password, "number": "7"})
        address = self.world.put("address", {"value": self.values.whole_address})
        key = self.world.put("tls", {"key": self.values.key})
        entries = [
            self.world.robot_entry(password=self.values.registry),
            {"name": "PASSWORD", "path": path, "key": "password"},
            {"name": "ADDRESS", "path": address},
            {"name": "TLS", "path": key, "use": "file", "target": KEY_TARGET},
            *more,
        ]
        service = {
            "image": self.image,
            "env_file": ".env",
            "environment": {"GENERATION": str(generation), "FROM": "${ADDRESS}"},
            "volumes": [f"./{KEY_TARGET}:/run/tls.key:ro"],
            **(web or {}),
        }
        self.world.publish(generation, {"web": service}, entries=entries)

    def state_files(self) -> Iterator[tuple[str, Path]]:
        """Each regular file below the state directory, with its path in it."""
        for path in sorted(self.world.state.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield str(path.relative_to(self.world.state)), path


def is_allowed(path: str) -> bool:
    """Whether a file of the state directory is one that is there to hold secrets."""
    return path == "docker/config.json" or path.endswith("/.env") or path.endswith(f"/{KEY_TARGET}")


def recorder(path: Path, program: str, seen: Path) -> Path:
    path.write_text(RECORDER.format(seen=seen, name=path.name, program=program))
    path.chmod(0o755)
    return path


def compose_plugin() -> str:
    """Where the docker CLI finds its Compose."""
    form = '{{range .ClientInfo.Plugins}}{{if eq .Name "compose"}}{{.Path}}{{end}}{{end}}'
    return subprocess.run(
        ["docker", "info", "--format", form], capture_output=True, text=True, check=True
    ).stdout.strip()


def make_all_steps(run: Run) -> None:
    """A good deploy, each kind of failure, crashes, and every command."""
    for part in (good, refused_pulls, refused_models, refused_secrets, bad_release):
        part(run)
    for part in (crashes, refused_calls, commands):
        part(run)


def good(run: Run) -> None:
    run.publish(1)
    run.once("good")
    run.once("up to date")


def refused_pulls(run: Run) -> None:
    run.world.registry.rotate(Secret("another password"))
    run.publish(2)
    run.once("login refused")
    run.world.registry.rotate(Secret(run.values.registry))
    run.publish(3, web={"image": f"{run.image}-none"})
    run.once("no such tag")
    run.publish(4, web={"image": "${PASSWORD}"})
    run.once("no image reference")


def refused_models(run: Run) -> None:
    for generation, (name, web) in enumerate(
        {
            "whole value quoted": {"mem_limit": "${PASSWORD}"},
            "parts quoted by ports": {"ports": ["${ADDRESS}"]},
            "parts quoted by volumes": {"volumes": ["${ADDRESS}"]},
            "parts quoted by sizes": {"shm_size": "${ADDRESS}x"},
        }.items(),
        start=5,
    ):
        run.publish(generation, web=web)
        run.once(name)
        run.take(f"plan, {name}", run.world.agent("plan", "--json"))
    # As a person sees it.
    run.take("for people", run.world.agent("once"))
    run.publish(9, web={"privileged": True, "volumes": ["/srv/${PASSWORD}:/data"]})
    run.once("policy")


def refused_secrets(run: Run) -> None:
    world = run.world
    world.openbao.put("env-of-others/db", {"value": mark("others")})
    run.publish(10, {"name": "OTHERS", "path": "env-of-others/db"})
    run.once("forbidden")
    run.publish(11, {"name": "GONE", "path": f"{world.slug}/gone"})
    run.once("no such secret")
    run.publish(12, {"name": "GONE", "path": f"{world.slug}/app", "key": "gone"})
    run.once("no such key")
    unusable = world.put("unusable", {"value": run.values.unusable})
    run.publish(13, {"name": "UNUSABLE", "path": unusable})
    run.once("no way to carry it")
    up = {"name": "UP", "path": unusable, "use": "file", "target": "../up"}
    run.publish(14, up)
    run.once("target refused")
    login = {
        "name": "LOGIN",
        "path": unusable,
        "use": "registry-auth",
        "registry_host": "r.example",
    }
    run.publish(15, login)
    run.once("login of another shape")


def bad_release(run: Run) -> None:
    run.publish(16, web=crashing(run.image))
    run.once("rolled back")


def crashes(run: Run) -> None:
    run.publish(17)
    for name, script in (("fault", IN_THE_PASS), ("uncaught", OUTSIDE_THE_PASS)):
        argv = [sys.executable, "-c", script, *run.world.command("once", "--json")[3:]]
        done = subprocess.run(argv, capture_output=True, text=True, env=dict(os.environ))
        run.take(name, Ran(done.returncode, done.stdout, done.stderr))
    with run.world.daemon(prefix=["env", "PYTHONFAULTHANDLER=1"]) as daemon:
        daemon.wait_for("generation 17 runs")
        daemon.send(signal.SIGABRT)
        code = daemon.wait()
        daemon.stop()
    run.take("aborted", Ran(code, "", daemon.log))


def refused_calls(run: Run) -> None:
    world = run.world
    world.configure(log={"level": "debug"}, tenancy={"port": 1, "request_timeout": 2})
    run.once("tenancy is down")
    world.configure(log={"level": "debug"})
    run.values.grants.append(world.tenancy.grant(world.slug))
    run.once("superseded")
    run.take("doctor, superseded", world.agent("doctor", "--json"))


def commands(run: Run) -> None:
    world = run.world
    fresh = world.base / "fresh-grant"
    fresh.write_text(run.values.grants[-1])
    run.take("grant install --check", world.agent("grant", "install", "--check", str(fresh)))
    run.take("grant install", world.agent("grant", "install", str(fresh)))
    fresh.unlink()
    for command in ("config show", "plan", "status", "doctor", "grant show"):
        run.take(command, world.agent(*command.split()))
        run.take(f"{command} --json", world.agent(*command.split(), "--json"))
    run.take("config check", world.agent("config", "check"))
