"""From "tenancy published a manifest" to "its containers run, and tenancy knows"."""

import subprocess
from collections.abc import Callable

import pytest

from tests.real.world import World

pytestmark = pytest.mark.real


def test_a_manifest_becomes_containers_and_a_report(
    every_compose: str, world: World, image: Callable[..., str]
) -> None:
    web = image(f"{world.slug}/web", "1")
    world.publish(1, {"web": {"image": web}})

    ran = world.once()

    assert ran.code == 0, ran.stderr
    assert ran.json["outcome"] == "converged"
    assert world.container("web")["State"]["Status"] == "running"
    [report] = world.tenancy.reports(world.slug)
    assert report["outcome"] == "converged"
    assert report["services"][0]["good"] is True


def test_compose_is_the_one_that_was_meant(every_compose: str, world: World) -> None:
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "DOCKER_CONFIG": f"{world.state}/docker"}
    done = subprocess.run(
        ["docker", "compose", "version", "--short"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout.strip() == "2.26.1") is (every_compose == "2.26.1")


def test_a_second_pass_finds_nothing_to_do_and_touches_nothing(world: World, idle: str) -> None:
    world.deploy(1, {"web": {"image": idle}})
    before = world.incarnation("web")

    ran = world.once()

    assert (ran.code, ran.json["outcome"]) == (0, "up-to-date")
    assert world.incarnation("web") == before


def test_a_new_generation_replaces_what_changed_and_removes_what_is_gone(
    world: World, idle: str
) -> None:
    world.deploy(1, {"same": {"image": idle}, "other": {"image": idle}, "gone": {"image": idle}})
    same, other = world.incarnation("same"), world.incarnation("other")

    world.deploy(2, {"same": {"image": idle}, "other": {"image": idle, "environment": {"N": "2"}}})

    assert world.incarnation("same") == same
    assert world.incarnation("other") != other
    assert world.variables("other")[b"N"] == b"2"
    with pytest.raises(subprocess.CalledProcessError):
        world.container("gone")


def test_a_container_that_was_removed_comes_back_without_asking_the_registry(
    world: World, idle: str
) -> None:
    world.deploy(1, {"web": {"image": idle}})
    world.docker("rm", "--force", world.container("web")["Id"])
    world.robot_entry(password="the registry refuses this one")

    ran = world.once()

    assert (ran.code, ran.json["outcome"]) == (0, "converged")
    assert world.container("web")["State"]["Status"] == "running"


def test_an_image_that_was_removed_is_pulled_again(world: World, image: Callable[..., str]) -> None:
    web = image(f"{world.slug}/web", "1")
    world.deploy(1, {"web": {"image": web}})
    world.docker("rm", "--force", world.container("web")["Id"])
    world.docker("rmi", "--force", web)

    ran = world.once()

    assert (ran.code, ran.json["outcome"]) == (0, "converged"), ran.stdout
    assert world.container("web")["State"]["Status"] == "running"


def test_a_file_reaches_a_container_that_is_not_root(world: World, idle: str) -> None:
    entry = {
        "name": "tls-key",
        "path": world.put("tls", {"key": "line 1\nline 2\n"}),
        "key": "key",
        "use": "file",
        "target": "tls/key.pem",
    }
    service = {"image": idle, "user": "1234", "volumes": ["./tls/key.pem:/key.pem:ro"]}

    world.deploy(1, {"web": service}, entries=[world.robot_entry(), entry])

    assert world.inside("web", "cat", "/key.pem") == b"line 1\nline 2\n"
