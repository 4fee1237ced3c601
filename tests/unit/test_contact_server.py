"""The poller against the reference server, over loopback."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from monky_deployd.agent import contact as module
from monky_deployd.clients.tenancy import TenancyClient
from monky_deployd.demo.tenancy_server import CannedAnswer, FakeTenancy
from monky_deployd.domain.config import OverlayCfg, TenancyCfg
from monky_deployd.errors import Reason
from tests.unit.agent_fakes import ENV, HeldSleeps, running
from tests.unit.contact_agent import Agent


@dataclass
class Served:
    """A reference server, and an agent that speaks to it with a grant of its."""

    tenancy: FakeTenancy
    agent: Agent


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> HeldSleeps:
    fake = HeldSleeps()
    monkeypatch.setattr(module, "asyncio", fake)
    return fake


@pytest.fixture(autouse=True)
def longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every random number is the highest of its range."""
    monkeypatch.setattr("random.uniform", lambda low, high: high)


@pytest.fixture
def server() -> Iterator[tuple[FakeTenancy, int]]:
    tenancy = FakeTenancy()
    with tenancy.serve() as served:
        yield tenancy, served.port


@pytest.fixture
async def served(server: tuple[FakeTenancy, int], tmp_path: Path) -> AsyncIterator[Served]:
    tenancy, port = server
    cfg = TenancyCfg(host="127.0.0.1", port=port, scheme="http", wait=5)
    async with TenancyClient(cfg, OverlayCfg(), ENV, agent_version="test") as client:
        agent = Agent(tmp_path, client, wait=5)
        agent.install(tenancy.grant(ENV))
        yield Served(tenancy, agent)


async def test_a_manifest_that_is_published_while_the_request_is_held_arrives_at_once(
    served: Served,
) -> None:
    served.tenancy.publish(ENV, {"n": 1})
    async with running(served.agent.poller.run()):
        await served.agent.manifests.number(1)
        served.tenancy.publish(ENV, {"n": 2})
        assert await served.agent.manifests.number(2) == b'{"n": 2}'


@pytest.mark.parametrize(
    ("canned", "reason"),
    [
        (CannedAnswer(304), Reason.TENANCY_ERROR),
        (
            CannedAnswer(302, headers={"Location": "https://elsewhere.example/"}),
            Reason.TENANCY_ERROR,
        ),
        (CannedAnswer(200, b"<html>", {"Content-Type": "text/html"}), Reason.TENANCY_ERROR),
        (CannedAnswer(401), Reason.GRANT_REFUSED),
        (CannedAnswer(403), Reason.TENANCY_FORBIDDEN),
        (CannedAnswer(404), Reason.TENANCY_ERROR),
        (CannedAnswer(410), Reason.TENANCY_DECOMMISSIONED),
        (CannedAnswer(429), Reason.TENANCY_BUSY),
        (CannedAnswer(500), Reason.TENANCY_ERROR),
        (CannedAnswer(503, headers={"Retry-After": "7"}), Reason.TENANCY_BUSY),
    ],
    ids=lambda value: str(value.status) if isinstance(value, CannedAnswer) else str(value),
)
async def test_whatever_the_server_answers_first_is_a_problem_with_a_name_and_never_an_end(
    served: Served, pauses: HeldSleeps, canned: CannedAnswer, reason: Reason
) -> None:
    served.tenancy.publish(ENV, {"n": 1})
    served.tenancy.answers.append(canned)
    async with running(served.agent.poller.run()):
        assert await pauses.begun.number(1) >= 1
        assert served.agent.reasons == [reason]


async def test_a_superseded_an_expired_and_another_environments_grant_are_told_apart(
    served: Served, pauses: HeldSleeps
) -> None:
    served.tenancy.publish(ENV, {"n": 1})
    served.tenancy.grant(ENV)
    async with running(served.agent.poller.run()):
        await pauses.begun.number(1)
        served.agent.install(served.tenancy.issuer.issue(ENV, lifetime=-timedelta(hours=1)))
        pauses.end()
        await pauses.begun.number(2)
        served.agent.install(served.tenancy.issuer.issue("env-b"))
        pauses.end()
        await pauses.begun.number(3)
        served.agent.install(served.tenancy.grant(ENV))
        pauses.end()
        await served.agent.manifests.number(1)

    assert served.agent.reasons[:4] == [
        Reason.GRANT_SUPERSEDED,
        Reason.GRANT_EXPIRED,
        Reason.GRANT_REFUSED,
        None,
    ]


async def test_a_decommissioned_environment_that_comes_back_is_in_contact_again(
    served: Served, pauses: HeldSleeps
) -> None:
    served.tenancy.publish(ENV, {"n": 1})
    served.tenancy.decommission(ENV)
    async with running(served.agent.poller.run()):
        assert (await served.agent.contacts.number(1)).decommissioned
        served.tenancy.decommissioned.clear()
        pauses.end()
        assert not (await served.agent.contacts.number(2)).decommissioned
        assert await served.agent.manifests.number(1) == b'{"n": 1}'


async def test_a_server_that_ignores_the_wish_to_wait_is_polled(
    served: Served, pauses: HeldSleeps
) -> None:
    served.tenancy.honours_wait = False
    served.tenancy.publish(ENV, {"n": 1})
    async with running(served.agent.poller.run()):
        pauses.end()
        assert await pauses.begun.number(2) == pytest.approx(66.0)
