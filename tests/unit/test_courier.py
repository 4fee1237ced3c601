"""The courier: every report arrives, in order and once, whatever happens on the way."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from monky_deployd.agent import courier as module
from monky_deployd.agent.courier import Courier
from monky_deployd.agent.memory import Memory
from monky_deployd.clients.tenancy import ReportsRejected, TenancyClient
from monky_deployd.demo.tenancy_server import CannedAnswer, FakeTenancy
from monky_deployd.domain.config import OverlayCfg, TenancyCfg
from monky_deployd.domain.secret import Secret
from monky_deployd.errors import GrantError, MonkyError, Reason, TenancyError
from monky_deployd.host.releases import Releases
from monky_deployd.host.store import Store
from tests.unit.agent_fakes import ENV, Clock, ScriptedTenancy, failed, good, running, turns

HEARTBEAT = 300.0
AWAY = TenancyError("away", reason=Reason.TENANCY_UNREACHABLE)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(module, "time", fake)
    monkeypatch.setattr(module.random, "uniform", lambda low, high: high)
    return fake


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with Store(tmp_path / "state.db") as store:
        yield Memory(store, Releases(tmp_path), HEARTBEAT)


@pytest.fixture
def tenancy() -> ScriptedTenancy:
    return ScriptedTenancy()


@pytest.fixture
def courier(memory: Memory, tenancy: ScriptedTenancy) -> Courier:
    return Courier(memory, tenancy, lambda: Secret("grant"), HEARTBEAT)


def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses after failures take no time."""
    monkeypatch.setattr(module, "pause_after", lambda error, failures: 0.0)


def for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses after failures don't end by themselves."""
    monkeypatch.setattr(module, "pause_after", lambda error, failures: 3600.0)


def seqs(reports: Sequence[Mapping[str, Any]]) -> list[int]:
    return [report["seq"] for report in reports]


def waiting(memory: Memory) -> list[int]:
    return [report.seq for report in memory.store.pending(1000)]


def record(memory: Memory, number: int) -> None:
    for _ in range(number):
        memory.record(failed())


# --- delivery


async def test_reports_go_in_order_in_batches_and_leave_the_outbox(
    memory: Memory, tenancy: ScriptedTenancy, courier: Courier
) -> None:
    record(memory, 45)

    assert await courier.deliver()

    assert [seqs(batch) for batch in tenancy.sent] == [
        list(range(1, 21)),
        list(range(21, 41)),
        list(range(41, 46)),
    ]
    assert waiting(memory) == []
    assert not await courier.deliver()


async def test_what_was_not_taken_stays_in_the_outbox(
    memory: Memory, tenancy: ScriptedTenancy, courier: Courier
) -> None:
    record(memory, 2)
    tenancy.refusals.append(TenancyError("no", reason=Reason.GRANT_SUPERSEDED))

    with pytest.raises(TenancyError):
        await courier.deliver()

    assert waiting(memory) == [1, 2]


async def test_without_a_grant_everything_stays_in_the_outbox(
    memory: Memory, tenancy: ScriptedTenancy
) -> None:
    def no_grant() -> Secret:
        raise GrantError("none", reason=Reason.GRANT_MISSING)

    record(memory, 1)
    with pytest.raises(GrantError):
        await Courier(memory, tenancy, no_grant, HEARTBEAT).deliver()
    assert waiting(memory) == [1]


class Picky(ScriptedTenancy):
    """Rejects every call that holds a report with one of the numbers `bad`."""

    def __init__(self, *bad: int) -> None:
        super().__init__()
        self.bad = set(bad)

    async def send_reports(self, token: Secret, reports: Sequence[Mapping[str, Any]]) -> None:
        if self.bad & set(seqs(reports)):
            raise ReportsRejected("tenancy rejects the reports with status 422", status=422)
        await super().send_reports(token, reports)


