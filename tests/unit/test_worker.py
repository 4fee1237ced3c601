"""The worker: when a pass is made, over which manifest, and what becomes of it."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from monky_deployd.agent import agenda, vitals
from monky_deployd.agent import worker as module
from monky_deployd.agent.journey import Passed
from monky_deployd.agent.mend import Looked
from monky_deployd.demo.grants import GrantIssuer
from monky_deployd.domain.drift import EngineEvent
from monky_deployd.domain.report import Fault, Phase
from monky_deployd.errors import OpenBaoError, Reason, StateError
from tests.unit.agent_fakes import ENV, NOW, Clock, Record, failed, good, outcome, running, turns
from tests.unit.worker_host import Host, host_in

R2 = "2-bbbbbbbbbbbb"
HELD = Passed(outcome(Reason.ROLLED_BACK, faults=(Fault("bad"),)), R2, digest="d", held=True)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(agenda, "time", fake)
    monkeypatch.setattr(vitals, "time", fake)
    return fake


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with host_in(tmp_path) as made:
        yield made


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is due again at once."""
    monkeypatch.setattr("monky_deployd.agent.memory.release_delay", lambda *_: 0.0)
    monkeypatch.setattr(module, "release_delay", lambda *_: 0.0)


@pytest.fixture
def often_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new grant is looked for all the time."""
    monkeypatch.setattr(module, "GRANT_LOOK_INTERVAL", 0.005)


async def test_each_new_manifest_is_one_pass_and_its_outcome_is_kept_and_told(host: Host) -> None:
    worker = host.worker()
    async with running(worker.run()):
        await turns()
        assert host.reconciler.begun == []
        worker.manifest(b"one")
        first = await host.outcomes.number(1)
        worker.manifest(b"two")
        await host.outcomes.number(2)
        await turns()

    assert [made.body for made in host.reconciler.begun] == [b"one", b"two"]
    assert {made.token for made in host.reconciler.begun} == {host.grant_file.read_text()}
    assert host.reconciler.begun[1].history.applied_generation == first.generation
    assert len(host.memory.store.pending(10)) == 2


async def test_of_manifests_that_come_during_a_pass_the_last_gets_the_next_pass(
    host: Host,
) -> None:
    host.reconciler.slow = True
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"one")
        await host.reconciler.begun.number(1)
        worker.manifest(b"two")
        worker.manifest(b"three")
        host.reconciler.finish()
        await host.reconciler.begun.number(2)
        host.reconciler.finish()
        await host.outcomes.number(2)
        await turns()

    assert [made.body for made in host.reconciler.begun] == [b"one", b"three"]


async def test_a_failed_pass_is_made_again_when_it_is_due(host: Host, no_pauses: None) -> None:
    host.reconciler.results.extend([failed(), failed(), good()])
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"one")
        await host.outcomes.number(3)
        await turns()

    assert [made.body for made in host.reconciler.begun] == [b"one"] * 3


async def test_the_wall_clock_does_not_decide_when_it_is_due(
    host: Host, no_pauses: None, clock: Clock
) -> None:
    """The outcome is dated by a wall clock that is a day ahead of everything else."""
    ahead = replace(failed(), outcome=failed(finished_at=NOW + timedelta(days=10000)).outcome)
    host.reconciler.results.extend([ahead, good()])
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"one")
        await host.outcomes.number(2)


async def test_a_new_manifest_ends_the_pause_at_once(host: Host) -> None:
    host.reconciler.results.append(failed())
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"one")
        assert (await host.outcomes.number(1)).next_try
        worker.manifest(b"two")
        await host.outcomes.number(2)

    assert [made.body for made in host.reconciler.begun] == [b"one", b"two"]


async def test_a_new_grant_ends_the_pause_at_its_next_look(host: Host, often_looked: None) -> None:
    host.reconciler.results.append(failed(Reason.GRANT_REFUSED))
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"one")
        assert (await host.outcomes.number(1)).next_try
        host.install(GrantIssuer().issue(ENV))
        await host.outcomes.number(2)

    first, second = host.reconciler.begun
    assert first.token != second.token


async def test_a_new_grant_that_another_task_took_into_use_first_ends_the_pause_too(
    host: Host, often_looked: None
) -> None:
    host.reconciler.results.append(failed())
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"one")
        await host.outcomes.number(1)
        host.install(GrantIssuer().issue(ENV))
        host.grants.current()
        await host.outcomes.number(2)


async def test_the_grant_of_before_ends_no_pause(
    host: Host, often_looked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: Record[bool] = Record()
    newer_than = host.grants.newer_than

    def counted(edition: int) -> bool:
        looks.append(newer_than(edition))
        return looks[-1]

    monkeypatch.setattr(host.grants, "newer_than", counted)
    host.reconciler.results.append(failed())
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"one")
        await host.outcomes.number(1)
        await looks.number(3)

    assert looks == [False] * len(looks)
    assert len(host.reconciler.begun) == 1


async def test_where_no_pass_waits_nobody_looks_for_a_grant(
    host: Host, often_looked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What changes nothing costs nothing."""
    monkeypatch.setattr(host.grants, "newer_than", lambda edition: pytest.fail("looked"))
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"one")
        await host.outcomes.number(1)
        await asyncio.sleep(0.05)


