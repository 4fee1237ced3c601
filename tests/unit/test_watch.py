"""Listening to the engine: events are passed on, and a stream that breaks is begun again."""

import logging
from collections import deque
from collections.abc import AsyncIterator

import pytest

from monky_deployd.agent import watch as module
from monky_deployd.agent.watch import Watcher
from monky_deployd.clients.engine import EngineClient
from monky_deployd.domain.drift import EngineEvent
from monky_deployd.errors import EngineError
from tests.unit.agent_fakes import HeldSleeps, Record, running

DIED = EngineEvent("die", "shop-web-1", "shop", "web", 1, "1")
STARTED = EngineEvent("start", "shop-web-1", "shop", "web", 2)
GONE = EngineError("the Docker Engine does not answer")


class Streams(EngineClient):
    """Gives `streams` one by one; each ends, or with an error. When they are out it holds."""

    def __init__(self, *streams: list[EngineEvent | EngineError | None]) -> None:
        self.streams = deque(streams)

    async def events(self) -> AsyncIterator[EngineEvent | None]:
        if not self.streams:
            yield None
            await module.asyncio.Event().wait()
        for item in self.streams.popleft():
            if isinstance(item, EngineError):
                raise item
            yield item


class Watching:
    """A watcher, and what it told."""

    def __init__(self, *streams: list[EngineEvent | EngineError | None]) -> None:
        self.told: Record[object] = Record()
        self.watcher = Watcher(
            Streams(*streams),
            on_event=self.told.append,
            on_listening=lambda: self.told.append("listening"),
        )


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> HeldSleeps:
    held = HeldSleeps()
    monkeypatch.setattr(module, "asyncio", held)
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    return held


async def test_what_matters_is_passed_on(sleeps: HeldSleeps) -> None:
    watching = Watching([None, STARTED, DIED])
    async with running(watching.watcher.run()):
        await watching.told.number(2)
    assert watching.told == ["listening", DIED]


async def test_after_a_break_it_listens_again_with_growing_pauses(
    sleeps: HeldSleeps, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    watching = Watching([None, DIED, GONE], [GONE], [GONE], [GONE], [GONE], [GONE])
    async with running(watching.watcher.run()):
        for count in range(1, 7):
            await sleeps.begun.number(count)
            sleeps.end()
        await watching.told.number(3)

    assert watching.told == ["listening", DIED, "listening"]
    assert sleeps.begun[:6] == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    lost = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert lost == [f"{GONE}; what happens meanwhile is looked for afterwards"]
    assert "listening to the Docker Engine again" in caplog.text


async def test_a_stream_that_just_ends_is_a_break_too(
    sleeps: HeldSleeps, caplog: pytest.LogCaptureFixture
) -> None:
    watching = Watching([None])
    async with running(watching.watcher.run()):
        await sleeps.begun.number(1)
    assert "ended its stream of events" in caplog.text
