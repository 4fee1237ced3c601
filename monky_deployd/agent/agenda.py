"""What is due when, by the monotonic clock: one waiter, and a time for each thing to do."""

import asyncio
import contextlib
import time
from enum import StrEnum


class Task(StrEnum):
    """What a worker does: a look at what runs, for a new grant, for new secrets, a whole pass."""

    LOOK = "look"
    GRANT = "grant"
    REFRESH = "refresh"
    PASS = "pass"


class Agenda:
    """Each task is due at most once. For one waiter."""

    def __init__(self) -> None:
        self._due: dict[Task, float] = {}
        self._changed = asyncio.Event()

    def set(self, task: Task, seconds: float) -> None:
        """`task` is due in so many seconds, whatever was said before."""
        self._due[task] = time.monotonic() + seconds
        self._changed.set()

    def hasten(self, task: Task, seconds: float = 0.0) -> None:
        """`task` is due in so many seconds, or sooner where it was to be."""
        moment = time.monotonic() + seconds
        self._due[task] = min(moment, self._due.get(task, moment))
        self._changed.set()

    def waits(self, task: Task) -> bool:
        """Whether `task` will be due some time."""
        return task in self._due

    async def next(self) -> list[Task]:
        """Wait until something is due. All that is, in the order in which it is to be done."""
        while not (due := self._take()):
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._changed.wait()
        return due

    def _take(self) -> list[Task]:
        now = time.monotonic()
        due = [task for task in Task if self._due.get(task, float("inf")) <= now]
        for task in due:
            del self._due[task]
        return due

    def _pause(self) -> float | None:
        if not self._due:
            return None
        return max(0.0, min(self._due.values()) - time.monotonic())
