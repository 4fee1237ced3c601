"""Images of releases that are gone: what may be removed, and when it is tried again."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from monky_deployd.agent.housekeeping import Housekeeper, pulled_by, remember_pulled
from monky_deployd.agent.memory import Memory
from monky_deployd.clients.engine import EngineClient
from monky_deployd.domain.images import LocalImage, what_to_remove
from monky_deployd.domain.rendering import RenderedFile
from monky_deployd.errors import EngineError
from monky_deployd.host.releases import Releases
from monky_deployd.host.store import Store
from tests.unit.agent_fakes import good

R1, R2, R3 = "1-aaaaaaaaaaaa", "2-bbbbbbbbbbbb", "3-cccccccccccc"
PULLED = ("reg.example/web@sha256:d",)


@pytest.mark.parametrize(
    ("image", "reference_id", "removed"),
    [
        (None, "", None),
        (LocalImage("a", ("web:1",), PULLED), "a", "web:1"),
        (LocalImage("a", ("web:1", "mine:1"), PULLED), "a", "web:1"),
        (LocalImage("a", (), PULLED), "b", "a"),
        (LocalImage("a", (), PULLED), "", "a"),
        (LocalImage("a", ("mine:1",), PULLED), "b", None),
        (LocalImage("a", ("web:1",), ()), "a", None),
    ],
    ids=[
        "gone",
        "by-its-name",
        "with-another-name",
        "moved",
        "untagged",
        "moved-with-another-name",
        "from-no-registry",
    ],
)
def test_only_what_a_registry_can_give_again_is_removed_and_only_by_our_name(
    image: LocalImage | None, reference_id: str, removed: str | None
) -> None:
    assert what_to_remove(image, "web:1", reference_id) == removed


@dataclass
class Images(EngineClient):
    """An engine of images, by name and id."""

    known: dict[str, LocalImage] = field(default_factory=dict)
    used: frozenset[str] = frozenset()
    removed: list[str] = field(default_factory=list)
    error: EngineError | None = None

    async def image(self, reference: str) -> LocalImage | None:
        return self.known.get(reference)

    async def images_in_use(self) -> frozenset[str]:
        if self.error:
            raise self.error
        return self.used

    async def remove_image(self, reference: str) -> bool:
        self.removed.append(reference)
        return True


@dataclass
class Host:
    """Three releases, each with an image of its own and one that all have."""

    store: Store
    releases: Releases

    def __post_init__(self) -> None:
        self.engine = Images()
        self.memory = Memory(self.store, self.releases, 300.0)
        self.keeper = Housekeeper(self.engine, self.releases, self.store)
        shared = LocalImage("shared", ("db:1",), PULLED)
        self.engine.known |= {"shared": shared, "db:1": shared}
        for release_id in (R1, R2, R3):
            self.releases.stage(release_id, {".monky/release.json": RenderedFile(b"{}")})
            name = f"web:{release_id[0]}"
            image = LocalImage(release_id, (name,), PULLED)
            self.engine.known |= {release_id: image, name: image}
            remember_pulled(self.releases, release_id, {name: release_id, "db:1": "shared"})

    @property
    def waiting(self) -> set[str]:
        return set(self.store.state().unused_images)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Store(tmp_path / "state.db") as store:
        yield Host(store, Releases(tmp_path))


async def test_the_images_of_a_removed_release_go_but_for_what_others_have(host: Host) -> None:
    host.memory.record(good(R3))
    assert host.releases.ids() == [R2, R3]
    assert host.waiting == {R1, "shared"}
    await host.keeper.tidy()
    assert host.engine.removed == ["web:1"]
    assert host.waiting == set()
    await host.keeper.tidy()
    assert host.engine.removed == ["web:1"]


async def test_what_any_container_uses_stays(host: Host) -> None:
    host.engine.used = frozenset({R1})
    host.memory.record(good(R3))
    await host.keeper.tidy()
    assert host.engine.removed == []
    assert host.waiting == set()


async def test_while_the_engine_is_away_nothing_is_forgotten(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    host.engine.error = EngineError("it does not answer")
    host.memory.record(good(R3))
    await host.keeper.tidy()
    assert "it does not answer" in caplog.text
    assert host.waiting == {R1, "shared"}
    host.engine.error = None
    await host.keeper.tidy()
    assert host.engine.removed == ["web:1"]


def test_each_image_that_a_release_ever_had_is_on_record(host: Host) -> None:
    remember_pulled(host.releases, R1, {"web:1": "another"})
    assert pulled_by(host.releases, [R1]) == {R1: "web:1", "another": "web:1", "shared": "db:1"}
    assert pulled_by(host.releases, ["9-ffffffffffff"]) == {}
