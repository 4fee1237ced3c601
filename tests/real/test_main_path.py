"""From "tenancy published a manifest" to "its containers run, and tenancy knows"."""

from collections.abc import Callable

import pytest

from tests.real.world import World

pytestmark = pytest.mark.real


def test_a_manifest_becomes_containers_and_a_report(
    world: World, image: Callable[..., str]
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
