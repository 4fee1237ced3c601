"""What is done about the good release between passes, from disk alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monky_deployd.agent import mend as module
from monky_deployd.agent.mend import Looked, Mender
from monky_deployd.domain.drift import EngineEvent
from monky_deployd.domain.verify import Container
from monky_deployd.errors import EngineError, Reason
from tests.unit.agent_fakes import DB, WEB, Clock, manifest
from tests.unit.deploy_host import CANARY, EXITED, NEW_WEB, Bao, Host, host_in

REMOVED = EngineEvent("destroy", "shop-web-1", "shop", "web", 1)
CRASHED = EngineEvent("die", "shop-web-1", "shop", "web", 1, "3")


@pytest.fixture
def mender(host: Host) -> Mender:
    return Mender(host.tools)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(module, "time", fake)
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    return fake


async def look(host: Host, mender: Mender, *events: EngineEvent, was_bad: bool = False) -> Looked:
    host.phases.clear()
    host.compose.calls.clear()
    return await mender.look(host.memory.history(), lambda: events, was_bad=was_bad)


def change(host: Host, **changes: Any) -> None:
    """Change every container, as somebody does by hand."""
    host.engine.containers_now = [replace(c, **changes) for c in host.engine.containers_now]


async def test_without_a_good_release_there_is_nothing_to_look_after(
    host: Host, mender: Mender
) -> None:
    assert await look(host, mender, REMOVED) == Looked()
    assert host.compose.calls == []


async def test_what_is_good_is_left_alone_and_nothing_is_recorded(
    host: Host, mender: Mender
) -> None:
    await host.deploy(manifest())
    assert await look(host, mender, REMOVED) == Looked()
    assert host.touched == []
    await look(host, mender, REMOVED)
    assert host.compose.calls == [], "the release on disk is read once"


async def test_what_is_missing_is_brought_back_from_disk_and_told(
    host: Host, mender: Mender
) -> None:
    await host.deploy(manifest(3, {"web": WEB, "db": DB}, entries=[host.password()]))
    host.engine.remove("web")

    looked = await look(host, mender, REMOVED)

    assert looked.passed is not None
    assert looked.again is None
    done = looked.passed.outcome
    assert (done.reason, done.generation, done.running) == (Reason.CONVERGED, 3, 3)
    assert done.notes == ("drift: container shop-web-1 was removed",)
    assert "runs again as it was released" in done.sentence
    assert host.compose.calls == ["model", "up"]
    assert {c.service for c in host.engine.containers_now} == {"web", "db"}


async def test_drift_that_nobody_saw_is_told_by_what_is_found(host: Host, mender: Mender) -> None:
    await host.deploy(manifest())
    host.engine.remove("web")
    looked = await look(host, mender)
    assert looked.passed is not None
    assert looked.passed.outcome.notes == ("drift: web: the service has no container",)


async def test_a_look_that_is_faster_than_the_events_waits_for_who_did_it(
    host: Host, mender: Mender
) -> None:
    await host.deploy(manifest())
    host.engine.remove("web")
    asked: list[list[EngineEvent]] = [[], [REMOVED]]
    looked = await mender.look(host.memory.history(), lambda: asked.pop(0), was_bad=False)
    assert looked.passed is not None
    assert looked.passed.outcome.notes == ("drift: container shop-web-1 was removed",)


async def test_a_paused_container_goes_on_before_compose_is_asked(
    host: Host, mender: Mender
) -> None:
    await host.deploy(manifest())
    change(host, state="paused")
    paused = [c.id for c in host.engine.containers_now]
    await look(host, mender, REMOVED)
    assert host.engine.unpaused == paused


@pytest.mark.parametrize("action", ["update", "rename"])
async def test_a_container_that_was_changed_is_made_anew_though_it_runs(
    host: Host, mender: Mender, action: str
) -> None:
    await host.deploy(manifest(services={"web": WEB, "db": DB}))
    changed = replace(REMOVED, action=action)
    stray = replace(changed, service="of another release")
    looked = await look(host, mender, changed, stray)
    assert looked.passed is not None
    assert host.compose.calls == ["model", "recreate web", "up"]


async def test_a_container_that_left_a_network_is_made_anew_though_it_runs(
    host: Host, mender: Mender
) -> None:
    await host.deploy(manifest(services={"web": WEB, "db": DB}))
    change(host, networks=("shop_default",))
    [web] = [c for c in host.engine.containers_now if c.service == "web"]
    left = EngineEvent("disconnect", web.id, "", "", 1, network="shop_front")
    assert await look(host, mender, replace(left, network="shop_default")) == Looked()
    looked = await look(host, mender, left)
    assert looked.passed is not None
    assert looked.passed.outcome.notes == (
        f"drift: container {web.name} was disconnected from network shop_front",
    )
    assert host.compose.calls == ["recreate web", "up"]


async def test_only_containers_that_the_project_may_have_concern_it_when_they_leave_a_network(
    host: Host, mender: Mender
) -> None:
    await host.deploy(manifest())
    [web] = host.engine.containers_now
    left = EngineEvent("disconnect", web.id, "", "", 1, network="shop_default")
    foreign = replace(left, container="of another project")

    def concern() -> tuple[bool, bool]:
        return mender.concerns(left), mender.concerns(foreign)

    assert concern() == (True, True), "nothing is known yet"
    await look(host, mender)
    assert concern() == (True, False)
    await look(host, mender, left)
    assert concern() == (True, True), "what was made anew is not known yet"
    await look(host, mender)
    mender.forget()
    assert concern() == (True, True)


async def test_a_container_that_leaves_a_network_while_the_engine_is_asked_concerns_the_project(
    host: Host, mender: Mender, monkeypatch: pytest.MonkeyPatch
) -> None:
    await host.deploy(manifest())
    [web] = host.engine.containers_now
    left = EngineEvent("disconnect", web.id, "", "", 1, network="shop_default")
    concerned: list[bool] = []
    asked = host.engine.containers

    async def containers(project: str) -> tuple[Container, ...]:
        concerned.append(mender.concerns(left))
        return await asked(project)

    monkeypatch.setattr(host.engine, "containers", containers)
    await look(host, mender)
    assert concerned == [True]


async def test_events_of_another_project_are_not_told(host: Host, mender: Mender) -> None:
    await host.deploy(manifest())
    host.engine.remove("web")
    looked = await look(host, mender, replace(REMOVED, project="other", container="other-1"))
    assert looked.passed is not None
    assert "other-1" not in " ".join(looked.passed.outcome.notes)


async def test_once_the_release_is_known_another_projects_events_concern_nobody(
    host: Host, mender: Mender
) -> None:
    foreign = replace(REMOVED, project="other")
    assert mender.concerns(foreign), "nothing is known yet"
    await host.deploy(manifest())
    await look(host, mender)
    assert mender.concerns(REMOVED)
    assert not mender.concerns(foreign)
    mender.forget()
    assert mender.concerns(foreign)


async def test_a_release_that_was_held_is_left_stopped(host: Host, mender: Mender) -> None:
    await host.deploy(manifest())
    history = replace(host.memory.history(), held_release=host.releases.current())
    host.engine.remove("web")
    assert await mender.look(history, lambda: [REMOVED], was_bad=False) == Looked()


async def test_a_release_that_is_not_the_good_one_is_left_to_its_pass(
    host: Host, mender: Mender
) -> None:
    await host.deploy(manifest())
    host.compose.comes_up_as[NEW_WEB] = EXITED
    await host.run(manifest(2, {"web": NEW_WEB}, deploy={"on_failure": "keep"}))
    assert await look(host, mender, CRASHED) == Looked()


# --- what can't be put right


async def test_a_restart_loop_is_told_at_the_second_look_and_not_touched(
    host: Host, mender: Mender, clock: Clock
) -> None:
    await host.deploy(manifest())
    change(host, state="restarting", restarts=3, exit_code=3)

    first = await look(host, mender, CRASHED)
    second = await look(host, mender)
    third = await look(host, mender)

    assert first.passed is None
    assert second.passed is not None
    assert second.passed.outcome.reason is Reason.UNHEALTHY
    assert "restarts in a loop" in second.passed.outcome.sentence
    assert (first.again, second.again, third.again) == (11.0, 22.0, 44.0)
    assert host.touched == []


async def test_once_it_is_good_again_that_is_told(host: Host, mender: Mender) -> None:
    await host.deploy(manifest())
    looked = await look(host, mender, was_bad=True)
    assert looked.passed is not None
    assert looked.passed.outcome.reason is Reason.UP_TO_DATE


async def test_one_that_still_starts_is_looked_at_again_and_not_called_bad(
    host: Host, mender: Mender
) -> None:
    await host.deploy(manifest())
    change(host, health="starting")
    for _ in range(3):
        looked = await look(host, mender)
        assert looked.passed is None
        assert looked.again


async def test_what_comes_up_badly_from_disk_is_left_to_a_whole_pass(
    host: Host, mender: Mender
) -> None:
    await host.deploy(manifest())
    host.engine.remove("web")
    host.compose.comes_up_as[WEB] = EXITED

    looked = await look(host, mender, REMOVED)

    assert looked.wants_pass
    assert looked.passed is not None
    assert looked.passed.outcome.reason is Reason.UNHEALTHY


async def test_what_ends_by_itself_is_brought_back_three_times_and_then_waited_with(
    host: Host, mender: Mender, clock: Clock
) -> None:
    await host.deploy(manifest())
    for _ in range(3):
        change(host, **EXITED)
        assert (await look(host, mender, CRASHED)).passed is not None
    change(host, **EXITED)

    waits = await look(host, mender, CRASHED)
    assert (waits.again, host.touched) == (10.0, [])
    by_hand = await look(host, mender, REMOVED)
    assert by_hand.passed is not None
    assert host.touched == ["up"], "what somebody did is undone at once"

    clock.now += 10
    change(host, **EXITED)
    assert (await look(host, mender, CRASHED)).passed is not None


async def test_an_engine_that_is_away_is_told_at_the_second_look(
    host: Host, mender: Mender
) -> None:
    await host.deploy(manifest())
    host.engine.error = EngineError("the Docker Engine does not answer")
    first, second = await look(host, mender), await look(host, mender)
    assert first.passed is None
    assert first.again
    assert second.passed is not None
    assert second.passed.outcome.reason is Reason.ENGINE_UNREACHABLE

    host.engine.error = None
    host.engine.remove("web")
    assert (await look(host, mender)).passed is not None


async def test_a_fault_of_the_agents_own_ends_the_look_and_is_told(
    host: Host, mender: Mender, caplog: pytest.LogCaptureFixture
) -> None:
    await host.deploy(manifest())
    host.compose.errors["model"] = RuntimeError("a surprise")
    await look(host, mender)
    looked = await look(host, mender)
    assert looked.passed is not None
    assert looked.passed.outcome.reason is Reason.INTERNAL
    assert "a surprise" in caplog.text


# --- the host's say, and what must not be seen


async def test_a_release_that_the_host_no_longer_allows_is_not_brought_up(
    tmp_path: Path, bao: Bao
) -> None:
    with host_in(tmp_path, bao) as before:
        await before.deploy(manifest())
        containers = before.engine
    with host_in(tmp_path, bao, policy={"registries": ["other.example"]}) as host:
        host.engine.images = containers.images
        mender = Mender(host.tools)
        await look(host, mender)
        looked = await look(host, mender)
        assert looked.passed is not None
        assert looked.passed.outcome.reason is Reason.POLICY_REFUSED
        assert host.touched == []


async def test_a_secret_that_only_the_disk_knows_is_masked(tmp_path: Path, bao: Bao) -> None:
    """The agent was started anew, and OpenBao holds another value by now."""
    with host_in(tmp_path, bao) as before:
        file = {"name": "key", "path": "env-a/db", "key": "password", "use": "file", "target": "k"}
        await before.deploy(manifest(entries=[before.password(), file]))
    with host_in(tmp_path, bao) as host:
        host.engine.images = {WEB: f"sha256:{WEB}"}
        await look(host, Mender(host.tools))
        assert host.scrubber.scrub(f"with {CANARY} in it") == "with [secret] in it"
