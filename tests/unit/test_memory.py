"""What a pass leaves behind: history, report, the next try, and the releases that stay."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from monky_deployd.agent.journey import Passed
from monky_deployd.agent.memory import Memory
from monky_deployd.domain.plan import History
from monky_deployd.domain.rendering import RenderedFile
from monky_deployd.domain.report import ErrorKind, Fault
from monky_deployd.errors import FileError, Reason, StateError, TenancyError
from monky_deployd.host.releases import Releases
from monky_deployd.host.store import Store
from tests.unit.agent_fakes import NOW, failed, good, outcome

R1, R2, R3 = "1-aaaaaaaaaaaa", "2-bbbbbbbbbbbb", "3-cccccccccccc"
LATER = NOW + timedelta(minutes=5)


@pytest.fixture(autouse=True)
def longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every random number is the highest of its range."""
    monkeypatch.setattr("random.uniform", lambda low, high: high)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with Store(tmp_path / "state.db") as store:
        yield Memory(store, Releases(tmp_path), 300.0)


@pytest.fixture
def stage(memory: Memory) -> Callable[..., None]:
    """`stage("1-…", …)`: releases on disk."""

    def put(*release_ids: str) -> None:
        for release_id in release_ids:
            memory.releases.stage(release_id, {"compose.yaml": RenderedFile(b"{}")})

    return put


def rolled_back(release_id: str, *messages: str, reason: Reason = Reason.ROLLED_BACK) -> Passed:
    """A pass that found a release bad and took it away again."""
    what = outcome(reason, release=release_id, faults=tuple(Fault(m) for m in messages))
    return Passed(what, release_id, digest=release_id, held=True)


def held(release_id: str, reason: Reason = Reason.ROLLED_BACK) -> Passed:
    """A pass that only looks at a held release."""
    return rolled_back(release_id, reason=reason)


def seconds_to_next_try(memory: Memory, passed: Passed) -> float | None:
    what = memory.record(passed)
    return (what.next_try - what.finished_at).total_seconds() if what.next_try else None


# --- history


def test_a_new_agent_has_no_history(memory: Memory) -> None:
    assert memory.history() == History()
    assert memory.heartbeat_report("id") is None


def test_a_good_pass_is_what_the_next_one_builds_on(
    memory: Memory, stage: Callable[..., None]
) -> None:
    stage(R2)
    memory.releases.switch(R2)
    memory.record(replace(good(R2, generation=2), digest="the digest"))

    assert memory.history() == History(
        applied_generation=2, applied_digest="the digest", good_release=R2, current=R2
    )


def test_a_failure_leaves_what_was_good(memory: Memory, stage: Callable[..., None]) -> None:
    stage(R1)
    memory.releases.switch(R1)
    memory.record(good(R1))
    before = memory.history()

    memory.record(failed())

    assert memory.history() == before


