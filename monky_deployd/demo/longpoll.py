"""Held requests: they wait for a bell that any thread may ring."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Waiter:
    """One held request. `ended` says that it must not wait any longer."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self.ended = False

    def wake(self, *, last: bool) -> None:
        self.ended = self.ended or last
        self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, seconds: float) -> None:
        """Return when the bell rings (also if it has rung since the last wait) or time is over."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)
        self._event.clear()


class Bell:
    """Wakes held requests. It may be rung from any thread; each waiter lives in its own loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: set[Waiter] = set()

    @contextmanager
    def listen(self) -> Iterator[Waiter]:
        waiter = Waiter()
        with self._lock:
            self._waiters.add(waiter)
        try:
            yield waiter
        finally:
            with self._lock:
                self._waiters.discard(waiter)

    def ring(self, *, last: bool = False) -> None:
        """Wake all; with `last` they don't wait again."""
        with self._lock:
            for waiter in self._waiters:
                waiter.wake(last=last)
