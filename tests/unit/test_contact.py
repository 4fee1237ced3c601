"""The poller: when it asks tenancy again, what it makes of each answer, and whom it tells."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monky_deployd.agent import contact as module
from monky_deployd.agent.contact import Contact, pause_after
from monky_deployd.clients.tenancy import TenancyClient
from monky_deployd.demo.grants import GrantIssuer
from monky_deployd.errors import GrantError, MonkyError, Reason, TenancyError
from tests.unit.agent_fakes import (
    ENV,
    Clock,
    HeldSleeps,
    ScriptedTenancy,
    changed,
    running,
    unchanged,
)
from tests.unit.contact_agent import WAIT, Agent

POLL_INTERVAL = 60.0


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> HeldSleeps:
    fake = HeldSleeps()
    monkeypatch.setattr(module, "asyncio", fake)
    return fake


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(module, "time", fake)
    return fake


@pytest.fixture(autouse=True)
def longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every random number is the highest of its range."""
    monkeypatch.setattr("random.uniform", lambda low, high: high)


@pytest.fixture(scope="module")
def issued() -> Iterator[str]:
    """Grants for the environment, one after the other."""
    issuer = GrantIssuer()
    return (issuer.issue(ENV, jti=f"grant-{n}") for n in itertools.count(1))


@pytest.fixture
def make(tmp_path: Path, issued: Iterator[str]) -> Callable[..., Agent]:
    """`make(tenancy, **settings)`: an agent with a grant in place."""

    def build(tenancy: TenancyClient, **settings: Any) -> Agent:
        agent = Agent(tmp_path, tenancy, **settings)
        agent.install(next(issued))
        return agent

    return build


def refusal(reason: Reason, **fields: Any) -> TenancyError:
    return TenancyError(f"refused: {reason}", reason=reason, **fields)


# --- the long poll


async def test_the_first_fetch_does_not_wait_and_the_next_ones_do(
    make: Callable[..., Agent], pauses: HeldSleeps, clock: Clock
) -> None:
    tenancy = ScriptedTenancy(changed(b"one", '"1"'))
    agent = make(tenancy)

    async with running(agent.poller.run()):
        assert await pauses.begun.number(1) == 0
        pauses.end()
        held = await tenancy.fetches.number(2)

    assert [(f.etag, f.wait) for f in tenancy.fetches] == [(None, 0), ('"1"', WAIT)]
    assert held.token == agent.grants.current().token.reveal()
    assert agent.manifests == [b"one"]
    assert agent.reasons == [None]


async def test_a_held_request_that_ends_unchanged_is_followed_by_the_next_at_once(
    make: Callable[..., Agent], pauses: HeldSleeps, clock: Clock
) -> None:
    class Slow(ScriptedTenancy):
        async def fetch_manifest(self, *args: Any, wait: float, **kwargs: Any) -> Any:
            clock.now += wait
            return await super().fetch_manifest(*args, wait=wait, **kwargs)

    tenancy = Slow(changed(), unchanged(), unchanged())
    agent = make(tenancy)

    async with running(agent.poller.run()):
        for number in (1, 2, 3):
            assert await pauses.begun.number(number) == 0
            pauses.end()
        await tenancy.fetches.number(4)

    assert agent.manifests == [b"{}"]


async def test_a_server_that_does_not_wait_is_asked_every_poll_interval(
    make: Callable[..., Agent], pauses: HeldSleeps, clock: Clock
) -> None:
    tenancy = ScriptedTenancy(changed(), unchanged(waited=False), changed(b"new", '"2"'))
    agent = make(tenancy, poll_interval=POLL_INTERVAL)

    async with running(agent.poller.run()):
        assert await pauses.begun.number(1) == 0
        pauses.end()
        assert await pauses.begun.number(2) == pytest.approx(POLL_INTERVAL * 1.1)
        pauses.end()
        assert await pauses.begun.number(3) == pytest.approx(POLL_INTERVAL * 1.1)

    assert agent.manifests == [b"{}", b"new"]


async def test_where_waiting_is_turned_off_every_fetch_is_a_poll_interval_after_the_last(
    make: Callable[..., Agent], pauses: HeldSleeps, clock: Clock
) -> None:
    tenancy = ScriptedTenancy(changed(), unchanged(waited=False))
    agent = make(tenancy, wait=0, poll_interval=POLL_INTERVAL)

    async with running(agent.poller.run()):
        for number in (1, 2):
            assert await pauses.begun.number(number) == pytest.approx(POLL_INTERVAL * 1.1)
            pauses.end()
        await tenancy.fetches.number(3)

    assert [f.wait for f in tenancy.fetches] == [0, 0, 0]


@pytest.mark.parametrize(
    ("answer", "pause"),
    [
        (unchanged(waited=True), POLL_INTERVAL * 1.1),
        (changed(b"{}", '"1"', waited=True), POLL_INTERVAL * 1.1),
        (changed(b"{}", '"2"', waited=True), 1.0),
    ],
    ids=["304 at once", "the same again", "ever another ETag"],
)
async def test_a_server_that_claims_to_wait_and_does_not_is_not_asked_in_a_hot_loop(
    make: Callable[..., Agent], pauses: HeldSleeps, clock: Clock, answer: Any, pause: float
) -> None:
    tenancy = ScriptedTenancy(changed(b"{}", '"1"'), answer)
    agent = make(tenancy, poll_interval=POLL_INTERVAL)

    async with running(agent.poller.run()):
        pauses.end()
        assert await pauses.begun.number(2) == pytest.approx(pause)