def test_state_and_report_are_recorded_together_or_not_at_all(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.record(good(R1))
    before = memory.store.state()

    def full(*args: Any) -> Any:
        raise StateError("full")

    monkeypatch.setattr(memory.store, "_enqueue", full)
    with pytest.raises(StateError):
        memory.record(failed())

    assert memory.store.state() == before
    assert len(memory.store.pending(10)) == 1


def test_the_report_is_the_outcome_with_its_promise(memory: Memory) -> None:
    what = memory.record(failed(message="no such image"))

    [report] = memory.store.pending(10)
    assert report.body.items() >= what.as_json().items()
    assert report.body["errors"][0]["message"] == "no such image"
    assert report.body["next_contact_by"] > report.body["finished_at"]


# --- failures and the next try


def test_the_pauses_double_to_five_minutes_while_one_manifest_fails(memory: Memory) -> None:
    pauses = [seconds_to_next_try(memory, failed()) for _ in range(7)]
    assert pauses == pytest.approx([11, 22, 44, 88, 176, 330, 330])
    assert memory.store.state().failures == 7


def test_another_manifest_begins_with_the_shortest_pause(memory: Memory) -> None:
    for _ in range(3):
        memory.record(failed())

    other = replace(failed(), digest="of another manifest")

    assert seconds_to_next_try(memory, other) == pytest.approx(11)
    assert memory.store.state().failures == 1


def test_a_good_pass_ends_the_row_of_failures(memory: Memory) -> None:
    memory.record(failed())
    memory.record(good())
    assert memory.store.state().failures == 0
    assert seconds_to_next_try(memory, failed()) == pytest.approx(11)


@pytest.mark.parametrize(
    "passed",
    [good(), rolled_back(R2, "bad"), replace(failed(), retryable=False)],
    ids=["good", "held", "pointless"],
)
def test_there_is_no_next_try_where_only_a_change_can_help(memory: Memory, passed: Passed) -> None:
    assert seconds_to_next_try(memory, passed) is None


@pytest.mark.parametrize(("asked", "pause"), [(100.0, 110.0), (1.0, 11.0)])
def test_the_next_try_is_not_before_the_other_side_wants_it(
    memory: Memory, asked: float, pause: float
) -> None:
    assert seconds_to_next_try(memory, replace(failed(), retry_after=asked)) == pytest.approx(pause)


def test_an_error_that_lasts_keeps_its_first_time_and_is_counted(memory: Memory) -> None:
    for moment in (NOW, LATER):
        what = memory.record(failed(finished_at=moment))

    assert [(fault.first_seen, fault.count) for fault in what.faults] == [(NOW, 2)]
    assert memory.store.state().last_outcome == what


# --- held releases


@pytest.mark.parametrize("reason", [Reason.ROLLED_BACK, Reason.ROLLBACK_FAILED, Reason.STOPPED])
def test_a_held_release_keeps_the_error_that_led_to_it_uncounted(
    memory: Memory, reason: Reason
) -> None:
    first = memory.record(rolled_back(R2, "it crashed", reason=reason))

    for _ in range(2):
        what = memory.record(held(R2))
        assert (what.reason, what.faults) == (reason, first.faults)

    assert memory.history().held_release == R2


def test_an_error_that_has_nothing_to_do_with_it_is_not_kept(memory: Memory) -> None:
    memory.record(rolled_back(R2, "it crashed"))
    memory.record(failed(Reason.OPENBAO_SEALED, "sealed"))
    assert memory.record(held(R2)).faults == ()


def test_a_failure_on_the_way_does_not_let_a_held_release_go(memory: Memory) -> None:
    """Else a minute without OpenBao would make the agent try it again, and take it down again."""
    memory.record(rolled_back(R2, "it crashed"))

    memory.record(failed(Reason.OPENBAO_SEALED))
    memory.record(replace(failed(), release_id=R2))
    memory.record(replace(failed(), release_id=R3))

    assert memory.history().held_release == R2


def test_a_good_release_or_another_bad_one_lets_it_go(memory: Memory) -> None:
    memory.record(rolled_back(R2, "it crashed"))
    memory.record(rolled_back(R3, "so did this"))
    assert memory.history().held_release == R3
    memory.record(good(R2))
    assert memory.history().held_release is None


# --- releases on disk


def test_the_good_release_and_the_newest_beside_it_stay(
    memory: Memory, stage: Callable[..., None]
) -> None:
    stage(*(f"{n}-aaaaaaaaaaaa" for n in range(1, 7)))
    memory.releases.switch("6-aaaaaaaaaaaa")

    memory.record(replace(good("6-aaaaaaaaaaaa"), keep_releases=2))

    assert memory.releases.ids() == ["4-aaaaaaaaaaaa", "5-aaaaaaaaaaaa", "6-aaaaaaaaaaaa"]


def test_the_newest_beside_it_are_counted_where_the_good_one_is_older(
    memory: Memory, stage: Callable[..., None]
) -> None:
    stage(R1, R2, R3, "4-dddddddddddd")
    memory.releases.switch(R1)
    memory.record(replace(good(R1), keep_releases=1))
    assert memory.releases.ids() == [R1, "4-dddddddddddd"]


def test_releases_that_fail_one_after_the_other_do_not_pile_up(
    memory: Memory, stage: Callable[..., None]
) -> None:
    stage(R1)
    memory.releases.switch(R1)
    memory.record(good(R1))

    for number in range(2, 9):
        release_id = f"{number}-eeeeeeeeeeee"
        stage(release_id)
        memory.record(replace(failed(), release_id=release_id, keep_releases=2))

    assert memory.releases.ids() == [R1, "7-eeeeeeeeeeee", "8-eeeeeeeeeeee"]


def test_the_current_release_and_the_one_just_tried_stay_however_old(
    memory: Memory, stage: Callable[..., None]
) -> None:
    stage(R1, R2, R3, "4-dddddddddddd")
    memory.releases.switch(R1)
    memory.record(replace(failed(), release_id=R2, keep_releases=1))
    assert memory.releases.ids() == [R1, R2, "4-dddddddddddd"]


def test_a_pass_that_got_to_no_release_removes_none(
    memory: Memory, stage: Callable[..., None]
) -> None:
    stage(R1, R2, R3)
    memory.record(failed(Reason.MANIFEST_INVALID))
    assert memory.releases.ids() == [R1, R2, R3]


def test_what_cannot_be_removed_is_logged_and_does_not_undo_the_outcome(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(keep: Any) -> Any:
        raise FileError("a container wrote there")

    monkeypatch.setattr(memory.releases, "collect", refuse)
    assert memory.record(good(R1)).good
    assert "old releases can't be removed: a container wrote there" in caplog.text


# --- the log


def test_each_error_is_a_line_with_its_fields_and_the_outcome_comes_last(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    fault = Fault("denied", ErrorKind.AUTH, "web", "reg/web:1", "reg", "rotate it")
    what = outcome(Reason.PULL_FAILED, faults=(fault,), notes=("a note",), generation=8)

    memory.record(Passed(what, digest="d"))

    lines = [record for record in caplog.records if record.name.endswith("memory")]
    assert [(record.levelno, record.getMessage()) for record in lines] == [
        (logging.ERROR, "web: denied (rotate it)"),
        (logging.WARNING, "a note"),
        (logging.ERROR, "it is pull-failed; next try at 03:00:11Z"),
    ]
    assert lines[0].monky == {  # type: ignore[attr-defined]
        "generation": "8",
        "phase": "verify",
        "service": "web",
        "image": "reg/web:1",
        "registry": "reg",
        "error_kind": "auth",
        "reason": "pull-failed",
    }


# --- heartbeats


def test_a_heartbeat_repeats_the_last_outcome_under_the_number_of_its_report(
    memory: Memory,
) -> None:
    memory.record(good())
    what = memory.record(failed())
    [*_, report] = memory.store.pending(10)
    memory.store.delivered([report.report_id])

    beat = memory.heartbeat_report("its own id")

    assert beat is not None
    assert (beat.report_id, beat.seq, beat.body["phase"]) == ("its own id", 2, "heartbeat")
    assert beat.body["errors"] == what.as_json()["errors"]
    assert [left.seq for left in memory.store.pending(10)] == [1]


def test_the_promise_outlasts_two_heartbeats(memory: Memory) -> None:
    before = datetime.now(UTC)
    assert memory.next_contact_by() - before > timedelta(seconds=2 * 300)


# --- looks between passes


def test_a_look_changes_nothing_that_the_next_pass_has_to_know(memory: Memory) -> None:
    memory.record(good(R1))
    before = memory.history()
    told = memory.record_look(good(R2, notes=("drift: it was removed",)), None)
    assert memory.history() == before
    assert told.next_try is None
    reports = memory.store.pending(10)
    assert [report.body["notes"] for report in reports] == [[], ["drift: it was removed"]]


def test_a_bad_look_is_told_with_the_time_of_the_next_and_until_one_is_good(
    memory: Memory,
) -> None:
    memory.record(good(R1))
    assert not memory.says_bad()
    told = memory.record_look(failed(Reason.UNHEALTHY), 10.0)
    assert told.next_try == told.finished_at + timedelta(seconds=10)
    assert memory.says_bad()
    again = memory.record_look(failed(Reason.UNHEALTHY), 20.0)
    assert again.faults[0].count == 2
    memory.record_look(good(R1), None)
    assert not memory.says_bad()


def test_the_error_of_a_newer_generation_outlives_what_a_look_found(memory: Memory) -> None:
    memory.record(good(R1))
    failure = memory.record(failed(Reason.PULL_FAILED, "no such tag", generation=2))
    told = memory.record_look(good(R1, notes=("drift: it was removed",), sentence="it runs"), None)
    assert not memory.says_bad()
    assert (told.reason, told.generation) == (Reason.PULL_FAILED, 2)
    assert (told.faults, told.next_try) == (failure.faults, failure.next_try)
    assert told.notes == ("drift: it was removed", "it runs")
    assert memory.store.state().failures == 1


# --- the contact with tenancy


def test_what_keeps_tenancy_away_is_kept_with_its_beginning(memory: Memory) -> None:
    away = TenancyError("no answer", reason=Reason.TENANCY_UNREACHABLE)
    memory.remember_contact(away)
    began = memory.store.state().contact
    memory.remember_contact(away)
    assert began is not None
    assert memory.store.state().contact == began
    assert (began.reason, began.sentence) == (Reason.TENANCY_UNREACHABLE, "no answer")

    memory.remember_contact(TenancyError("no", reason=Reason.TENANCY_FORBIDDEN))
    changed = memory.store.state().contact
    assert changed is not None
    assert changed.reason is Reason.TENANCY_FORBIDDEN
    memory.remember_contact(None)
    assert memory.store.state().contact is None


def test_while_the_contact_stays_as_it_is_nothing_is_written(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[object] = []
    monkeypatch.setattr(memory.store, "update", lambda **changes: written.append(changes))
    memory.remember_contact(None)
    assert written == []


def test_a_contact_that_cannot_be_kept_is_only_logged(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(**_: object) -> None:
        raise StateError("the disk is full")

    monkeypatch.setattr(memory.store, "update", full)
    memory.remember_contact(TenancyError("no answer"))
    assert "the disk is full" in caplog.text


# --- what every report has to say


def test_a_note_of_the_moment_stands_in_each_report_and_is_not_kept(
    memory: Memory,
) -> None:
    notes = ["the grant expires in 3 days"]
    memory = replace(memory, notes=lambda: tuple(notes))
    memory.record(good(R1, notes=("its own",)))
    memory.record_look(good(R1), None)
    beat = memory.heartbeat_report("beat")
    notes.clear()
    later = memory.heartbeat_report("later")

    bodies = [report.body for report in memory.store.pending(10)]
    assert [body["notes"] for body in bodies] == [
        ["its own", "the grant expires in 3 days"],
        ["the grant expires in 3 days"],
    ]
    assert beat is not None
    assert later is not None
    assert (beat.body["notes"], later.body["notes"]) == (["the grant expires in 3 days"], [])