async def test_a_report_that_can_never_be_taken_is_dropped_alone_and_loudly(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    tenancy = Picky(2)
    record(memory, 3)
    [_, second, _] = memory.store.pending(3)

    await Courier(memory, tenancy, lambda: Secret("grant"), HEARTBEAT).deliver()

    assert [seqs(batch) for batch in tenancy.sent] == [[1], [3]]
    assert waiting(memory) == []
    assert memory.store.state().reports_dropped == 1
    assert f"report {second.report_id} (seq 2) is dropped undelivered" in caplog.text


async def test_an_outage_while_reports_go_one_by_one_keeps_those_that_are_left(
    memory: Memory,
) -> None:
    class GoesAway(Picky):
        async def send_reports(self, token: Secret, reports: Sequence[Mapping[str, Any]]) -> None:
            if seqs(reports) == [3]:
                raise AWAY
            await super().send_reports(token, reports)

    tenancy = GoesAway(1)
    record(memory, 4)

    with pytest.raises(TenancyError):
        await Courier(memory, tenancy, lambda: Secret("grant"), HEARTBEAT).deliver()

    assert [seqs(batch) for batch in tenancy.sent] == [[2]]
    assert waiting(memory) == [3, 4]


# --- the loop


async def test_after_an_outage_everything_is_delivered_in_order(
    memory: Memory,
    tenancy: ScriptedTenancy,
    courier: Courier,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_once(monkeypatch)
    record(memory, 25)
    tenancy.refusals.extend([AWAY] * 5)

    async with running(courier.run()):
        await tenancy.sent.number(2)

    assert [seqs(batch) for batch in tenancy.sent] == [list(range(1, 21)), list(range(21, 26))]


async def test_the_pauses_follow_the_number_of_failures_in_a_row(
    memory: Memory,
    tenancy: ScriptedTenancy,
    courier: Courier,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[MonkyError, int]] = []

    def pause(error: MonkyError, failures: int) -> float:
        asked.append((error, failures))
        return 0.0

    monkeypatch.setattr(module, "pause_after", pause)
    record(memory, 1)
    tenancy.refusals.extend([AWAY, AWAY])
    async with running(courier.run()):
        await tenancy.sent.number(1)
        tenancy.refusals.append(AWAY)
        record(memory, 1)
        courier.nudge()
        await tenancy.sent.number(2)

    assert asked == [(AWAY, 1), (AWAY, 2), (AWAY, 1)]


async def test_a_nudge_while_reports_are_being_sent_is_not_lost(
    memory: Memory, tenancy: ScriptedTenancy, courier: Courier, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending, answer = asyncio.Event(), asyncio.Event()
    taken = tenancy.send_reports

    async def slow(token: Secret, reports: Sequence[Mapping[str, Any]]) -> None:
        sending.set()
        await answer.wait()
        if tenancy.refusals:
            raise tenancy.refusals.popleft()
        await taken(token, reports)

    monkeypatch.setattr(tenancy, "send_reports", slow)
    for_ever(monkeypatch)
    tenancy.refusals.append(AWAY)
    record(memory, 1)
    async with running(courier.run()):
        await sending.wait()
        record(memory, 1)
        courier.nudge()
        answer.set()
        assert seqs(await tenancy.sent.number(1)) == [1, 2]


async def test_a_report_that_comes_while_a_heartbeat_is_being_sent_does_not_wait_for_the_next(
    memory: Memory,
    tenancy: ScriptedTenancy,
    courier: Courier,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sending, answer = asyncio.Event(), asyncio.Event()
    taken = tenancy.send_reports

    async def slow(token: Secret, reports: Sequence[Mapping[str, Any]]) -> None:
        sending.set()
        await answer.wait()
        await taken(token, reports)

    memory.record(good())
    async with running(courier.run()):
        await tenancy.sent.number(1)
        monkeypatch.setattr(tenancy, "send_reports", slow)
        clock.now += HEARTBEAT
        courier.nudge()
        await sending.wait()
        memory.record(good())
        courier.nudge()
        answer.set()
        assert seqs(await tenancy.sent.number(3)) == [2]


async def test_a_nudge_ends_the_pause_after_a_failure(
    memory: Memory, tenancy: ScriptedTenancy, courier: Courier, monkeypatch: pytest.MonkeyPatch
) -> None:
    for_ever(monkeypatch)
    tenancy.refusals.append(AWAY)
    record(memory, 1)
    async with running(courier.run()):
        await turns()
        assert tenancy.sent == []
        courier.nudge()
        await tenancy.sent.number(1)


async def test_no_nudge_ends_the_time_that_tenancy_asked_for(
    memory: Memory, tenancy: ScriptedTenancy, courier: Courier, monkeypatch: pytest.MonkeyPatch
) -> None:
    for_ever(monkeypatch)
    tenancy.refusals.append(TenancyError("busy", reason=Reason.TENANCY_BUSY, retry_after=20))
    record(memory, 1)
    async with running(courier.run()):
        await turns()
        courier.nudge()
        await turns()
        assert tenancy.sent == []


async def test_that_reports_wait_is_logged_once_for_each_reason_and_so_is_the_end(
    memory: Memory,
    tenancy: ScriptedTenancy,
    courier: Courier,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger=module.__name__)
    at_once(monkeypatch)
    record(memory, 1)
    tenancy.refusals.extend([AWAY, AWAY, TenancyError("500"), AWAY])
    async with running(courier.run()):
        await tenancy.sent.number(1)
        await turns()

    assert [record.getMessage() for record in caplog.records if record.name == module.__name__] == [
        "reports wait in the outbox: away",
        "reports wait in the outbox: 500",
        "reports wait in the outbox: away",
        "reports reach tenancy again",
    ]


# --- the sign of life


async def test_a_heartbeat_tells_the_last_outcome_again_when_nothing_else_was_sent(
    memory: Memory, tenancy: ScriptedTenancy, courier: Courier, clock: Clock
) -> None:
    memory.record(failed(message="no such image"))
    async with running(courier.run()):
        [report] = await tenancy.sent.number(1)
        clock.now += HEARTBEAT
        courier.nudge()
        [beat] = await tenancy.sent.number(2)

    assert (beat["phase"], beat["seq"]) == ("heartbeat", report["seq"])
    assert beat["report_id"] != report["report_id"]
    assert beat["next_contact_by"] >= report["next_contact_by"]
    for same in ("outcome", "message", "generation", "errors", "next_try"):
        assert beat[same] == report[same]
    assert waiting(memory) == []


async def test_heartbeats_of_a_fleet_come_up_to_a_tenth_sooner_and_never_later(
    memory: Memory,
    tenancy: ScriptedTenancy,
    courier: Courier,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[tuple[float, float]] = []

    def soonest(low: float, high: float) -> float:
        drawn.append((low, high))
        return low

    monkeypatch.setattr(module.random, "uniform", soonest)
    memory.record(good())
    async with running(courier.run()):
        await tenancy.sent.number(1)
        clock.now += HEARTBEAT * 0.9 - 1
        courier.nudge()
        await turns()
        assert len(tenancy.sent) == 1
        clock.now += 1
        courier.nudge()
        await tenancy.sent.number(2)

    assert (0.9, 1) in drawn


async def test_a_report_takes_the_place_of_the_heartbeat(
    memory: Memory, tenancy: ScriptedTenancy, courier: Courier, clock: Clock
) -> None:
    memory.record(good())
    async with running(courier.run()):
        await tenancy.sent.number(1)
        clock.now += HEARTBEAT - 1
        memory.record(good())
        courier.nudge()
        await tenancy.sent.number(2)
        clock.now += HEARTBEAT - 1
        courier.nudge()
        await turns()
        clock.now += 1
        courier.nudge()
        await tenancy.sent.number(3)

    assert [batch[0]["phase"] for batch in tenancy.sent] == ["verify", "verify", "heartbeat"]


async def test_where_there_is_nothing_to_say_yet_a_heartbeat_is_not_due_for_ever(
    memory: Memory, tenancy: ScriptedTenancy, courier: Courier, clock: Clock
) -> None:
    looks = 0
    pending = memory.store.pending

    def counted(limit: int) -> Any:
        nonlocal looks
        looks += 1
        return pending(limit)

    memory.store.pending = counted  # type: ignore[method-assign]
    async with running(courier.run()):
        await turns()
        clock.now += HEARTBEAT
        courier.nudge()
        await turns()
        await turns()

    assert looks == 2
    assert tenancy.sent == []


async def test_a_heartbeat_that_fails_is_sent_again_and_one_that_is_rejected_is_not(
    memory: Memory,
    tenancy: ScriptedTenancy,
    courier: Courier,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    at_once(monkeypatch)
    memory.record(good())
    async with running(courier.run()):
        await tenancy.sent.number(1)
        tenancy.refusals.append(AWAY)
        clock.now += HEARTBEAT
        courier.nudge()
        await tenancy.sent.number(2)
        tenancy.refusals.append(ReportsRejected("status 400", status=400))
        clock.now += HEARTBEAT
        courier.nudge()
        await turns()

    assert len(tenancy.sent) == 2
    assert not tenancy.refusals
    assert "tenancy does not take this agent's heartbeat: status 400" in caplog.text


# --- against the reference server


async def test_a_report_whose_answer_was_lost_is_sent_again_and_kept_once(
    memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LosesTheFirstAnswer(TenancyClient):
        lost = False

        async def send_reports(self, token: Secret, reports: Sequence[Mapping[str, Any]]) -> None:
            await super().send_reports(token, reports)
            if not self.lost:
                self.lost = True
                raise AWAY

    at_once(monkeypatch)
    server = FakeTenancy()
    server.publish(ENV, {})
    record(memory, 3)
    with server.serve() as served:
        cfg = TenancyCfg(host="127.0.0.1", port=served.port, scheme="http")
        client = LosesTheFirstAnswer(cfg, OverlayCfg(), ENV, agent_version="test")
        async with client:
            grant = Secret(server.grant(ENV))
            courier = Courier(memory, client, lambda: grant, HEARTBEAT)
            with pytest.raises(TenancyError):
                await courier.deliver()
            assert waiting(memory) == [1, 2, 3]
            await courier.deliver()

    assert seqs(server.received(ENV)) == [1, 2, 3, 1, 2, 3]
    assert seqs(server.reports(ENV)) == [1, 2, 3]
    assert waiting(memory) == []


@pytest.mark.parametrize(
    ("canned", "reason", "retry_after"),
    [
        (CannedAnswer(401), Reason.GRANT_REFUSED, None),
        (CannedAnswer(410), Reason.TENANCY_DECOMMISSIONED, None),
        (CannedAnswer(404), Reason.TENANCY_ERROR, None),
        (CannedAnswer(429, headers={"Retry-After": "9"}), Reason.TENANCY_BUSY, 9),
        (CannedAnswer(500), Reason.TENANCY_ERROR, None),
    ],
    ids=lambda value: str(value.status) if isinstance(value, CannedAnswer) else "",
)
async def test_no_answer_but_a_rejection_costs_a_report(
    memory: Memory, canned: CannedAnswer, reason: Reason, retry_after: float | None
) -> None:
    server = FakeTenancy()
    server.publish(ENV, {})
    server.answers.append(canned)
    record(memory, 2)
    with server.serve() as served:
        cfg = TenancyCfg(host="127.0.0.1", port=served.port, scheme="http")
        async with TenancyClient(cfg, OverlayCfg(), ENV, agent_version="test") as client:
            grant = Secret(server.grant(ENV))
            with pytest.raises(TenancyError) as caught:
                await Courier(memory, client, lambda: grant, HEARTBEAT).deliver()

    assert (caught.value.reason, caught.value.retry_after) == (reason, retry_after)
    assert waiting(memory) == [1, 2]
