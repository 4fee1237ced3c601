"""A host without a usable Compose: the agent says so, and what to do about it."""

import os
from pathlib import Path

import pytest

from tests.parts import require
from tests.real.world import World

pytestmark = pytest.mark.real

# Where a docker CLI looks for plugins beside DOCKER_CONFIG.
PLUGIN_DIRECTORIES = [
    Path(f"/usr{local}/{lib}/docker/cli-plugins")
    for local in ("/local", "")
    for lib in ("lib", "libexec")
]


@pytest.fixture
def without_plugins(world: World) -> list[str]:
    """Starts a program that sees empty plugin directories; for all others they stay as they are."""
    require("root", os.geteuid() == 0, "directories are mounted in a namespace of their own")
    empty = world.base / "empty"
    empty.mkdir()
    mounts = [f"mount --bind {empty} {path}" for path in PLUGIN_DIRECTORIES if path.is_dir()]
    script = " && ".join([*mounts, 'exec "$@"'])
    return ["unshare", "--mount", "sh", "-c", script, "sh"]


def test_a_missing_compose_plugin_is_named_with_its_remedy(
    world: World, idle: str, without_plugins: list[str]
) -> None:
    world.deploy(1, {"web": {"image": idle}})
    before = world.incarnation("web")
    world.publish(2, {"web": {"image": idle, "environment": {"N": "2"}}})

    ran = world.once(prefix=without_plugins)

    assert (ran.code, ran.json["outcome"]) == (1, "compose-unusable")
    for source in (ran.json, world.report()):
        assert f"no Compose plugin under DOCKER_CONFIG={world.state}/docker" in source["message"]
        assert "/usr/local/lib/docker/cli-plugins" in source["message"]
        assert "generation 1 keeps running" in source["message"]
    assert world.incarnation("web") == before


def test_a_plugin_in_somebodys_home_is_not_used(
    world: World, idle: str, without_plugins: list[str], compose_226: Path
) -> None:
    plugins = world.base / "human/.docker/cli-plugins"
    plugins.mkdir(parents=True)
    (plugins / "docker-compose").symlink_to(compose_226)
    world.publish(1, {"web": {"image": idle}})
    ran = world.once(prefix=without_plugins, HOME=str(world.base / "human"))
    assert ran.json["outcome"] == "compose-unusable"


def test_a_docker_that_is_missing_is_named(world: World, idle: str) -> None:
    world.configure(docker={"binary": "/nowhere/docker"})
    world.publish(1, {"web": {"image": idle}})
    ran = world.once()
    assert (ran.code, ran.json["outcome"]) == (1, "compose-unusable")
    assert "/nowhere/docker can't be started" in ran.json["message"]
    assert "set docker.binary and docker.path" in ran.json["message"]


def test_a_daemon_without_compose_says_so_at_its_start(
    world: World, without_plugins: list[str]
) -> None:
    with world.daemon(prefix=without_plugins) as daemon:
        daemon.wait_for("no Compose plugin")
        assert daemon.is_running