async def test_nothing_is_touched_while_the_environment_is_decommissioned(
    host: Host, no_pauses: None
) -> None:
    host.reconciler.slow = True
    host.reconciler.results.append(failed())
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"one")
        await host.reconciler.begun.number(1)
        worker.decommissioned(True)
        host.reconciler.finish()
        await host.outcomes.number(1)
        worker.manifest(b"two")
        await turns()
        assert len(host.reconciler.begun) == 1
        worker.decommissioned(False)
        await host.reconciler.begun.number(2)

    assert host.reconciler.begun[1].body == b"two"


async def test_what_was_due_meanwhile_is_made_up_for_when_the_environment_is_back(
    host: Host, no_pauses: None
) -> None:
    host.reconciler.results.append(failed())
    worker = host.worker()
    worker.decommissioned(True)
    async with running(worker.run()):
        worker.manifest(b"one")
        await turns()
        worker.decommissioned(True)
        await turns()
        assert host.reconciler.begun == []
        worker.decommissioned(False)
        await host.outcomes.number(2)
        worker.decommissioned(False)
        await turns()

    assert len(host.reconciler.begun) == 2


async def test_forced_is_the_first_pass_and_the_tries_after_it_until_one_got_so_far(
    host: Host, no_pauses: None
) -> None:
    host.reconciler.results.extend([failed(Reason.OPENBAO_SEALED), HELD])
    worker = host.worker(forced=True)
    async with running(worker.run()):
        worker.manifest(b"one")
        await host.outcomes.number(2)
        worker.manifest(b"two")
        await host.outcomes.number(3)

    assert [made.forced for made in host.reconciler.begun] == [True, True, False]
    assert host.reconciler.begun[2].history.held_release == R2


async def test_without_a_grant_the_pass_waits_for_one_and_says_so(
    host: Host, often_looked: None, caplog: pytest.LogCaptureFixture
) -> None:
    grant = host.grant_file.read_text()
    host.grant_file.unlink()
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"one")
        await turns()
        assert host.reconciler.begun == []
        assert "the pass could not be made or recorded: there is no grant at" in caplog.text
        host.install(grant)
        await host.outcomes.number(1)


async def test_an_outcome_that_cannot_be_recorded_is_not_told_and_the_pass_is_made_again(
    host: Host, no_pauses: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record = host.memory.store.record
    errors = [StateError("full"), StateError("full")]

    def failing(*args: Any, **kwargs: Any) -> Any:
        if errors:
            raise errors.pop()
        return record(*args, **kwargs)

    monkeypatch.setattr(host.memory.store, "record", failing)
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"one")
        await host.outcomes.number(1)

    assert len(host.reconciler.begun) == 3
    assert caplog.text.count("the pass could not be made or recorded: full") == 2


async def test_passes_that_cannot_be_recorded_are_made_with_growing_pauses(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def delay(failures: int, uniform: Any) -> float:
        asked.append(failures)
        return 0.0

    monkeypatch.setattr(module, "release_delay", delay)
    host.reconciler.results.extend([StateError("a"), StateError("b"), good(), StateError("c")])
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"one")
        await host.outcomes.number(1)
        worker.manifest(b"two")
        await host.outcomes.number(2)

    assert asked == [1, 2, 1]


