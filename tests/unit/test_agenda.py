"""What is due when, and in which order."""

import asyncio

import pytest

from monky_deployd.agent import agenda as module
from monky_deployd.agent.agenda import Agenda, Task
from tests.unit.agent_fakes import Clock, turns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(module, "time", fake)
    return fake


async def test_all_that_is_due_comes_at_once_a_look_first(clock: Clock) -> None:
    agenda = Agenda()
    for task in (Task.PASS, Task.REFRESH, Task.LOOK):
        agenda.set(task, 0)
    assert await agenda.next() == [Task.LOOK, Task.REFRESH, Task.PASS]
    assert not agenda.waits(Task.PASS)


async def test_what_is_not_due_yet_waits(clock: Clock) -> None:
    agenda = Agenda()
    agenda.set(Task.PASS, 10)
    agenda.set(Task.LOOK, 5)
    clock.now += 5
    assert await agenda.next() == [Task.LOOK]
    assert agenda.waits(Task.PASS)
    clock.now += 5
    assert await agenda.next() == [Task.PASS]


@pytest.mark.parametrize(("seconds", "due"), [(3.0, 3.0), (20.0, 10.0)])
async def test_hastening_never_delays(clock: Clock, seconds: float, due: float) -> None:
    agenda = Agenda()
    agenda.set(Task.PASS, 10)
    agenda.hasten(Task.PASS, seconds)
    clock.now += due
    assert await agenda.next() == [Task.PASS]


async def test_setting_may_delay(clock: Clock) -> None:
    agenda = Agenda()
    agenda.set(Task.PASS, 1)
    agenda.set(Task.PASS, 10)
    agenda.set(Task.LOOK, 1)
    clock.now += 1
    assert await agenda.next() == [Task.LOOK]


async def test_who_waits_is_woken_by_what_is_hastened() -> None:
    agenda = Agenda()
    agenda.set(Task.PASS, 1000)
    waiting = asyncio.create_task(agenda.next())
    await turns()
    assert not waiting.done()
    agenda.hasten(Task.PASS)
    assert await asyncio.wait_for(waiting, 5) == [Task.PASS]


async def test_with_real_time_it_waits_until_the_first_is_due() -> None:
    agenda = Agenda()
    agenda.set(Task.PASS, 1000)
    agenda.set(Task.REFRESH, 0.01)
    assert await asyncio.wait_for(agenda.next(), 5) == [Task.REFRESH]
