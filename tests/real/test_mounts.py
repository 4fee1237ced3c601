"""What a release puts into its containers is what they see, also after it changed."""

from typing import Any

import pytest

from tests.real.world import World

pytestmark = pytest.mark.real


def entries(world: World, level: str) -> list[dict[str, Any]]:
    file = {"use": "file", "target": "conf/level", "mode": "0444"}
    return [
        world.robot_entry(),
        {"name": "LEVEL", "value": level},
        {"name": "level-file", "value": level, **file},
    ]


def test_a_changed_value_reaches_the_configs_and_secrets_that_are_made_of_it(
    every_compose: str, world: World, idle: str
) -> None:
    """Compose by itself leaves such a container as it is, with the old value in it."""
    services = {
        "by-text": {"image": idle, "configs": [{"source": "text", "target": "/seen"}]},
        "by-variable": {"image": idle, "configs": [{"source": "variable", "target": "/seen"}]},
        "secret": {"image": idle, "secrets": [{"source": "variable", "target": "/seen"}]},
        "none": {"image": idle},
    }
    top = {
        "configs": {"text": {"content": "${LEVEL}"}, "variable": {"environment": "LEVEL"}},
        "secrets": {"variable": {"environment": "LEVEL"}},
    }
    world.deploy(1, services, entries=entries(world, "one"), **top)
    before = world.incarnation("none")

    world.deploy(2, services, entries=entries(world, "two"), **top)

    seen = {name: world.inside(name, "cat", "/seen") for name in services if name != "none"}
    assert seen == dict.fromkeys(seen, b"two")
    assert world.incarnation("none") == before


def test_a_directory_of_the_release_stays_whole_when_old_releases_are_removed(
    world: World, idle: str
) -> None:
    services = {"web": {"image": idle, "volumes": ["./conf:/conf:ro"]}}
    for generation in range(1, 5):
        world.deploy(
            generation,
            services,
            entries=entries(world, "same"),
            deploy={"keep_releases": 1},
        )
        assert world.inside("web", "cat", "/conf/level") == b"same"
    assert len(list((world.state / "releases").iterdir())) < 4


def test_a_mount_of_what_the_release_does_not_hold_is_refused(world: World, idle: str) -> None:
    world.publish(1, {"web": {"image": idle, "volumes": ["./data:/data"]}})

    ran = world.once()

    assert (ran.code, ran.json["outcome"]) == (1, "manifest-invalid")
    assert "service 'web' mounts 'data', which the release does not hold" in ran.json["message"]
    assert not (world.state / "current").exists()
