"""Old releases leave nothing behind: their images go too, but never one that somebody else has."""

import json
from collections.abc import Callable

import pytest

from tests.real.world import Ran, World

pytestmark = pytest.mark.real

Image = Callable[..., str]


def image_id(world: World, reference: str) -> str:
    """The id of a local image, "" where there is none of that name."""
    params = {"filters": json.dumps({"reference": [reference]})}
    found = world.engine.request("GET", "/images/json", params=params).json()
    return str(found[0]["Id"]) if found else ""


def is_here(world: World, image: str) -> bool:
    """Whether there is an image of this id."""
    return any(found["Id"] == image for found in world.engine.request("GET", "/images/json").json())


def test_what_only_a_removed_release_had_goes_and_what_anybody_else_has_stays(
    world: World, image: Image, run_label: str
) -> None:
    def make(name: str, tag: str) -> str:
        files = {"page": f"{world.slug} {name} {tag}".encode()}
        return image(f"{world.slug}/{name}", tag, files=files)

    names = ["own", "used", "named", "loaded"]
    first, second, third = ({name: make(name, tag) for name in names} for tag in "123")
    shared = make("shared", "1")

    def deploy(generation: int, images: dict[str, str]) -> Ran:
        services = {name: {"image": found} for name, found in images.items()}
        services["shared"] = {"image": shared}
        return world.deploy(generation, services, deploy={"keep_releases": 1})

    deploy(1, first)
    named = image_id(world, first["named"])
    world.docker("create", "--name", f"{world.slug}-other", "--label", run_label, first["used"])
    world.docker("tag", first["named"], f"{world.slug}-mine:1")
    as_if_loaded_by_hand(world, first["loaded"])
    deploy(2, second)
    assert image_id(world, first["own"]), "the release before the good one is kept"
    ran = deploy(3, third)

    left = {name for name in names if image_id(world, first[name])}
    assert left == {"used", "loaded"}
    assert image_id(world, f"{world.slug}-mine:1") == named
    assert all(image_id(world, found) for found in [shared, *second.values(), *third.values()])
    assert f"image {first['own']} (sha256:" in ran.stderr


def as_if_loaded_by_hand(world: World, reference: str) -> None:
    """Load an image anew, so that the engine knows of no registry that has it."""
    archive = world.base / "image.tar"
    world.docker("rm", "--force", f"{world.slug}-loaded-1")
    world.docker("save", "--output", str(archive), reference)
    world.docker("rmi", reference)
    world.docker("load", "--input", str(archive))


def test_an_image_whose_tag_has_moved_on_goes_too(world: World, image: Image) -> None:
    ids = []
    for generation in (1, 2, 3):
        page = {"page": f"{world.slug} moved {generation}".encode()}
        latest = image(f"{world.slug}/web", "latest", files=page)
        world.deploy(generation, {"web": {"image": latest}}, deploy={"keep_releases": 1})
        ids.append(world.container("web")["Image"])
    assert len(set(ids)) == 3
    assert [is_here(world, found) for found in ids] == [False, True, True]