async def test_a_server_without_etags_does_not_make_the_same_manifest_new(
    make: Callable[..., Agent], pauses: HeldSleeps, clock: Clock
) -> None:
    tenancy = ScriptedTenancy(*(changed(body, None) for body in (b"one", b"one", b"two")))
    agent = make(tenancy)

    async with running(agent.poller.run()):
        for _ in range(3):
            pauses.end()
        await tenancy.fetches.number(4)

    assert agent.manifests == [b"one", b"two"]
    assert {f.etag for f in tenancy.fetches} == {None}


async def test_the_promise_covers_each_step_with_time_to_spare(
    make: Callable[..., Agent], pauses: HeldSleeps, clock: Clock
) -> None:
    busy = refusal(Reason.TENANCY_BUSY, retry_after=500)
    tenancy = ScriptedTenancy(changed(), busy)
    agent = make(tenancy, request_timeout=10)

    async with running(agent.poller.run()):
        pauses.end()
        pause = await pauses.begun.number(2)

    first, between, held, told_to_wait = agent.promises
    assert first > 2 * 10
    assert between > 0
    assert held > WAIT + 2 * 10
    assert told_to_wait > pause > 500


# --- refusals and recovery


@pytest.mark.parametrize(
    ("error", "failures", "pause"),
    [
        *[
            (refusal(reason), failures, 66.0)
            for failures in (1, 9)
            for reason in (
                Reason.GRANT_SUPERSEDED,
                Reason.GRANT_EXPIRED,
                Reason.GRANT_NOT_YET_VALID,
                Reason.GRANT_REFUSED,
                Reason.TENANCY_FORBIDDEN,
                Reason.TENANCY_UNKNOWN_ENVIRONMENT,
                Reason.TENANCY_DECOMMISSIONED,
            )
        ],
        (GrantError("none", reason=Reason.GRANT_MISSING), 1, 66.0),
        (refusal(Reason.TENANCY_UNREACHABLE), 1, 2.0),
        (refusal(Reason.TENANCY_ERROR), 3, 8.0),
        (refusal(Reason.TENANCY_BUSY), 99, 300.0),
        (refusal(Reason.TENANCY_BUSY, retry_after=20), 1, 22.0),
        (refusal(Reason.TENANCY_BUSY, retry_after=20), 9, 22.0),
        (refusal(Reason.TENANCY_ERROR, retry_after=3600), 1, 3960.0),
        (refusal(Reason.TENANCY_BUSY, retry_after=0.2), 1, 1.0),
        (refusal(Reason.TENANCY_BUSY, retry_after=0), 3, 8.0),
        (refusal(Reason.GRANT_EXPIRED, retry_after=0), 1, 66.0),
        (refusal(Reason.GRANT_EXPIRED, retry_after=90), 1, 90.0),
    ],
)
def test_each_failure_has_its_pause(error: MonkyError, failures: int, pause: float) -> None:
    assert pause_after(error, failures) == pytest.approx(pause)


def test_no_pause_is_shorter_than_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.uniform", lambda low, high: low)
    assert pause_after(refusal(Reason.TENANCY_UNREACHABLE), 1) == 1.0
    assert pause_after(refusal(Reason.TENANCY_UNREACHABLE), 50) == 1.0
    assert pause_after(refusal(Reason.GRANT_EXPIRED), 1) == 60.0


async def test_failures_in_a_row_double_the_pause_and_a_good_long_poll_ends_the_row(
    make: Callable[..., Agent], pauses: HeldSleeps, clock: Clock
) -> None:
    away = refusal(Reason.TENANCY_UNREACHABLE)
    held = unchanged(waited=False)
    tenancy = ScriptedTenancy(away, away, changed(), held, away)
    agent = make(tenancy)

    async with running(agent.poller.run()):
        for _ in range(5):
            pauses.end()
        await tenancy.fetches.number(6)

    assert pauses.begun == [2.0, 4.0, 0, pytest.approx(66.0), 2.0]
    assert [f.wait for f in tenancy.fetches] == [0, 0, 0, WAIT, WAIT, 0]


async def test_where_only_held_requests_fail_the_pauses_go_on_growing(
    make: Callable[..., Agent], pauses: HeldSleeps, clock: Clock
) -> None:
    """A gateway that cuts long requests: the short ones between must not start it all anew."""
    cut = refusal(Reason.TENANCY_ERROR)
    tenancy = ScriptedTenancy(changed(), cut, unchanged(), cut, unchanged(), cut)
    agent = make(tenancy)

    async with running(agent.poller.run()):
        for _ in range(6):
            pauses.end()
        await tenancy.fetches.number(7)

    assert pauses.begun == [0, 2.0, 0, 4.0, 0, 8.0]


