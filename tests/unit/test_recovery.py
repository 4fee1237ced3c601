"""A release that isn't good: what is done about it, and that it isn't tried again by itself."""

from collections.abc import Callable
from typing import Any

import pytest

from monky_deployd.domain.compose_events import ComposeEvent
from monky_deployd.domain.report import Outcome, Phase
from monky_deployd.errors import ComposeError, EngineError, Reason
from tests.unit.agent_fakes import WEB, manifest
from tests.unit.deploy_host import (
    DEPLOY,
    EXITED,
    NEW_WEB,
    ROLLOUT,
    Host,
)

UNHEALTHY = ComposeEvent(error="container shop-web-1 is unhealthy")
TAKEN = ComposeEvent(id="Container shop-web-1", error="bind: address already in use")


# --- a release that isn't good


def went_bad_in_up(host: Host) -> None:
    host.compose.up_says = (UNHEALTHY,)
    host.compose.comes_up_as[NEW_WEB] = {"health": "unhealthy"}


def did_not_start(host: Host) -> None:
    host.compose.up_says = (TAKEN,)
    host.compose.comes_up_as[NEW_WEB] = {"state": "created"}


def went_bad_afterwards(host: Host) -> None:
    host.compose.comes_up_as[NEW_WEB] = EXITED


BAD = pytest.mark.parametrize(
    ("goes_bad", "phase", "reason", "words"),
    [
        (did_not_start, Phase.UP, Reason.UP_FAILED, "bind: address already in use"),
        (went_bad_in_up, Phase.VERIFY, Reason.UNHEALTHY, "container shop-web-1 is unhealthy"),
        (went_bad_afterwards, Phase.VERIFY, Reason.UNHEALTHY, "container shop-web-1 exited (1)"),
    ],
    ids=["not-started", "seen-by-up", "seen-afterwards"],
)


async def test_a_bad_release_is_rolled_back_to_the_last_good_one(host: Host) -> None:
    await host.deploy(manifest(1))
    good = host.releases.current()
    went_bad_afterwards(host)

    done = await host.run(manifest(2, {"web": NEW_WEB}))

    assert (done.reason, done.phase) == (Reason.ROLLED_BACK, Phase.VERIFY)
    assert (done.generation, done.running, done.next_try) == (2, 1, None)
    assert host.phases == [*DEPLOY, *ROLLOUT]
    assert host.compose.calls == ["model", "pull web", "up", "model", "up"]
    assert host.releases.current() == good
    assert [f.message for f in done.faults] == ["container shop-web-1 exited (1)"]
    assert done.sentence.endswith("; generation 1 was brought back and runs")
    assert [(s.image, s.good) for s in done.services] == [(WEB, True)]


async def test_a_rollback_takes_the_image_that_was_good_not_where_its_tag_points_now(
    host: Host,
) -> None:
    await host.deploy(manifest(1))
    [before] = host.engine.containers_now
    host.engine.images["old"] = before.image_id
    host.engine.images[WEB] = "sha256:moved"
    host.compose.comes_up_as[WEB] = EXITED

    done = await host.run(manifest(2))

    assert done.reason is Reason.ROLLED_BACK
    assert [c.image_id for c in host.engine.containers_now] == [before.image_id]


async def test_a_rollback_that_comes_up_badly_too_says_both(host: Host) -> None:
    await host.deploy(manifest(1))
    went_bad_afterwards(host)
    host.compose.comes_up_as[WEB] = {"state": "restarting", "restarts": 4}

    done = await host.run(manifest(2, {"web": NEW_WEB}))

    assert (done.reason, done.phase, done.next_try) == (
        Reason.ROLLBACK_FAILED,
        Phase.VERIFY,
        None,
    )
    assert [f.message for f in done.faults] == [
        "container shop-web-1 exited (1)",
        "container shop-web-1 restarts in a loop: 4 restarts so far, last exit code 0",
    ]
    assert "going back to generation 1 failed too" in done.sentence


async def test_a_rollback_that_cannot_be_made_says_both(host: Host) -> None:
    await host.deploy(manifest(1))
    went_bad_afterwards(host)
    good = host.releases.current()
    assert good is not None
    (host.releases.path(good) / ".monky/release.json").unlink()

    done = await host.run(manifest(2, {"web": NEW_WEB}))

    assert done.reason is Reason.ROLLBACK_FAILED
    assert done.faults[0].message == "container shop-web-1 exited (1)"
    assert "release.json" in done.faults[1].message


