"""Ctrl-C and SIGTERM for a program that has started servers: they never cut it short half-way."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Turns Ctrl-C, SIGTERM and SIGHUP into KeyboardInterrupt, but not while they are held."""

    def __init__(self) -> None:
        """Take the signals over, for the rest of this process's life."""
        self._holds = 0
        self._pending = False
        for number in _SIGNALS:
            # One that is ignored stays so: nohup and a script's `&` want it that way.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._arrived)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, a signal waits; it is raised at the end, unless an error is on its way."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
        if self._pending and not self._holds:
            self._pending = False
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """From now on they do nothing: what is going on is the end already."""
        self._holds += 1

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._holds:
            self._pending = True
            return
        raise KeyboardInterrupt
