"""The registry login is the manifest's and nobody else's, and stays where it belongs."""

import base64
import json
import os
import pwd
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monky_deployd.demo.registry import Registry
from monky_deployd.domain.secret import Secret
from tests.parts import require
from tests.real.services import crashing
from tests.real.world import Ran, World

pytestmark = pytest.mark.real

# Shows a copy of a home that holds a docker login to the program that is started, and to no other
# one: the real home is only read. Arguments: home, login, an empty directory, the program.
IN_A_HOME_WITH_A_LOGIN = """
set -e
mount -t tmpfs tmpfs "$3"
mkdir "$3/upper" "$3/work"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$3/upper,workdir=$3/work" "$1"
rm -rf "$1/.docker"
cp -r "$2" "$1/.docker"
shift 3
exec "$@"
"""


def login_document(registry: Registry) -> dict[str, Any]:
    """A docker config.json with a valid login."""
    auth = f"{registry.username}:{registry.password.reveal()}"
    return {"auths": {registry.host: {"auth": base64.b64encode(auth.encode()).decode()}}}


@pytest.fixture
def human(world: World) -> Path:
    """A home with a valid docker login in it, that works for whoever uses it."""
    home = world.base / "human"
    docker = home / ".docker"
    docker.mkdir(parents=True)
    (docker / "config.json").write_text(json.dumps(login_document(world.registry)))
    return home


def with_environment(human: Path) -> tuple[dict[str, str], list[str]]:
    """A login in HOME and in every variable that docker reads."""
    document = (human / ".docker/config.json").read_text()
    return {
        "HOME": str(human),
        "DOCKER_CONFIG": str(human / ".docker"),
        "DOCKER_AUTH_CONFIG": document,
    }, []


def with_real_home(human: Path) -> tuple[dict[str, str], list[str]]:
    """A login in the home of the user that runs the agent."""
    require("root", os.geteuid() == 0, "a home is overlaid in a mount namespace of its own")
    home = pwd.getpwuid(os.getuid()).pw_dir
    scratch = human.parent / "scratch"
    scratch.mkdir()
    arguments = [home, str(human / ".docker"), str(scratch)]
    script = ["sh", "-c", IN_A_HOME_WITH_A_LOGIN, "sh", *arguments]
    return {"HOME": home}, ["unshare", "--mount", *script]


@pytest.mark.parametrize("login", [with_environment, with_real_home])
def test_a_humans_login_is_never_used(
    world: World,
    image: Callable[..., str],
    human: Path,
    login: Callable[[Path], tuple[dict[str, str], list[str]]],
) -> None:
    web = image(f"{world.slug}/web", "1")
    environment, prefix = login(human)
    by_hand = subprocess.run(
        [*prefix, "docker", "manifest", "inspect", "--insecure", web],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
    )
    assert by_hand.returncode == 0, by_hand.stderr
    world.publish(1, {"web": {"image": web}}, entries=[])

    ran = world.once(prefix=prefix, **environment)

    assert (ran.code, ran.json["outcome"]) == (1, "pull-failed")
    [error] = world.report()["errors"]
    path = f"{world.slug}/web/manifests/1"
    words = f'Head "http://{world.registry.host}/v2/{path}": no basic auth credentials'
    assert (error["message"], error["kind"]) == (words, "auth")
    assert "docker login on this host is not used" in error["hint"]

    world.publish(2, {"web": {"image": web}})
    assert world.once(prefix=prefix, **environment).code == 0


def test_the_manifests_credential_wins_over_a_humans(
    world: World, image: Callable[..., str], human: Path
) -> None:
    """Were it not the agent's own file that counts, this pull would work."""
    web = image(f"{world.slug}/web", "1")
    world.publish(1, {"web": {"image": web}}, entries=[world.robot_entry(password="wrong one")])

    ran = world.once(**with_environment(human)[0])

    assert ran.code == 1
    assert ran.errors["web"]["kind"] == "auth"
    assert "was not enough" in ran.errors["web"]["hint"]


def a_file(path: Path) -> list[str]:
    path.touch()
    return []


def a_symlink(path: Path) -> list[str]:
    path.symlink_to(path.parent.parent / "human/.docker")
    return []


def a_read_only_mount(path: Path) -> list[str]:
    require("root", os.geteuid() == 0, "a directory is mounted in a namespace of its own")
    path.mkdir(mode=0o700)
    mount = f"mount --bind {path} {path} && mount -o remount,bind,ro {path}"
    return ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]


@pytest.mark.parametrize("in_its_place", [a_file, a_symlink, a_read_only_mount])
def test_a_docker_config_that_cannot_be_written_ends_the_pass_without_falling_back(
    world: World,
    image: Callable[..., str],
    human: Path,
    in_its_place: Callable[[Path], list[str]],
) -> None:
    web = image(f"{world.slug}/web", "1")
    world.publish(1, {"web": {"image": web}})
    world.state.mkdir(mode=0o700)
    prefix = in_its_place(world.state / "docker")
    login = (human / ".docker/config.json").read_bytes()

    ran = world.once(prefix=prefix, **with_environment(human)[0])

    assert (ran.code, ran.json["outcome"]) == (1, "docker-config-unwritable")
    assert f"DOCKER_CONFIG {world.state}/docker can't be written" in ran.json["message"]
    assert world.report()["outcome"] == "docker-config-unwritable"
    assert not world.docker("images", "--quiet", web)
    assert (human / ".docker/config.json").read_bytes() == login


def config_json(world: World) -> Path:
    return world.state / "docker/config.json"


