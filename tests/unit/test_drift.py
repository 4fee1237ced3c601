"""Events of the engine: which matter, how they are told, and how often what they did is undone."""

import json
from dataclasses import replace

import pytest

from monky_deployd.domain.drift import (
    LISTENED_TO,
    EngineEvent,
    as_stopped,
    changed_services,
    drift_notes,
    of_project,
    parse_event,
    pause_before_repair,
    still_told,
)
from monky_deployd.domain.verify import Container, Expected, judge

DONE = Container("c1", "shop-web-1", "web", "sha256:a", "exited", exit_code=0)
WANTED = [Expected("web", "web:1")]


def event(action: str, container: str = "shop-web-1", exit_code: str = "") -> EngineEvent:
    return EngineEvent(action, container, "shop", "web", 1, exit_code)


def left(container: str, network: str = "shop_default") -> EngineEvent:
    return EngineEvent("disconnect", container, "", "", 17, network=network)


def line(**changes: object) -> bytes:
    labels = {
        "com.docker.compose.project": "shop",
        "com.docker.compose.service": "web",
        "name": "shop-web-1",
        "exitCode": "137",
    }
    document = {"Action": "die", "Actor": {"Attributes": labels}, "timeNano": 17, **changes}
    return json.dumps(document).encode()


def test_an_event_is_read_as_the_engine_writes_it() -> None:
    assert parse_event(line()) == EngineEvent("die", "shop-web-1", "shop", "web", 17, "137")


def test_of_a_container_that_leaves_a_network_the_engine_tells_just_the_id() -> None:
    actor = {"ID": "n1", "Attributes": {"container": "c1", "name": "shop_default"}}
    read = parse_event(line(Type="network", Action="disconnect", Actor=actor))
    assert read == left("c1")
    assert read.matters
    assert read.by_hand
    assert read.action in LISTENED_TO
    assert parse_event(line(Type="network", Action="connect", Actor=actor)) is None
    assert parse_event(line(Type="network", Action="disconnect", Actor={"Attributes": {}})) is None


def test_one_that_was_disconnected_is_named_and_made_anew() -> None:
    alone = replace(DONE, state="running", networks=("shop_back",))
    found = of_project("shop", [left("c1")], [alone])
    assert found == [replace(left("c1"), container=DONE.name, project="shop", service="web")]
    assert drift_notes(found) == (
        "drift: container shop-web-1 was disconnected from network shop_default",
    )
    assert changed_services(found) == ("web",)


def test_one_that_only_stopped_was_not_disconnected() -> None:
    stopped = replace(DONE, networks=("shop_default",))
    assert of_project("shop", [left("c1"), event("stop")], [stopped]) == [event("stop")]


def test_what_happens_to_other_projects_is_left_out() -> None:
    other = replace(event("destroy"), project="blog")
    assert of_project("shop", [other, left("c2"), event("die")], [DONE]) == [event("die")]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"no json",
        b"[]",
        b"null",
        line(Actor=None),
        line(Actor={"Attributes": {"name": "no project"}}),
        line(timeNano="soon"),
        line(timeNano=float("inf")),
        b"[" * 100_000,
    ],
    ids=range(9),
)
def test_what_is_no_event_of_a_projects_container_is_none(text: bytes) -> None:
    assert parse_event(text) is None


@pytest.mark.parametrize("action", ["create", "start", "exec_create: sh", "health_status: healthy"])
def test_what_changes_nothing_is_no_reason_to_look(action: str) -> None:
    assert not event(action).matters


@pytest.mark.parametrize(
    ("action", "by_hand"),
    [
        ("destroy", True),
        ("kill", True),
        ("pause", True),
        ("rename", True),
        ("stop", True),
        ("update", True),
        ("die", False),
        ("oom", False),
        ("health_status: unhealthy", False),
    ],
)
def test_what_matters_is_listened_to(action: str, by_hand: bool) -> None:
    assert event(action).matters
    assert event(action).by_hand is by_hand
    assert action.split(":")[0] in LISTENED_TO


def test_each_thing_is_told_once_in_order_and_with_its_exit_code() -> None:
    events = [event("kill"), event("die", exit_code="137"), event("start"), event("kill")]
    assert drift_notes(events) == (
        "drift: container shop-web-1 was sent a signal",
        "drift: container shop-web-1 ended with exit code 137",
    )


def test_one_that_was_stopped_by_hand_is_no_one_shot_that_is_done() -> None:
    assert judge(WANTED, {}, [DONE], [DONE], {}).faults == ()
    stopped = as_stopped([DONE], [event("stop")])
    verdict = judge(WANTED, {}, stopped, stopped, {})
    assert verdict.mendable
    assert verdict.faults[0].message == (
        "container shop-web-1 exited (0) when it was stopped by hand"
    )


@pytest.mark.parametrize("events", [[], [event("die")], [event("stop", "shop-other-1")]])
def test_one_that_ended_by_itself_is_done(events: list[EngineEvent]) -> None:
    assert as_stopped([DONE], events) == (DONE,)


@pytest.mark.parametrize(
    ("state", "health", "mendable"),
    [
        ("exited", "", True),
        ("dead", "", True),
        ("created", "", True),
        ("paused", "", True),
        ("restarting", "", False),
        ("running", "unhealthy", False),
        ("running", "starting", False),
    ],
)
def test_only_what_will_not_run_again_by_itself_is_mended(
    state: str, health: str, mendable: bool
) -> None:
    found = [Container("c1", "shop-web-1", "web", "a", state, health, exit_code=1)]
    verdict = judge(WANTED, {}, found, found, {})
    assert verdict.faults
    assert verdict.mendable is mendable


def test_a_missing_container_and_another_image_are_mended() -> None:
    assert judge(WANTED, {}, [], [], {}).mendable
    found = [Container("c1", "shop-web-1", "web", "sha256:b", "running")]
    assert judge(WANTED, {}, found, found, {"web:1": "sha256:a"}).mendable
    assert not judge(WANTED, {}, found, found, {"web:1": "sha256:b"}).mendable


def test_what_somebody_did_is_told_with_what_comes_of_it_within_a_minute() -> None:
    told_to_stop = event("kill")
    ended = replace(event("die"), at=30 * 10**9)
    another = replace(event("die", "shop-other-1"), at=90 * 10**9)
    assert still_told([told_to_stop, ended]) == [told_to_stop]
    assert still_told([told_to_stop, another]) == []
    assert still_told([]) == []


@pytest.mark.parametrize(
    ("repairs", "pause"),
    [
        ([], 0),
        ([990, 995], 0),
        ([980, 990, 995], 5),
        ([980, 985, 990, 995], 15),
        ([980, 985, 990, 1000], 20),
        ([100, 200, 300], 0),
        ([float(n) for n in range(900, 1000)], 299),
    ],
)
def test_what_ends_by_itself_again_and_again_is_put_right_ever_more_rarely(
    repairs: list[float], pause: float
) -> None:
    assert pause_before_repair(repairs, 1000.0) == pause