@BAD
async def test_keep_leaves_what_came_up_badly_and_tries_again(
    host: Host,
    goes_bad: Callable[[Host], None],
    phase: Phase,
    reason: Reason,
    words: str,
) -> None:
    await host.deploy(manifest(1))
    goes_bad(host)

    done = await host.run(manifest(2, {"web": NEW_WEB}, deploy={"on_failure": "keep"}))

    assert (done.reason, done.phase, done.running) == (reason, phase, 2)
    assert [f.message for f in done.faults] == [words]
    assert done.next_try
    assert host.touched == ["up"]


@BAD
async def test_without_an_earlier_good_release_it_is_left_as_it_is(
    host: Host,
    goes_bad: Callable[[Host], None],
    phase: Phase,
    reason: Reason,
    words: str,
) -> None:
    goes_bad(host)
    done = await host.run(manifest(1, {"web": NEW_WEB}))
    assert (done.reason, done.phase) == (reason, phase)
    assert "there is no earlier good release to go back to" in done.sentence
    assert done.next_try


async def test_the_good_release_itself_is_not_gone_back_to_when_it_comes_up_badly(
    host: Host,
) -> None:
    await host.deploy(manifest(1))
    went_bad_afterwards(host)
    await host.run(manifest(2, {"web": NEW_WEB}, deploy={"on_failure": "keep"}))
    host.compose.comes_up_as[WEB] = EXITED

    done = await host.run(manifest(1))

    assert (done.reason, done.running) == (Reason.UNHEALTHY, 1)
    assert "there is no earlier good release to go back to" in done.sentence
    assert host.touched == ["up"]


async def test_stop_stops_the_containers_and_nothing_is_said_to_run(host: Host) -> None:
    await host.deploy(manifest(1))
    went_bad_afterwards(host)

    done = await host.run(manifest(2, {"web": NEW_WEB}, deploy={"on_failure": "stop"}))

    assert (done.reason, done.phase) == (Reason.STOPPED, Phase.VERIFY)
    assert (done.running, done.next_try) == (None, None)
    assert host.touched == ["up", "stop"]
    assert {c.state for c in host.engine.containers_now} == {"exited"}


@pytest.mark.parametrize("raises", [True, False])
async def test_a_stop_that_fails_is_told_beside_what_led_to_it(host: Host, raises: bool) -> None:
    went_bad_afterwards(host)
    if raises:
        host.compose.errors["stop"] = ComposeError("docker can't be started")
    else:
        host.compose.stop_code = 1

    done = await host.run(manifest(2, {"web": NEW_WEB}, deploy={"on_failure": "stop"}))

    assert done.reason is Reason.UNHEALTHY
    assert [f.message for f in done.faults] == [
        "container shop-web-1 exited (1)",
        "docker can't be started"
        if raises
        else "docker compose stop ended with exit code 1: it said nothing",
    ]
    assert "stopping its containers failed" in done.sentence


async def test_an_up_that_fails_without_an_error_is_not_taken_for_good(host: Host) -> None:
    """What ran before is still there, and would pass for the new release."""
    host.compose.up_code = 125
    host.compose.up_says = (ComposeEvent(log="unknown shorthand flag: 'p' in -p"),)
    done = await host.run(manifest())
    assert (done.reason, done.phase) == (Reason.UP_FAILED, Phase.UP)
    assert done.faults[0].message == (
        "docker compose up ended with exit code 125: unknown shorthand flag: 'p' in -p"
    )


async def test_a_one_shot_that_did_its_work_is_good_though_compose_calls_it_an_error(
    host: Host,
) -> None:
    host.compose.up_says = (ComposeEvent(error="container shop-web-1 exited (0)"),)
    host.compose.comes_up_as[WEB] = {"state": "exited", "restart_policy": "no"}
    done = await host.deploy(manifest())
    assert done.services[0].state == "completed"


# --- held releases


async def rolled_back(host: Host, **fields: Any) -> Outcome:
    await host.deploy(manifest(1, **fields))
    went_bad_afterwards(host)
    done = await host.run(manifest(2, {"web": NEW_WEB}, **fields))
    assert done.reason is Reason.ROLLED_BACK
    return done