@pytest.mark.parametrize("umask", ["000", "077"])
def test_the_docker_config_is_private_under_any_umask(world: World, idle: str, umask: str) -> None:
    world.publish(1, {"web": {"image": idle}})

    ran = world.once(prefix=["sh", "-c", f'umask {umask} && exec "$@"', "sh"])

    assert ran.code == 0, ran.stderr
    assert stat.S_IMODE(config_json(world).stat().st_mode) == 0o600
    assert stat.S_IMODE(config_json(world).parent.stat().st_mode) == 0o700
    assert json.loads(config_json(world).read_text()) == login_document(world.registry)
    for private in ("", "releases", "current/", "state.db", "current/.env", "host.key"):
        assert stat.S_IMODE((world.state / private).stat().st_mode) & 0o077 == 0, private


def test_an_unchanged_docker_config_is_not_rewritten_and_a_stale_host_goes(
    world: World, idle: str
) -> None:
    other = {
        "name": "other",
        "path": world.put("other", {"username": "u", "password": "the password of the other"}),
        "use": "registry-auth",
        "registry_host": "other.example",
    }
    world.deploy(1, {"web": {"image": idle}}, entries=[world.robot_entry(), other])
    before = config_json(world).stat()
    assert set(json.loads(config_json(world).read_text())["auths"]) == {
        world.registry.host,
        "other.example",
    }

    assert world.once().code == 0
    after = config_json(world).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

    world.deploy(2, {"web": {"image": idle}})
    assert set(json.loads(config_json(world).read_text())["auths"]) == {world.registry.host}


CANARY = "c4n4ry-2f9d1c"


def spellings(text: str) -> set[bytes]:
    """`text` itself, and what base64 makes of it wherever it stands in a longer text."""
    found = {text.encode()}
    for shift in range(3):
        encoded = base64.b64encode(b"x" * shift + text.encode()).decode()
        found.add(encoded[4 if shift else 0 : -4].encode())
    return found


def leaks(text: bytes) -> list[bytes]:
    return [spelling for spelling in spellings(CANARY) if spelling in text]


@pytest.fixture
def canary_registry(tmp_path: Path) -> Iterator[Registry]:
    base = tmp_path / "canary"
    base.mkdir()
    registry = Registry.start(base, password=Secret(f"{CANARY}$&\"'password"))
    try:
        yield registry
    finally:
        registry.stop()


def everything_said(world: World, ran: Ran) -> bytes:
    """All that leaves the agent, and all that it keeps but for what holds secrets on purpose."""
    kept = [
        path
        for path in world.state.rglob("*")
        if path.is_file() and path != config_json(world) and path.name != "secret-file"
    ]
    assert world.state / "state.db" in kept
    assert any(path.name == ".env" for path in kept)
    reports = json.dumps(world.tenancy.received(world.slug), ensure_ascii=False)
    said = ran.stdout + ran.stderr + reports
    return b"\0".join([said.encode(), *(path.read_bytes() for path in kept)])


@pytest.mark.usefixtures("watchful")
def test_the_credential_is_seen_nowhere_but_in_docker_config(
    world: World, canary_registry: Registry, engine: Any, run_label: str
) -> None:
    """In the most talkative log, through a good pass, a refused pull, and a bad release."""
    from monky_deployd.demo.images import make_image

    web = make_image(engine, canary_registry, f"{world.slug}/web", "1", label=run_label)
    world.registry = canary_registry
    world.configure(log={"level": "debug"})
    service = {"image": web, "env_file": ".env"}
    entries = [world.robot_entry(), {"name": "LEVEL", "value": "1"}]

    world.publish(1, {"web": service}, entries=entries)
    good = world.once()
    canary_registry.rotate(Secret("another password"))
    world.publish(2, {"web": service}, entries=entries)
    refused = world.once()
    canary_registry.rotate(Secret(f"{CANARY}$&\"'password"))
    world.publish(3, {"web": {**service, **crashing(web)}}, entries=entries)
    bad = world.once()

    assert [ran.json["outcome"] for ran in (good, refused, bad)] == [
        "converged",
        "pull-failed",
        "rolled-back",
    ]
    for ran in (good, refused, bad):
        assert leaks(everything_said(world, ran)) == []
    assert leaks(world.inside("web", "cat", "/proc/1/environ")) == []
    assert leaks(json.dumps(world.container("web")).encode()) == []
    assert leaks(config_json(world).read_bytes()) != []


def test_a_secret_value_is_seen_only_where_it_is_meant(world: World, idle: str) -> None:
    """Also where Compose's own words quote it."""
    path = world.put("db", {"password": f"{CANARY}:not-an-image: $ref"})
    entries = [world.robot_entry(), {"name": "PASSWORD", "path": path, "key": "password"}]
    world.configure(log={"level": "debug"})
    world.publish(1, {"web": {"image": idle, "env_file": ".env"}}, entries=entries)
    good = world.once()
    world.publish(2, {"web": {"image": "${PASSWORD}"}}, entries=entries)
    quoted = world.once()
    world.publish(3, {"web": {"image": idle, "stop_grace_period": "${PASSWORD}"}}, entries=entries)
    invalid = world.once()

    assert [ran.code for ran in (good, quoted, invalid)] == [0, 1, 1]
    for ran in (good, quoted, invalid):
        reports = json.dumps(world.tenancy.received(world.slug), ensure_ascii=False)
        assert leaks((ran.stdout + ran.stderr + reports).encode()) == []
    database = b"".join(path.read_bytes() for path in world.state.glob("state.db*"))
    assert leaks(database) == []
    assert leaks((world.state / "current/.env").read_bytes()) != []
