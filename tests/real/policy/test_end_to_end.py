"""The policy from a manifest to the report: what it refuses touches nothing."""

import socket
from pathlib import Path

import pytest

from tests.real.world import World

pytestmark = pytest.mark.real


def test_a_refused_release_touches_nothing_and_says_all_that_is_wrong(
    every_compose: str, world: World, idle: str
) -> None:
    world.deploy(1, {"web": {"image": idle}})
    before = world.incarnation("web")
    world.publish(
        2,
        {
            "web": {"image": f"{world.registry.host}/shop/never-pulled:1", "privileged": True},
            "db": {"image": idle, "volumes": ["/var/run:/run/host"], "pid": "host"},
        },
    )

    ran = world.once()

    assert ran.code == 4
    outcome = ran.json
    assert outcome["outcome"] == "policy-refused"
    assert outcome["phase"] == "admit"
    assert outcome["next_try"] is None
    assert outcome["running_generation"] == 1
    assert outcome["message"].startswith("the host's policy refuses 3 things: services.")
    assert outcome["message"].endswith("generation 1 keeps running")
    assert world.incarnation("web") == before
    assert (world.state / "current").readlink().name.startswith("1-")
    assert {(error["service"], error["kind"]) for error in outcome["errors"]} == {
        ("web", "other"),
        ("db", "other"),
    }
    [web] = [error for error in outcome["errors"] if error["service"] == "web"]
    assert web["message"] == (
        "services.web.privileged: a privileged container is root on the host (rule privileged)"
    )
    assert web["hint"] == (
        "the host's owner allows it with privileged in policy.allow in the configuration"
    )
    assert world.report()["errors"] == outcome["errors"]


def test_what_the_hosts_owner_allows_is_deployed(world: World, idle: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    service = {"image": idle, "volumes": [f"{data}:/data"], "uts": "host"}
    world.publish(1, {"web": service})
    assert world.once().code == 4

    world.configure(policy={"bind_roots": [str(data)], "allow": ["host-namespace"]})

    assert world.once().code == 0
    world.inside("web", "touch", "/data/here")
    assert (data / "here").exists()


def test_a_remote_file_is_never_asked_for(world: World, idle: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/shop/parts.git"
        world.publish(1, {"web": {"image": idle}}, include=[url])

        ran = world.once()

        with pytest.raises(BlockingIOError):
            listener.accept()
    assert ran.code == 4
    assert "(rule remote-source)" in ran.json["message"]


def test_a_refusal_shows_no_secret(world: World, idle: str) -> None:
    password = "correct-horse-battery"
    entry = {"name": "PASSWORD", "path": world.put("db", {"value": password})}
    service = {"image": idle, "volumes": ["/etc/${PASSWORD}:/x"], "cap_add": ["${PASSWORD}"]}
    world.publish(1, {"web": service}, entries=[world.robot_entry(), entry])

    ran = world.once()

    assert ran.code == 4
    assert len(ran.json["errors"]) == 2
    assert password.lower() not in (ran.stdout + ran.stderr).lower()