async def test_a_pass_has_a_time_to_be_heard_of_again_and_idleness_has_none(
    host: Host, clock: Clock
) -> None:
    host.reconciler.slow = True
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"one")
        await host.reconciler.begun.number(1)
        clock.now += 99
        assert host.vitals.overdue() == []
        clock.now += 1
        assert host.vitals.overdue() == ["worker"]
        host.reconciler.finish()
        await host.outcomes.number(1)
        await turns()
        clock.now += 1e9
        assert host.vitals.overdue() == []


async def test_a_cancelled_pass_is_not_recorded(host: Host) -> None:
    host.reconciler.slow = True
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"one")
        await host.reconciler.begun.number(1)

    assert host.reconciler.cancelled == 1
    assert host.memory.store.pending(10) == []
    await worker.finished()


# --- looks between passes


EVENT = EngineEvent("destroy", "shop-web-1", "shop", "web", 1)


@pytest.fixture
def no_debounce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_EVENTS_TOGETHER", 0.0)


def bad(reason: Reason = Reason.UNHEALTHY) -> Passed:
    return failed(reason, "it crashes", generation=1)


async def test_the_first_thing_is_a_look_without_any_manifest(host: Host) -> None:
    worker = host.worker()
    async with running(worker.run()):
        first = await host.mender.looks.number(1)
        await turns()
    assert (first.events, first.was_bad) == ([], False)
    assert (host.reconciler.begun, host.outcomes) == ([], [])


async def test_events_lead_to_a_look_and_what_it_came_to_is_kept_and_told(
    host: Host, no_debounce: None
) -> None:
    mended = good(notes=("drift: it was removed",))
    worker = host.worker()
    async with running(worker.run()):
        await host.mender.looks.number(1)
        host.mender.results.append(Looked(mended))
        worker.saw(EVENT)
        worker.saw(EVENT)
        told = await host.outcomes.number(1)
        await turns()

    assert host.mender.looks[1].events == [EVENT, EVENT]
    assert told.notes == ("drift: it was removed",)
    [report] = host.memory.store.pending(10)
    assert report.body["notes"] == ["drift: it was removed"]
    assert host.memory.store.state().good_release is None, "what passes know is not changed"


async def test_what_happens_to_other_projects_is_no_reason_to_look(
    host: Host, no_debounce: None
) -> None:
    worker = host.worker()
    async with running(worker.run()):
        await host.mender.looks.number(1)
        worker.saw(replace(EVENT, project="other"))
        await turns()
    assert len(host.mender.looks) == 1


async def test_a_slow_stop_is_still_told_with_the_end_that_it_led_to(
    host: Host, no_debounce: None
) -> None:
    told_to_stop, ended = replace(EVENT, action="kill"), replace(EVENT, action="die", at=2)
    worker = host.worker()
    async with running(worker.run()):
        await host.mender.looks.number(1)
        worker.saw(told_to_stop)
        await host.mender.looks.number(2)
        host.mender.results.append(Looked(good()))
        worker.saw(ended)
        await host.mender.looks.number(3)
        worker.saw(EVENT)
        await host.mender.looks.number(4)

    assert [look.events for look in host.mender.looks[1:]] == [
        [told_to_stop],
        [told_to_stop, ended],
        [EVENT],
    ]


async def test_a_bad_look_is_made_again_and_told_as_bad_until_it_is_good(
    host: Host, no_debounce: None
) -> None:
    host.mender.results.extend([Looked(bad(), 0.0), Looked(good())])
    worker = host.worker()
    async with running(worker.run()):
        first = await host.outcomes.number(1)
        second = await host.outcomes.number(2)
        await turns()

    assert first.next_try == first.finished_at
    assert second.good
    assert [look.was_bad for look in host.mender.looks] == [False, True]


async def test_while_a_failed_pass_waits_it_alone_tells_what_is_bad(
    host: Host, no_debounce: None
) -> None:
    host.reconciler.results.append(failed(Reason.PULL_FAILED, "no such tag", generation=2))
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"two")
        await host.outcomes.number(1)
        host.mender.results.extend([Looked(bad(), 0.0), Looked(good(notes=("drift: gone",)))])
        worker.saw(EVENT)
        await host.mender.looks.number(2)
        await turns()
        assert len(host.mender.looks) == 2, "the pass looks by itself when it is due"
        worker.saw(EVENT)
        mended = await host.outcomes.number(2)

    assert (mended.reason, mended.generation) == (Reason.PULL_FAILED, 2)
    assert mended.faults[0].message == "no such tag"
    assert mended.notes[0] == "drift: gone"
    assert mended.next_try == host.outcomes[0].next_try


