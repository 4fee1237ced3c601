"""A release that isn't good: what `deploy.on_failure` says is done, and the report says both."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.real.services import STAY, crashing, looping, sh
from tests.real.world import World

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("watchful")]


def page(text: str) -> dict[str, bytes]:
    return {"www/index.html": text.encode()}


def read_page(world: World) -> bytes:
    return world.inside("web", "cat", "/www/index.html")


def entries(world: World, level: str) -> list[dict[str, Any]]:
    """A variable and a file, both with `level` as their value."""
    path = world.put("settings", {"level": level})
    secret = {"path": path, "key": "level"}
    return [
        world.robot_entry(),
        {"name": "LEVEL", **secret},
        {"name": "level-file", **secret, "use": "file", "target": "conf/level"},
    ]


def good(reference: str) -> dict[str, Any]:
    volumes = ["./conf/level:/level:ro"]
    return {"image": reference, "env_file": ".env", "volumes": volumes}


def bad(reference: str) -> dict[str, Any]:
    return {**good(reference), "command": crashing(reference)["command"]}


def test_the_last_good_release_comes_back_whole(
    every_compose: str, world: World, image: Callable[..., str]
) -> None:
    old = image(f"{world.slug}/web", "1", files=page("one"))
    new = image(f"{world.slug}/web", "2", files=page("two"))
    world.deploy(1, {"web": good(old)}, entries=entries(world, "one"))
    current = (world.state / "current").readlink()
    world.publish(2, {"web": bad(new), "extra": {"image": new}}, entries=entries(world, "two"))

    ran = world.once()

    assert (ran.code, ran.json["outcome"], ran.json["phase"]) == (1, "rolled-back", "verify")
    assert ran.json["generation"] == 2
    assert ran.json["running_generation"] == 1
    assert (world.state / "current").readlink() == current
    assert world.container("web")["Config"]["Image"] == old
    assert read_page(world) == b"one"
    assert world.variables("web")[b"LEVEL"] == b"one"
    assert world.inside("web", "cat", "/level") == b"one"
    names = world.docker("ps", "-a", "--format", "{{.Names}}", "--filter", f"name={world.slug}")
    assert names.split() == [f"{world.slug}-web-1"]
    report = world.report()
    assert "exited (1)" in report["errors"][0]["message"]
    assert report["message"].endswith("generation 1 was brought back and runs")
    [status] = report["services"]
    assert (status["service"], status["image"], status["good"]) == ("web", old, True)


def test_a_tag_that_was_moved_does_not_keep_the_old_image_away(
    world: World, image: Callable[..., str]
) -> None:
    tag = image(f"{world.slug}/web", "latest", files=page("one"))
    world.deploy(1, {"web": {"image": tag}})
    before = world.container("web")["Image"]
    image(f"{world.slug}/web", "latest", files=page("two"))
    world.publish(2, {"web": crashing(tag)})

    assert world.once().json["outcome"] == "rolled-back"

    assert world.container("web")["Image"] == before
    assert read_page(world) == b"one"


def test_the_release_that_was_brought_back_stays_when_it_is_published_again(
    world: World, image: Callable[..., str]
) -> None:
    tag = image(f"{world.slug}/web", "latest", files=page("one"))
    world.deploy(1, {"web": {"image": tag}})
    image(f"{world.slug}/web", "latest", files=page("two"))
    world.publish(2, {"web": crashing(tag)})
    world.once()
    before = world.incarnation("web")
    world.publish(1, {"web": {"image": tag}})

    ran = world.once()

    assert (ran.code, ran.json["outcome"]) == (0, "up-to-date")
    assert world.incarnation("web") == before
    world.docker("rm", "--force", before[0])
    assert world.once().json["outcome"] == "converged"
    assert read_page(world) == b"one"


def test_keep_leaves_what_came_up_badly(world: World, idle: str) -> None:
    world.deploy(1, {"web": {"image": idle}})
    world.publish(2, {"web": looping(idle)}, deploy={"on_failure": "keep"})

    ran = world.once()

    assert (ran.code, ran.json["outcome"]) == (1, "unhealthy")
    assert ran.json["running_generation"] == 2
    assert world.container("web")["HostConfig"]["RestartPolicy"]["Name"] == "always"
    assert ran.json["next_try"]


def test_stop_stops_the_containers_and_says_so(world: World, idle: str) -> None:
    world.deploy(1, {"web": {"image": idle}})
    services = {"bad": crashing(idle), "web": {"image": idle}}
    world.publish(2, services, deploy={"on_failure": "stop"})

    ran = world.once()

    assert (ran.code, ran.json["outcome"]) == (1, "stopped")
    assert ran.json["running_generation"] is None
    assert {world.container(name)["State"]["Status"] for name in services} == {"exited"}
    assert "exited (1)" in ran.errors["bad"]["message"]
    assert ran.json["next_try"] is None


def test_without_an_earlier_good_release_there_is_nothing_to_go_back_to(
    world: World, idle: str
) -> None:
    world.publish(1, {"web": crashing(idle)})
    ran = world.once()
    assert (ran.code, ran.json["outcome"]) == (1, "unhealthy")
    assert "no earlier good release" in ran.json["message"]


def test_a_release_that_was_rolled_back_waits_for_a_change_but_once_tries_it(
    world: World, idle: str
) -> None:
    """It crashes only until its data are there: they are mended, not the manifest."""
    service = {"image": idle, "volumes": ["data:/data"]}
    volumes = {"volumes": {"data": {}}}
    world.deploy(1, {"web": service}, **volumes)
    picky = sh(f"if [ ! -e /data/there ]; then sleep 1; exit 1; fi; {STAY}")
    world.publish(2, {"web": {**service, "command": picky}}, **volumes)
    assert world.once().json["outcome"] == "rolled-back"
    world.inside("web", "touch", "/data/there")
    before = world.incarnation("web")

    with world.daemon():
        report = world.wait_for_report(3)
    assert world.incarnation("web") == before
    assert (report["outcome"], report["running_generation"]) == ("rolled-back", 1)
    assert "was tried and found bad" in report["message"]
    assert "exited (1)" in report["errors"][0]["message"]

    ran = world.once()
    assert (ran.code, ran.json["outcome"], ran.json["running_generation"]) == (0, "converged", 2)


def test_a_release_that_was_rolled_back_is_not_tried_again_after_another_failure(
    world: World, idle: str
) -> None:
    world.deploy(1, {"web": {"image": idle}})
    world.publish(2, {"web": crashing(idle)})
    assert world.once().json["outcome"] == "rolled-back"
    before = world.incarnation("web")
    world.configure(openbao={"url": "http://127.0.0.1:1"})
    with world.daemon():
        assert world.wait_for_report(3)["outcome"] == "openbao-unreachable"

    world.configure()
    with world.daemon():
        report = world.wait_for_report(4)

    assert (report["outcome"], report["running_generation"]) == ("rolled-back", 1)
    assert report["errors"] == []
    assert world.incarnation("web") == before


def test_a_release_that_was_stopped_stays_stopped_and_says_so(world: World, idle: str) -> None:
    world.publish(1, {"web": crashing(idle)}, deploy={"on_failure": "stop"})
    assert world.once().json["outcome"] == "stopped"

    with world.daemon():
        report = world.wait_for_report(2)
    assert (report["outcome"], report["running_generation"]) == ("stopped", None)
    assert "was tried and found bad" in report["message"]
    assert "keeps running" not in report["message"]
    assert "exited (1)" in report["errors"][0]["message"]
    assert world.container("web")["State"]["Status"] == "exited"


def test_a_rollback_that_fails_too_says_both(world: World, image: Callable[..., str]) -> None:
    old = image(f"{world.slug}/web", "1", files=page("one"))
    new = image(f"{world.slug}/web", "2", files=page("two"))
    world.deploy(1, {"web": {"image": old}})
    world.docker("rm", "--force", world.container("web")["Id"])
    world.docker("rmi", "--force", old)
    world.publish(2, {"web": crashing(new)})

    ran = world.once()

    assert (ran.code, ran.json["outcome"]) == (1, "rollback-failed")
    messages = [error["message"] for error in world.report()["errors"]]
    assert any("exited (1)" in message for message in messages)
    assert any("No such image" in message for message in messages)
