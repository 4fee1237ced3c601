"""A manifest whose project has another name than before: nothing of the former one runs on."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from monky_deployd.demo.images import cleanup
from tests.real.services import crashing
from tests.real.world import World

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("watchful")]


@pytest.fixture
def other(world: World) -> Iterator[str]:
    """Another project's name."""
    name = f"{world.slug}-other"
    yield name
    cleanup(world.engine, f"com.docker.compose.project={name}")


def publish(world: World, generation: int, project: str, service: dict[str, Any]) -> None:
    model = {"services": {"web": service}, "volumes": {"data": None}}
    world.tenancy.publish(
        world.slug,
        {
            "schema": 1,
            "environment": world.slug,
            "generation": generation,
            "project": project,
            "compose": {"files": [{"name": "compose.yaml", "content": json.dumps(model)}]},
            "entries": [world.robot_entry()],
            "deploy": {"wait_timeout": 20},
        },
    )


def containers(world: World) -> list[str]:
    """The names of all containers of this world, running or not."""
    names = ["ps", "--all", "--format", "{{.Names}}", "--filter", f"name={world.slug}"]
    return world.docker(*names).split()


def with_data(image: str) -> dict[str, Any]:
    return {"image": image, "volumes": ["data:/data"], "stop_grace_period": "1s"}


def test_the_former_project_is_taken_down_and_its_volumes_stay(
    world: World, idle: str, other: str
) -> None:
    publish(world, 1, world.slug, with_data(idle))
    assert world.once().code == 0
    publish(world, 2, other, with_data(idle))

    ran = world.once()

    assert (ran.code, ran.json["outcome"]) == (0, "converged")
    assert "another project name" in ran.json["notes"][0]
    assert containers(world) == [f"{other}-web-1"]
    volumes = world.docker("volume", "ls", "--format", "{{.Name}}").split()
    assert {f"{world.slug}_data", f"{other}_data"} <= set(volumes)


def test_what_was_tried_under_the_new_name_is_taken_down_when_it_is_not_good(
    world: World, idle: str, other: str
) -> None:
    publish(world, 1, world.slug, with_data(idle))
    assert world.once().code == 0
    publish(world, 2, other, {**with_data(idle), **crashing(idle)})

    ran = world.once()

    assert ran.json["outcome"] == "rolled-back"
    assert containers(world) == [f"{world.slug}-web-1"]
    assert world.container("web")["State"]["Status"] == "running"