async def test_a_release_that_was_rolled_back_is_not_tried_again_by_itself(host: Host) -> None:
    first = await rolled_back(host)
    host.compose.comes_up_as.clear()
    before = host.what_runs

    done = await host.run(manifest(2, {"web": NEW_WEB}))

    assert (done.reason, done.running, done.next_try) == (Reason.ROLLED_BACK, 1, None)
    assert done.faults == first.faults
    assert "it is not tried again until" in done.sentence
    assert host.touched == []
    assert host.what_runs == before


async def test_a_release_that_was_stopped_is_said_to_be_stopped(host: Host) -> None:
    body = manifest(2, {"web": NEW_WEB}, deploy={"on_failure": "stop"})
    await host.deploy(manifest(1))
    went_bad_afterwards(host)
    await host.run(body)

    done = await host.run(body)

    assert (done.reason, done.running) == (Reason.STOPPED, None)
    assert "keeps running" not in done.sentence
    assert host.touched == []


async def test_forced_tries_a_held_release_again(host: Host) -> None:
    await rolled_back(host)
    host.compose.comes_up_as.clear()
    done = await host.run(manifest(2, {"web": NEW_WEB}), forced=True)
    assert (done.reason, done.running) == (Reason.CONVERGED, 2)


async def test_a_value_that_changed_makes_it_another_release(host: Host) -> None:
    entry = host.password()
    await rolled_back(host, entries=[entry])
    host.compose.comes_up_as.clear()
    host.openbao.put(entry["path"], {"password": "another password"})

    done = await host.run(manifest(2, {"web": NEW_WEB}, entries=[entry]))

    assert (done.reason, done.running) == (Reason.CONVERGED, 2)


async def test_it_stays_held_through_a_pass_that_could_not_get_so_far(host: Host) -> None:
    await rolled_back(host, entries=[host.password()])
    body = manifest(2, {"web": NEW_WEB}, entries=[host.password()])
    host.openbao.seal()
    try:
        assert (await host.run(body)).reason is Reason.OPENBAO_SEALED
    finally:
        host.openbao.unseal()

    assert (await host.run(body)).reason is Reason.ROLLED_BACK
    assert host.touched == []


# --- another project name


async def test_the_containers_of_the_former_project_make_way_and_are_removed(host: Host) -> None:
    await host.deploy(manifest())
    done = await host.deploy(manifest(2, project="other"))
    assert host.compose.calls == ["model", "pull web", "stop", "up", "down shop"]
    assert done.notes == ("the containers of generation 1, of another project name, were removed",)


async def test_going_back_to_the_former_project_removes_what_was_tried(host: Host) -> None:
    await host.deploy(manifest())
    host.compose.comes_up_as[NEW_WEB] = EXITED
    done = await host.run(manifest(2, {"web": NEW_WEB}, project="other"))
    assert done.reason is Reason.ROLLED_BACK
    assert [call for call in host.compose.calls if call.split()[0] in ("stop", "up", "down")] == [
        "stop",
        "up",
        "down other",
        "up",
    ]
    assert "generation 2" in done.notes[0]


async def test_the_same_project_name_is_nothing_to_leave(host: Host) -> None:
    await host.deploy(manifest())
    done = await host.deploy(manifest(2))
    assert "down" not in " ".join(host.compose.calls)
    assert done.notes == ()


# --- an engine that goes away


@pytest.mark.parametrize(
    "words",
    [
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?",
        "error during connect: Get http://engine/containers/json: EOF",
        "unexpected EOF",
    ],
)
async def test_an_engine_that_goes_away_in_up_says_nothing_about_the_release(
    host: Host, words: str
) -> None:
    await host.deploy(manifest())
    host.compose.up_says = (ComposeEvent(error=words),)
    done = await host.run(manifest(2, {"web": NEW_WEB}))
    assert done.reason is Reason.ENGINE_UNREACHABLE
    assert words in done.sentence
    assert done.next_try

    host.compose.up_says = ()
    assert (await host.run(manifest(2, {"web": NEW_WEB}))).reason is Reason.CONVERGED


async def test_an_engine_that_goes_away_in_a_rollback_does_not_end_the_trying(host: Host) -> None:
    await host.deploy(manifest())
    went_bad_afterwards(host)
    calls = 0

    async def go_away() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise EngineError("the Docker Engine does not answer")

    host.compose.on_up = go_away
    done = await host.run(manifest(2, {"web": NEW_WEB}))
    assert done.reason is Reason.ENGINE_UNREACHABLE
    assert done.next_try
    assert (await host.run(manifest(2, {"web": NEW_WEB}))).reason is Reason.ROLLED_BACK