async def test_what_cannot_be_put_right_from_disk_is_a_pass_at_once(
    host: Host, no_debounce: None
) -> None:
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"one")
        await host.outcomes.number(1)
        host.mender.results.append(Looked(bad(), 10.0, wants_pass=True))
        worker.saw(EVENT)
        await host.reconciler.begun.number(2)
        await host.outcomes.number(2)

    assert [made.body for made in host.reconciler.begun] == [b"one", b"one"]


async def test_a_failed_pass_that_waits_is_not_hastened_by_a_bad_look(
    host: Host, no_debounce: None
) -> None:
    host.reconciler.results.append(failed())
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"two")
        await host.outcomes.number(1)
        host.mender.results.append(Looked(bad(), 10.0, wants_pass=True))
        worker.saw(EVENT)
        await host.mender.looks.number(2)
        await turns()
    assert len(host.reconciler.begun) == 1


async def test_without_a_manifest_the_bad_look_is_all_there_is_to_tell(host: Host) -> None:
    host.mender.results.append(Looked(bad(), 1000.0, wants_pass=True))
    worker = host.worker()
    async with running(worker.run()):
        assert (await host.outcomes.number(1)).reason is Reason.UNHEALTHY


async def test_what_a_pass_did_itself_is_no_drift(host: Host, no_debounce: None) -> None:
    host.reconciler.slow = True
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"one")
        await host.reconciler.begun.number(1)
        worker.saw(EVENT)
        host.reconciler.finish()
        await host.outcomes.number(1)
        look = await host.mender.looks.number(2)

    assert look.events == []
    assert host.mender.forgot == 1


async def test_what_happened_during_a_pass_that_touched_nothing_is_looked_into(
    host: Host, no_debounce: None
) -> None:
    host.reconciler.slow = True
    host.reconciler.results.append(failed(phase=Phase.RESOLVE))
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"one")
        await host.reconciler.begun.number(1)
        worker.saw(EVENT)
        host.reconciler.finish()
        look = await host.mender.looks.number(2)

    assert look.events == [EVENT]


async def test_a_look_that_cannot_be_made_or_recorded_is_made_again(
    host: Host, no_pauses: None, caplog: pytest.LogCaptureFixture
) -> None:
    host.mender.results.extend([StateError("the disk is full"), Looked(good())])
    worker = host.worker()
    async with running(worker.run()):
        await host.outcomes.number(1)
    assert "the disk is full" in caplog.text


async def test_a_decommissioned_environment_is_not_looked_after(
    host: Host, no_debounce: None
) -> None:
    worker = host.worker()
    async with running(worker.run()):
        await host.mender.looks.number(1)
        worker.decommissioned(True)
        worker.saw(EVENT)
        await turns()
        assert len(host.mender.looks) == 1
        worker.decommissioned(False)
        await host.mender.looks.number(2)


async def test_that_it_is_decommissioned_outlives_a_restart(host: Host) -> None:
    host.worker().decommissioned(True)
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"one")
        await turns()
        assert (host.mender.looks, host.reconciler.begun) == ([], [])
        worker.decommissioned(False)
        await host.outcomes.number(1)
    assert len(host.mender.looks) == 1
    assert not host.memory.is_decommissioned()


# --- new secrets


async def test_a_changed_secret_makes_a_pass(host: Host) -> None:
    host.refresh_interval = 0.001
    host.reconciler.new_secrets.extend([False, False, True])
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"one")
        await host.outcomes.number(2)
    assert [made.body for made in host.reconciler.begun] == [b"one", b"one"]
    assert host.reconciler.asked_for_secrets[:3] == [b"one"] * 3


async def test_where_that_cannot_be_found_out_it_is_asked_again(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    host.refresh_interval = 0.001
    away = OpenBaoError("it does not answer", reason=Reason.OPENBAO_UNREACHABLE)
    host.reconciler.new_secrets.extend([away, away, True])
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"one")
        await host.outcomes.number(2)
    assert caplog.text.count("it does not answer") == 1, "the same trouble is told once"


async def test_while_a_failed_pass_waits_nobody_asks(host: Host) -> None:
    host.refresh_interval = 0.001
    host.reconciler.results.append(failed())
    worker = host.worker()
    async with running(worker.run()):
        worker.manifest(b"one")
        await host.outcomes.number(1)
        await turns()
    assert host.reconciler.asked_for_secrets == []
