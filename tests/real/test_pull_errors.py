"""Pulls that fail: each service's own error, in its own words, and nothing that runs is touched."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monky_deployd.demo.engine import Engine
from monky_deployd.demo.images import cleanup, foreign_platform_image
from monky_deployd.demo.registry import Registry
from monky_deployd.errors import EngineError
from tests.parts import require
from tests.real.world import World

pytestmark = pytest.mark.real


def engines_words(engine: Engine, reference: str) -> str:
    """What the engine itself says when `reference` is pulled without a credential."""
    name, _, tag = reference.rpartition(":")
    with pytest.raises(EngineError) as caught:
        engine.request("POST", "/images/create", params={"fromImage": name, "tag": tag})
    answer = caught.value.cause
    message: str = json.loads(answer[answer.index("{") :])["message"]
    return message


@pytest.fixture
def three_broken(
    world: World, image: Callable[..., str], other_registry: Registry, run_label: str
) -> dict[str, tuple[str, str, str]]:
    """Three services with an image each that can't be pulled: reference, kind, own words."""
    unknown_tag = f"{world.registry.host}/{world.slug}/web:never-pushed"
    no_credential = f"{other_registry.host}/{world.slug}/web:1"
    unknown_host = f"registry.invalid/{world.slug}/web:1"
    said = f"manifest for {unknown_tag} not found: manifest unknown: manifest unknown"
    image(f"{world.slug}/web", "pushed")
    return {
        "no-credential": (no_credential, "auth", engines_words(world.engine, no_credential)),
        "unknown-host": (unknown_host, "dns", engines_words(world.engine, unknown_host)),
        "unknown-tag": (unknown_tag, "not-found", said),
    }


def is_here(world: World, reference: str) -> bool:
    return bool(world.docker("images", "--quiet", reference).strip())


def test_three_services_that_fail_for_three_reasons_give_three_errors(
    every_compose: str,
    world: World,
    idle: str,
    image: Callable[..., str],
    three_broken: dict[str, tuple[str, str, str]],
) -> None:
    good = image(f"{world.slug}/good", "2")
    services = {name: {"image": reference} for name, (reference, _, _) in three_broken.items()}
    world.publish(1, {**services, "good": {"image": good}})

    ran = world.once()

    assert (ran.code, ran.json["outcome"], ran.json["phase"]) == (1, "pull-failed", "pull")
    for source in (ran.json, world.report()):
        assert len(source["errors"]) == 3
        for error in source["errors"]:
            reference, kind, words = three_broken[error["service"]]
            assert error["message"] == words
            assert error["kind"] == kind
            assert error["image"] == reference
            assert error["registry"] == reference.split("/")[0]
    for service, (_, _, words) in three_broken.items():
        assert f"{service}: {words}" in ran.stderr
    assert is_here(world, good)


def test_the_words_are_those_of_the_registry(three_broken: dict[str, tuple[str, str, str]]) -> None:
    """The yardstick of the test above: it would be worth little if the engine said nothing."""
    assert three_broken["no-credential"][2].endswith(": no basic auth credentials")
    assert "lookup registry.invalid" in three_broken["unknown-host"][2]


def test_a_failed_pull_leaves_what_runs_untouched(
    world: World, idle: str, three_broken: dict[str, tuple[str, str, str]]
) -> None:
    settings = [world.robot_entry(), {"name": "LEVEL", "value": "1"}]
    service = {"image": idle, "env_file": ".env"}
    world.deploy(1, {"web": service}, entries=settings)
    container, current = world.incarnation("web"), (world.state / "current").readlink()
    dotenv = (world.state / "current/.env").read_bytes()
    settings[1]["value"] = "2"
    broken = {name: {"image": reference} for name, (reference, _, _) in three_broken.items()}
    world.publish(2, {"web": service, **broken}, entries=settings)

    ran = world.once()

    assert (ran.code, ran.json["running_generation"]) == (1, 1)
    assert world.incarnation("web") == container
    assert (world.state / "current").readlink() == current
    assert (world.state / "current/.env").read_bytes() == dotenv == b'LEVEL="1"\n'
    assert world.report()["generation"] == 2
    assert world.report()["running_generation"] == 1


