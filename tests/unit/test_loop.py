"""The daemon: who is told what, when the watchdog is fed, and how everything ends."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from monky_deployd.agent import loop as module
from monky_deployd.agent import vitals as vitals_module
from monky_deployd.agent.contact import Contact, Poller
from monky_deployd.agent.courier import Courier
from monky_deployd.agent.loop import Daemon
from monky_deployd.agent.vitals import Vitals
from monky_deployd.agent.watch import Watcher
from monky_deployd.agent.worker import Worker
from monky_deployd.domain.drift import EngineEvent
from monky_deployd.errors import Reason, TenancyError
from tests.unit.agent_fakes import (
    NOW,
    Clock,
    HeldSleeps,
    RecordingNotifier,
    failed,
    running,
    turns,
)
from tests.unit.worker_host import Host, host_in


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(vitals_module, "time", fake)
    return fake


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with host_in(tmp_path) as made:
        yield made


# --- promises


def test_a_promise_is_kept_until_its_time_is_over(clock: Clock) -> None:
    vitals = Vitals()
    assert vitals.overdue() == []
    vitals.promise("poller", 10)
    vitals.promise("worker", float("inf"))
    clock.now += 9.9
    assert vitals.overdue() == []
    clock.now += 0.1
    assert vitals.overdue() == ["poller"]
    vitals.promise("poller", 10)
    assert vitals.overdue() == []


# --- the daemon


class FakePoller(Poller):
    """A poller whose answers the test gives: its callbacks are public. It polls for ever."""

    def __init__(self, **callbacks: Any) -> None:
        self.on_manifest: Callable[[bytes], None] = callbacks["on_manifest"]
        self.on_contact: Callable[[Contact], None] = callbacks["on_contact"]
        self.expect: Callable[[float], None] = callbacks["expect"]
        self.ended = asyncio.Event()
        self.error: Exception | None = None
        self.broken = asyncio.Event()

    async def run(self) -> None:
        try:
            await self.broken.wait()
        finally:
            self.ended.set()
        assert self.error is not None
        raise self.error


class FakeCourier(Courier):
    """Counts nudges."""

    def __init__(self) -> None:
        self.nudges = 0
        self.ended = asyncio.Event()

    def nudge(self) -> None:
        self.nudges += 1

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


class FakeWatcher(Watcher):
    """A watcher whose events the test gives. It listens for ever."""

    def __init__(self, **callbacks: Any) -> None:
        self.on_event: Callable[[EngineEvent], None] = callbacks["on_event"]
        self.on_listening: Callable[[], None] = callbacks["on_listening"]
        self.ended = asyncio.Event()

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


class Running:
    """A daemon under way, with everything around it in the test's hands."""

    def __init__(self, host: Host, *, watchdog: float | None = None) -> None:
        self.notifier = RecordingNotifier()
        self.courier = FakeCourier()
        self.stop, self.reload = asyncio.Event(), asyncio.Event()
        self.daemon = Daemon(
            self._make_poller,
            self._make_watcher,
            partial(self._make_worker, host),
            self.courier,
            self.notifier,
            watchdog,
        )

    def _make_poller(self, **callbacks: Any) -> Poller:
        self.poller = FakePoller(**callbacks)
        return self.poller

    def _make_watcher(self, **callbacks: Any) -> Watcher:
        self.watcher = FakeWatcher(**callbacks)
        return self.watcher

    def _make_worker(self, host: Host, **callbacks: Any) -> Worker:
        return host.worker(**callbacks)

    async def run(self) -> None:
        await self.daemon.run(self.stop, self.reload)

    async def shown(self, text: str) -> None:
        await self.notifier.said.first(lambda message: message == f"STATUS={text}")


def problem(reason: Reason) -> Contact:
    return Contact(TenancyError(f"it is {reason}", reason=reason))


async def test_ready_does_not_wait_for_tenancy(host: Host) -> None:
    agent = Running(host)
    async with running(agent.run()):
        assert await agent.notifier.said.number(1) == "READY=1"
        await agent.shown("waiting for tenancy")


async def test_status_shows_the_last_outcome_and_the_contact(host: Host) -> None:
    host.reconciler.results.append(failed(sentence="web can't be pulled", finished_at=NOW))
    agent = Running(host)
    async with running(agent.run()):
        agent.poller.on_contact(Contact())
        await agent.shown("in contact with tenancy")
        agent.poller.on_manifest(b"one")
        await agent.notifier.said.first(lambda m: "web can't be pulled; next try at 03:00:" in m)
        assert agent.notifier.shown.endswith("Z | in contact with tenancy")
        agent.poller.on_contact(problem(Reason.TENANCY_UNREACHABLE))
        assert agent.notifier.shown.endswith("Z | it is tenancy-unreachable")
        agent.poller.on_manifest(b"two")
        await agent.shown("it is converged | it is tenancy-unreachable")


