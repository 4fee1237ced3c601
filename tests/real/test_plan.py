"""`plan` says what a pass would do, beside a running agent, and does none of it."""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.real.services import unhealthy
from tests.real.world import Ran, World

pytestmark = pytest.mark.real


def plan(world: World, code: int = 0) -> dict[str, Any]:
    ran = world.agent("plan", "--json")
    assert ran.code == code, ran.stderr
    return ran.json


def services(document: dict[str, Any]) -> dict[str, tuple[str, list[str], bool]]:
    return {
        item["service"]: (item["change"], item["keys"], item["pulled"])
        for item in document["services"]
    }


def on_disk(world: World) -> dict[str, str]:
    """Every file and link below the state directory, with what is in it."""
    return {
        str(path.relative_to(world.state)): (
            str(path.readlink())
            if path.is_symlink()
            else hashlib.sha256(path.read_bytes()).hexdigest()
        )
        for path in sorted(world.state.rglob("*"))
        # Beside the database every reader makes these; they hold nothing.
        if (path.is_symlink() or path.is_file()) and not path.name.endswith(("-shm", "-wal"))
    }


def test_before_the_first_deploy_everything_is_new(
    every_compose: str, world: World, image: Callable[..., str]
) -> None:
    web = image(f"{world.slug}/web", "1")
    world.publish(1, {"web": {"image": web}})

    document = plan(world)

    assert (document["step"], document["generation"]) == ("deploy", 1)
    assert document["message"] == "a pass would deploy generation 1"
    assert services(document) == {"web": ("new", [], True)}
    assert set(on_disk(world)) - {"docker/cli-plugins/docker-compose"} == {"host.key"}
    assert world.docker("ps", "-aq", "--filter", f"name={world.slug}") == ""


def test_a_new_generation_is_told_by_service_and_key_and_never_by_value(
    every_compose: str, world: World, idle: str
) -> None:
    path = world.put("db", {"password": "s3cr3t-of-the-plan"})
    entries = [world.robot_entry(), {"name": "PASSWORD", "path": path, "key": "password"}]
    env = {"image": idle, "environment": {"PASSWORD": "${PASSWORD}"}}
    world.deploy(1, {"same": {"image": idle}, "env": env, "gone": {"image": idle}}, entries=entries)
    world.put("db", {"password": "s3cr3t-of-tomorrow"})
    more = {"same": {"image": idle}, "env": env, "more": {"image": idle}}
    world.publish(2, more, entries=entries, deploy={"pull": "missing"})
    before, runs = on_disk(world), world.incarnation("env")

    document = plan(world)

    assert services(document) == {
        "env": ("changed", ["environment"], False),
        "gone": ("removed", [], False),
        "more": ("new", [], False),
        "same": ("unchanged", [], False),
    }
    assert "s3cr3t" not in str(document)
    assert on_disk(world) == before
    assert world.incarnation("env") == runs
    told = world.agent("plan")
    assert "deploy: a pass would deploy generation 2" in told.stdout
    assert "s3cr3t" not in told.stdout + told.stderr


def test_beside_a_running_agent_it_tells_of_what_is_deployed(world: World, idle: str) -> None:
    world.publish(1, {"web": {"image": idle}})
    with world.daemon() as daemon:
        daemon.wait_for("generation 1 runs")
        document = plan(world)
        daemon.stop()
    assert document["step"] == "nothing"
    assert document["message"] == "generation 1 runs and is good: a pass would change nothing"
    assert services(document) == {"web": ("unchanged", [], False)}


def test_what_was_removed_by_hand_would_be_brought_up_again(world: World, idle: str) -> None:
    world.deploy(1, {"web": {"image": idle}})
    world.docker("rm", "--force", world.container("web")["Id"])

    document = plan(world)

    assert document["step"] == "repair"
    assert document["problems"] == ["web: the service has no container"]


def test_a_release_that_was_rolled_back_is_held(world: World, idle: str) -> None:
    world.deploy(1, {"web": {"image": idle}})
    world.publish(2, {"web": unhealthy(idle)}, deploy={"wait_timeout": 5})
    assert world.once().json["outcome"] == "rolled-back"

    document = plan(world)

    assert document["step"] == "hold"
    assert "would not try it again" in document["message"]


def test_what_a_pass_would_refuse_is_refused_with_the_same_words(world: World, idle: str) -> None:
    world.publish(1, {"web": {"image": idle, "privileged": True, "pid": "host"}})

    document = plan(world, code=4)
    passed: Ran = world.once()

    assert document["outcome"] == "policy-refused"
    assert [error["message"] for error in document["errors"]] == [
        error["message"] for error in passed.json["errors"]
    ]
    assert "(rule privileged)" in str(document["errors"])


def test_without_tenancy_there_is_nothing_to_plan(world: World, idle: str) -> None:
    world.deploy(1, {"web": {"image": idle}})
    world.configure(tenancy={"port": 1, "request_timeout": 2})
    assert plan(world, code=3)["outcome"] == "tenancy-unreachable"
