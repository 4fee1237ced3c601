"""Compose's word is not taken: what came up badly is found, and told by its service."""

import re
import socket
from typing import Any

import pytest

from tests.real.services import STAY, crashing, looping, one_shot, sh, unhealthy
from tests.real.world import World

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("watchful")]


@pytest.mark.parametrize(
    ("service", "words"),
    [
        (crashing, r"exited \(1\)"),
        # Which of these it is depends on the moment at which it is seen.
        (looping, r"(restarts in a loop|was started again while it was watched|exited \(3\))"),
        (unhealthy, "is unhealthy"),
        (lambda image: one_shot(image, 4), r"exited \(4\)"),
    ],
    ids=["exits-after-a-second", "restart-loop", "unhealthy", "one-shot-that-fails"],
)
def test_a_service_that_came_up_badly_is_found(
    world: World, idle: str, service: Any, words: str
) -> None:
    world.publish(1, {"bad": service(idle), "good": {"image": idle}})

    ran = world.once()

    assert (ran.code, ran.json["outcome"]) == (1, "unhealthy")
    [error] = ran.json["errors"]
    assert (error["service"], error["image"]) == ("bad", idle)
    assert re.search(f"container {world.slug}-bad-1 {words}", error["message"])
    assert f"bad: {error['message']}" in ran.stderr
    assert world.report()["errors"] == ran.json["errors"]
    good = {status["service"]: status["good"] for status in world.report()["services"]}
    assert good == {"bad": False, "good": True}


def test_several_bad_services_are_each_told(world: World, idle: str) -> None:
    services = {"crash": crashing(idle), "loop": looping(idle), "sick": unhealthy(idle)}
    world.publish(1, {**services, "fine": {"image": idle}})

    ran = world.once()

    assert ran.code == 1
    assert set(ran.errors) == {"crash", "loop", "sick"}


def test_a_one_shot_that_did_its_work_is_good(every_compose: str, world: World, idle: str) -> None:
    world.publish(1, {"migrate": one_shot(idle, 0), "web": {"image": idle}})

    ran = world.once()

    assert (ran.code, ran.json["outcome"], ran.json["errors"]) == (0, "converged", [])
    states = {status["service"]: status["state"] for status in ran.json["services"]}
    assert states == {"migrate": "completed", "web": "running"}
    assert world.once().json["outcome"] == "up-to-date"


def test_a_service_that_waits_for_a_one_shot_starts_after_it(world: World, idle: str) -> None:
    after = {"migrate": {"condition": "service_completed_successfully"}}
    services = {"migrate": one_shot(idle, 0), "web": {"image": idle, "depends_on": after}}
    ran = world.deploy(1, services)
    assert ran.json["outcome"] == "converged"


def test_a_dependency_that_failed_is_told_with_who_waits_for_it(world: World, idle: str) -> None:
    after = {"migrate": {"condition": "service_completed_successfully"}}
    services = {"migrate": one_shot(idle, 4), "web": {"image": idle, "depends_on": after}}
    world.publish(1, services)

    ran = world.once()

    assert (ran.code, ran.json["outcome"]) == (1, "up-failed")
    assert "didn't complete successfully: exit 4" in ran.errors["migrate"]["message"]
    assert "was created but did not start" in ran.errors["web"]["message"]


def test_a_port_that_is_taken_is_told_in_the_engines_words(world: World, idle: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        service = {"image": idle, "ports": [f"127.0.0.1:{port}:80"]}
        world.publish(1, {"web": service, "other": {"image": idle}})
        ran = world.once()

    assert (ran.code, ran.json["outcome"], ran.json["phase"]) == (1, "up-failed", "up")
    assert "address already in use" in ran.errors["web"]["message"]
    assert str(port) in ran.errors["web"]["message"]

    assert world.once().code == 0


def test_a_command_that_is_not_there_is_told_by_its_service(world: World, idle: str) -> None:
    world.publish(1, {"web": {"image": idle, "command": ["/nowhere"]}, "other": {"image": idle}})

    ran = world.once()

    [error] = ran.json["errors"]
    assert error["service"] == "web"
    assert 'exec: "/nowhere": stat /nowhere: no such file or directory' in error["message"]


def test_a_service_that_never_gets_ready_is_told_when_its_time_is_up(
    world: World, idle: str
) -> None:
    check = {"test": ["CMD", "false"], "interval": "1s", "start_period": "1h"}
    service = {"image": idle, "healthcheck": check}
    world.publish(1, {"slow": service}, deploy={"wait_timeout": 1})

    ran = world.once()

    assert ran.code == 1
    assert "still starting" in ran.errors["slow"]["message"]


def test_a_slow_start_that_gets_there_is_good(world: World, idle: str) -> None:
    check = {"test": ["CMD", "test", "-e", "/tmp/ready"], "interval": "1s", "start_period": "1h"}
    ready_later = sh(f"sleep 2; touch /tmp/ready; {STAY}")
    world.deploy(1, {"slow": {"image": idle, "command": ready_later, "healthcheck": check}})
    assert world.report()["services"][0]["health"] == "healthy"