async def test_a_long_outcome_does_not_push_the_contact_out_of_status(host: Host) -> None:
    long = failed(sentence="web can't be pulled: " + "\N{SNOWMAN}" * 5000, finished_at=NOW)
    host.reconciler.results.append(long)
    agent = Running(host)
    async with running(agent.run()):
        agent.poller.on_contact(Contact())
        agent.poller.on_manifest(b"one")
        shown = await agent.notifier.said.first(lambda message: "can't be pulled" in message)
    assert "\N{HORIZONTAL ELLIPSIS}; next try at 03:00:" in shown
    assert shown.endswith("Z | in contact with tenancy")
    assert len(shown.encode()) < 4000


async def test_an_outcome_and_a_recovered_contact_nudge_the_courier(host: Host) -> None:
    agent = Running(host)
    async with running(agent.run()):
        agent.poller.on_contact(Contact())
        agent.poller.on_contact(Contact())
        assert agent.courier.nudges == 0
        agent.poller.on_contact(problem(Reason.TENANCY_BUSY))
        agent.poller.on_contact(problem(Reason.TENANCY_BUSY))
        assert agent.courier.nudges == 0
        agent.poller.on_contact(Contact())
        assert agent.courier.nudges == 1
        agent.poller.on_manifest(b"one")
        await agent.shown("it is converged | in contact with tenancy")
        assert agent.courier.nudges == 2


async def test_only_a_manifest_takes_a_decommissioned_environment_back(host: Host) -> None:
    agent = Running(host)
    async with running(agent.run()):
        agent.poller.on_contact(problem(Reason.TENANCY_DECOMMISSIONED))
        agent.poller.on_manifest(b"one")
        for reason in (Reason.TENANCY_UNREACHABLE, Reason.GRANT_SUPERSEDED):
            agent.poller.on_contact(problem(reason))
        await turns()
        assert host.reconciler.begun == []
        agent.poller.on_contact(Contact())
        await host.reconciler.begun.number(1)


async def test_the_watchdog_is_fed_only_while_every_promise_is_kept(
    host: Host, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ticks = HeldSleeps()
    monkeypatch.setattr(module, "asyncio", ticks)
    agent = Running(host, watchdog=60.0)
    agent.poller.expect(50)

    def fed() -> int:
        return agent.notifier.said.count("WATCHDOG=1")

    async with running(agent.run()):
        assert await ticks.begun.number(1) == 60.0
        assert fed() == 1
        clock.now += 51
        ticks.end()
        await ticks.begun.number(2)
        assert fed() == 1
        assert "not heard of for too long: poller" in caplog.text
        agent.poller.expect(50)
        ticks.end()
        await ticks.begun.number(3)
        assert fed() == 2


async def test_without_a_watchdog_there_is_none_to_feed(host: Host) -> None:
    agent = Running(host)
    async with running(agent.run()):
        await turns()
    assert "WATCHDOG=1" not in agent.notifier.said


async def test_stop_ends_every_task_and_a_pass_under_way(host: Host) -> None:
    host.reconciler.slow = True
    agent = Running(host)
    agent.poller.on_manifest(b"one")
    daemon = asyncio.create_task(agent.run())
    await host.reconciler.begun.number(1)

    agent.stop.set()
    await daemon

    assert agent.poller.ended.is_set()
    assert agent.courier.ended.is_set()
    assert host.reconciler.cancelled == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_reload_waits_for_the_pass_that_is_under_way(host: Host) -> None:
    host.reconciler.slow = True
    agent = Running(host)
    agent.poller.on_manifest(b"one")
    daemon = asyncio.create_task(agent.run())
    await host.reconciler.begun.number(1)

    agent.reload.set()
    await turns()
    assert not daemon.done()
    host.reconciler.finish()
    await daemon

    assert host.reconciler.cancelled == 0
    assert len(host.memory.store.pending(10)) == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_stop_does_not_wait_for_a_reload_that_waits(host: Host) -> None:
    host.reconciler.slow = True
    agent = Running(host)
    agent.poller.on_manifest(b"one")
    daemon = asyncio.create_task(agent.run())
    await host.reconciler.begun.number(1)
    agent.reload.set()
    await turns()

    agent.stop.set()
    await daemon

    assert host.reconciler.cancelled == 1


async def test_an_idle_daemon_reloads_at_once(host: Host) -> None:
    agent = Running(host)
    agent.reload.set()
    async with asyncio.timeout(5):
        await agent.run()
    assert host.reconciler.begun == []


async def test_an_unexpected_fault_in_a_task_ends_all_of_them_and_is_not_hidden(
    host: Host,
) -> None:
    agent = Running(host)
    daemon = asyncio.create_task(agent.run())
    await agent.notifier.said.number(1)
    agent.poller.error = LookupError("a fault of the agent's own")
    agent.poller.broken.set()

    with pytest.raises(ExceptionGroup) as caught:
        await daemon

    assert caught.group_contains(LookupError, match="a fault of the agent's own")
    assert agent.courier.ended.is_set()
    assert asyncio.all_tasks() == {asyncio.current_task()}
