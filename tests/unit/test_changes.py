"""What a new release changes, from two models."""

from typing import Any

from monky_deployd.clients.engine import container_from_inspect
from monky_deployd.domain.changes import Change, ResolvedModel, pulls, service_changes

OLD, NEW = "/srv/state/releases/1-aa", "/srv/state/releases/.staging-bb"


def resolved(directory: str, **services: Any) -> ResolvedModel:
    return ResolvedModel({"services": services}, directory)


def changes(
    before: ResolvedModel | None, after: ResolvedModel, *running: str, remove_orphans: bool = True
) -> dict[str, tuple[Change, tuple[str, ...]]]:
    containers = tuple(
        container_from_inspect({"Config": {"Labels": {"com.docker.compose.service": name}}})
        for name in running
    )
    found = service_changes(before, after, containers, remove_orphans=remove_orphans)
    assert [change.service for change in found] == sorted(change.service for change in found)
    return {change.service: (change.change, change.keys) for change in found}


def test_where_a_release_lies_is_no_change() -> None:
    before = resolved(OLD, web={"image": "web:1", "volumes": [{"source": f"{OLD}/conf"}]})
    after = resolved(NEW, web={"image": "web:1", "volumes": [{"source": f"{NEW}/conf"}]})
    assert changes(before, after, "web") == {"web": (Change.UNCHANGED, ())}


def test_a_change_is_told_by_its_keys() -> None:
    before = resolved(OLD, web={"image": "web:1", "environment": {"A": "secret"}, "user": "1"})
    after = resolved(NEW, web={"image": "web:2", "environment": {"A": "other"}, "init": True})
    keys = ("environment", "image", "init", "user")
    assert changes(before, after, "web") == {"web": (Change.CHANGED, keys)}


def test_what_has_a_container_and_no_release_is_taken_over() -> None:
    after = resolved(NEW, web={"image": "web:1"}, db={"image": "db:1"})
    assert changes(None, after, "web") == {
        "db": (Change.NEW, ()),
        "web": (Change.TAKEN_OVER, ()),
    }


def test_what_is_gone_from_the_model_is_removed_or_left_as_the_manifest_wants() -> None:
    before = resolved(OLD, web={"image": "web:1"}, gone={"image": "gone:1"})
    after = resolved(NEW, web={"image": "web:1"})
    removed = changes(before, after, "web", "gone", "orphan")
    assert removed["gone"] == removed["orphan"] == (Change.REMOVED, ())
    left = changes(before, after, "web", "gone", remove_orphans=False)
    assert left["gone"] == (Change.LEFT, ())


def test_what_would_be_pulled() -> None:
    found = service_changes(
        resolved(OLD, gone={"image": "gone:1"}),
        resolved(NEW, web={"image": "web:1"}, db={"image": "db:1"}, nothing={}),
        (),
        remove_orphans=True,
    )

    def pulled(**policy: bool) -> set[str]:
        told = pulls(found, {"db:1": "sha256:1"}, **{"always": False, "never": False, **policy})
        return {change.service for change in told if change.pulled}

    assert pulled() == {"web"}
    assert pulled(always=True) == {"web", "db"}
    assert pulled(never=True, always=True) == set()
