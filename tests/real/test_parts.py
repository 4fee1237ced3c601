"""The starters of the real parts: what the other real tests and the demo stand on."""

import json
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from monky_deployd.demo import images
from monky_deployd.demo.child import Child
from monky_deployd.demo.engine import Engine, answers
from monky_deployd.demo.registry import Registry
from monky_deployd.domain.secret import Secret
from monky_deployd.errors import EngineError, MonkyError

pytestmark = pytest.mark.real

Docker = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def docker(docker_env: dict[str, str]) -> Docker:
    def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", *arguments], env=docker_env, input=stdin, capture_output=True, text=True
        )

    return run


@pytest.fixture
def own_registry(tmp_path: Path) -> Iterator[Registry]:
    registry = Registry.start(tmp_path)
    yield registry
    registry.stop()


def log_in(docker: Docker, registry: Registry) -> None:
    arguments = ("login", "-u", registry.username, "--password-stdin", registry.host)
    done = docker(*arguments, stdin=registry.password.reveal())
    assert done.returncode == 0, done.stderr


def status_with(registry: Registry, password: Secret) -> int:
    auth = (registry.username, password.reveal())
    return httpx.get(f"http://{registry.host}/v2/", auth=auth, trust_env=False).status_code


def test_image_has_to_be_pulled_and_then_runs(
    docker: Docker, registry: Registry, image: Callable[..., str], run_label: str
) -> None:
    ref = image("parts/page", "1", files={"www/index.html": b"hello from generation 1"})
    assert docker("image", "inspect", ref).returncode != 0
    assert "no basic auth credentials" in docker("pull", ref).stderr

    log_in(docker, registry)
    assert docker("pull", ref).returncode == 0
    ran = docker("run", "--rm", "--network=none", ref, "cat", "/www/index.html")
    assert ran.stdout == "hello from generation 1"


def test_default_command_stops_when_it_is_told_to(
    docker: Docker, registry: Registry, image: Callable[..., str]
) -> None:
    ref = image("parts/idle", "1")
    log_in(docker, registry)
    name = f"parts-{secrets.token_hex(4)}"
    assert docker("run", "--detach", "--name", name, "--network=none", ref).returncode == 0
    assert docker("stop", "--time", "60", name).returncode == 0
    # 137 would say that the engine had to kill it.
    exit_code = docker("inspect", "--format", "{{.State.ExitCode}}", name).stdout.strip()
    assert exit_code == "0"


def test_serving_image_answers_with_its_page(
    docker: Docker, registry: Registry, image: Callable[..., str]
) -> None:
    ref = image("parts/web", "1", files={"www/index.html": b"a page"}, cmd=images.SERVE)
    log_in(docker, registry)
    name = f"parts-{secrets.token_hex(4)}"
    assert docker("run", "--detach", "--name", name, "--network=none", ref).returncode == 0
    fetch = "until wget -q -O - http://127.0.0.1/; do :; done"
    assert docker("exec", name, "timeout", "30", "sh", "-c", fetch).stdout == "a page"


def test_foreign_platform_image_has_no_match_here(docker: Docker, registry: Registry) -> None:
    ref = images.foreign_platform_image(registry, "parts/arm", "1")
    log_in(docker, registry)
    assert "no matching manifest for linux/" in docker("pull", ref).stderr


def test_rotation_refuses_the_old_password_at_once(own_registry: Registry) -> None:
    old, new = own_registry.password, Secret("rotated-5f1c")
    assert status_with(own_registry, old) == 200
    own_registry.rotate(new)
    assert status_with(own_registry, old) == 401
    assert status_with(own_registry, new) == 200


def test_cleanup_removes_what_carries_the_label_and_nothing_else(
    engine: Engine, docker: Docker, registry: Registry, tmp_path: Path
) -> None:
    mine, other = (f"{images.LABEL}={secrets.token_hex(6)}" for _ in range(2))
    ref = images.make_image(engine, registry, "parts/cleanup", "1", label=mine)
    log_in(docker, registry)
    project = f"parts-{secrets.token_hex(4)}"
    model = {
        "services": {"web": {"image": ref, "volumes": ["data:/data"]}},
        "volumes": {"data": {}},
    }
    file = tmp_path / "compose.yaml"
    file.write_text(json.dumps(model))
    up = docker("compose", "-p", project, "-f", str(file), "up", "--detach")
    assert up.returncode == 0, up.stderr
    foreign = docker("volume", "create", "--label", other).stdout.strip()

    images.cleanup(engine, mine)
    by_project = f"label=com.docker.compose.project={project}"
    for kind in ("container", "network", "volume"):
        every = ("--all",) if kind == "container" else ()
        assert docker(kind, "ls", "--quiet", *every, "--filter", by_project).stdout == ""
    assert docker("image", "ls", "--quiet", "--filter", f"label={mine}").stdout == ""
    assert docker("volume", "inspect", foreign).returncode == 0

    images.cleanup(engine, other)
    assert docker("volume", "inspect", foreign).returncode != 0


def test_private_engine_pulls_from_the_registry_and_is_gone_after_stop(
    docker: Docker,
    docker_env: dict[str, str],
    registry: Registry,
    image: Callable[..., str],
    tmp_path: Path,
) -> None:
    ref = image("parts/private", "1")
    log_in(docker, registry)
    engine = Engine.private(tmp_path, tmp_path / "data")
    try:
        docker_env["DOCKER_HOST"] = engine.docker_host
        pulled = docker("pull", ref)
        assert pulled.returncode == 0, pulled.stderr
    finally:
        engine.stop()
    assert not answers(engine.socket)


def test_engine_error_carries_the_engines_words(engine: Engine) -> None:
    with pytest.raises(EngineError, match="No such image: never-there"):
        engine.request("DELETE", "/images/never-there")


def test_child_that_dies_says_what_its_log_says(tmp_path: Path) -> None:
    child = Child(["sh", "-c", "echo no free port; exit 3"], tmp_path / "log")
    with pytest.raises(MonkyError, match=r"sh ended with exit code 3(.|\n)*no free port"):
        child.wait_for(lambda: None, seconds=30)


def test_program_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(MonkyError, match="no-such-program can't be started"):
        Child(["no-such-program"], tmp_path / "log")