async def test_after_a_failure_the_manifest_that_was_missed_is_asked_for_without_waiting(
    make: Callable[..., Agent], pauses: HeldSleeps, clock: Clock
) -> None:
    tenancy = ScriptedTenancy(
        changed(b"one", '"1"'), refusal(Reason.TENANCY_ERROR), changed(b"two", '"2"')
    )
    agent = make(tenancy)

    async with running(agent.poller.run()):
        for _ in range(3):
            pauses.end()
        await tenancy.fetches.number(4)

    assert [(f.etag, f.wait) for f in tenancy.fetches] == [
        (None, 0),
        ('"1"', WAIT),
        ('"1"', 0),
        ('"2"', WAIT),
    ]
    assert agent.manifests == [b"one", b"two"]
    assert agent.reasons == [None, Reason.TENANCY_ERROR, None]


async def test_a_problem_is_logged_once_and_so_is_its_end(
    make: Callable[..., Agent], pauses: HeldSleeps, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger=module.__name__)
    away = refusal(Reason.TENANCY_UNREACHABLE)
    tenancy = ScriptedTenancy(changed(), away, away, away, unchanged())
    agent = make(tenancy)

    async with running(agent.poller.run()):
        for _ in range(5):
            pauses.end()
        await tenancy.fetches.number(6)

    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("INFO", "in contact with tenancy"),
        ("WARNING", "refused: tenancy-unreachable; what runs keeps running"),
        ("INFO", "in contact with tenancy"),
    ]


# --- the grant


@pytest.mark.parametrize(
    "reason", [Reason.GRANT_SUPERSEDED, Reason.GRANT_EXPIRED, Reason.TENANCY_FORBIDDEN]
)
async def test_a_new_grant_file_ends_the_wait_at_the_next_look(
    make: Callable[..., Agent],
    pauses: HeldSleeps,
    clock: Clock,
    issued: Iterator[str],
    reason: Reason,
) -> None:
    tenancy = ScriptedTenancy(refusal(reason), changed())
    agent = make(tenancy)
    newer = next(issued)

    async with running(agent.poller.run()):
        assert await pauses.begun.number(1) == 2.0
        pauses.end()
        assert await pauses.begun.number(2) == 2.0
        agent.install(newer)
        pauses.end()
        await tenancy.fetches.number(2)

    assert tenancy.fetches[1].token == newer


async def test_a_new_grant_that_another_task_took_into_use_first_ends_the_wait_too(
    make: Callable[..., Agent], pauses: HeldSleeps, clock: Clock, issued: Iterator[str]
) -> None:
    tenancy = ScriptedTenancy(refusal(Reason.GRANT_SUPERSEDED), changed())
    agent = make(tenancy)

    async with running(agent.poller.run()):
        await pauses.begun.number(1)
        agent.install(next(issued))
        agent.grants.current()
        pauses.end()
        await tenancy.fetches.number(2)


async def test_a_new_grant_that_came_while_the_old_one_was_being_refused_is_not_missed(
    make: Callable[..., Agent], pauses: HeldSleeps, clock: Clock, issued: Iterator[str]
) -> None:
    newer = next(issued)

    class Slow(ScriptedTenancy):
        async def fetch_manifest(self, *args: Any, **kwargs: Any) -> Any:
            if not self.fetches:
                agent.install(newer)
                agent.grants.current()
            return await super().fetch_manifest(*args, **kwargs)

    tenancy = Slow(refusal(Reason.GRANT_SUPERSEDED), changed())
    agent = make(tenancy)

    async with running(agent.poller.run()):
        await tenancy.fetches.number(2)

    assert tenancy.fetches[1].token == newer
    assert pauses.begun[:1] == [0]


async def test_without_a_grant_tenancy_is_left_alone_until_there_is_one(
    tmp_path: Path, pauses: HeldSleeps, clock: Clock, issued: Iterator[str]
) -> None:
    tenancy = ScriptedTenancy(changed())
    agent = Agent(tmp_path, tenancy)

    async with running(agent.poller.run()):
        await pauses.begun.number(1)
        assert agent.reasons == [Reason.GRANT_MISSING]
        assert tenancy.fetches == []
        agent.install(next(issued))
        pauses.end()
        await tenancy.fetches.number(1)

    assert agent.reasons == [Reason.GRANT_MISSING, None]


async def test_the_wait_for_a_grant_ends_after_a_minute_all_the_same(
    make: Callable[..., Agent], pauses: HeldSleeps, clock: Clock
) -> None:
    tenancy = ScriptedTenancy(refusal(Reason.GRANT_EXPIRED))
    agent = make(tenancy)

    async with running(agent.poller.run()):
        await pauses.begun.number(1)
        clock.now += 65.5
        pauses.end()
        assert await pauses.begun.number(2) == pytest.approx(0.5)
        clock.now += 0.5
        pauses.end()
        await tenancy.fetches.number(2)


def test_the_words_that_install_sh_waits_for_are_those_of_a_good_contact() -> None:
    assert Contact().sentence == "in contact with tenancy"
    assert Contact(refusal(Reason.TENANCY_BUSY)).sentence == "refused: tenancy-busy"