def test_the_same_failure_is_counted_and_keeps_its_first_time(world: World) -> None:
    world.publish(1, {"web": {"image": f"{world.registry.host}/{world.slug}/web:none"}})
    first = world.once().errors["web"]
    second = world.once().errors["web"]

    assert (first["count"], second["count"]) == (1, 2)
    assert first["first_seen"] == second["first_seen"]


def test_a_tag_that_was_moved_is_pulled_anew_and_runs(
    world: World, image: Callable[..., str]
) -> None:
    tag = image(f"{world.slug}/web", "latest", files={"content": b"old"})
    world.deploy(1, {"web": {"image": tag}})
    image(f"{world.slug}/web", "latest", files={"content": b"new"})
    world.deploy(2, {"web": {"image": tag}})
    assert world.inside("web", "cat", "/content") == b"new"


@pytest.mark.parametrize("policy", ["missing", "never"])
def test_an_image_that_is_here_is_not_asked_for_where_the_manifest_says_so(
    world: World, image: Callable[..., str], policy: str
) -> None:
    tag = image(f"{world.slug}/web", "latest", files={"content": b"old"})
    world.deploy(1, {"web": {"image": tag}})
    wrong = world.robot_entry(password="the registry refuses this one")
    changed = {"image": tag, "environment": {"N": "2"}}

    world.deploy(2, {"web": changed}, entries=[wrong], deploy={"pull": policy})

    absent = {"image": f"{world.registry.host}/{world.slug}/absent:1"}
    world.publish(3, {"web": absent}, entries=[wrong], deploy={"pull": policy})
    ran = world.once()
    assert ran.json["outcome"] == {"missing": "pull-failed", "never": "rolled-back"}[policy]


def test_a_missing_platform_is_told_by_its_service(
    every_compose: str, world: World, idle: str
) -> None:
    arm = foreign_platform_image(world.registry, f"{world.slug}/arm", "1")
    world.publish(1, {"arm": {"image": arm}, "web": {"image": idle}})

    ran = world.once()

    assert ran.code == 1
    [error] = world.report()["errors"]
    assert (error["service"], error["kind"], error["image"]) == ("arm", "platform", arm)
    assert re.fullmatch(
        r"no matching manifest for linux/\S+ in the manifest list entries", error["message"]
    )


@pytest.fixture
def small_engine() -> Iterator[Engine]:
    """A Docker Engine that has room for 24 MiB of images."""
    require("root", os.geteuid() == 0, "a file system of its own is mounted for the engine")
    # Not tmp_path: a unix socket's path may have 104 characters at most.
    with tempfile.TemporaryDirectory(prefix="monky-") as directory:
        base, disk = Path(directory), Path(directory, "disk")
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], check=True)
        try:
            engine = Engine.private(base, disk / "docker")
            try:
                yield engine
            finally:
                engine.stop()
        finally:
            subprocess.run(["umount", "--recursive", str(disk)], check=True)


def test_a_full_disk_is_told_by_its_service(
    world: World, image: Callable[..., str], small_engine: Engine, run_label: str
) -> None:
    large = image(f"{world.slug}/large", "1", files={"large": os.urandom(20 * 1024 * 1024)})
    small = image(f"{world.slug}/small", "1")
    service: dict[str, Any] = {"network_mode": "none"}
    world.configure(docker={"socket": str(small_engine.socket)})
    world.publish(1, {"small": {**service, "image": small}, "large": {**service, "image": large}})

    ran = world.once()
    cleanup(small_engine, run_label)

    assert ran.code == 1
    [error] = world.report()["errors"]
    assert (error["service"], error["kind"], error["image"]) == ("large", "disk", large)
    assert error["message"].endswith("no space left on device")
    assert error["message"] in ran.stderr
