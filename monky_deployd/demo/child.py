"""A server that the demo and the tests start themselves, and stop by its process id."""

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from monky_deployd.errors import MonkyError

T = TypeVar("T")

_POLL_SECONDS = 0.05
_TAIL_LINES = 15


class Child:
    """One running server. Its output goes to `log`; it has no terminal and no standard input.

    It leads a session of its own, so that Ctrl-C reaches only the starter, which then stops
    everything in the right order.
    """

    def __init__(self, argv: Sequence[str], log: Path) -> None:
        """Start `argv`, appending its output to `log`. MonkyError if it can't be started."""
        self.name = Path(argv[0]).name
        self.log = log
        with log.open("ab") as output:
            try:
                self._process = subprocess.Popen(
                    list(argv),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise MonkyError(
                    f"{self.name} can't be started: {error.strerror}",
                    remedy="install it with packaging/parts.sh",
                ) from error

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def wait_for(self, ready: Callable[[], T | None], *, seconds: float) -> T:
        """Poll `ready` until it returns something, and return that.

        Stops the child and raises MonkyError with the log's tail when it exits or `seconds` pass.
        """
        deadline = time.monotonic() + seconds
        while self._process.poll() is None:
            if (answer := ready()) is not None:
                return answer
            if time.monotonic() > deadline:
                self.stop()
                raise self._failed(f"was not ready within {seconds:g} s")
            time.sleep(_POLL_SECONDS)
        raise self._failed(f"ended with exit code {self._process.returncode}")

    def _failed(self, what: str) -> MonkyError:
        return MonkyError(f"{self.name} {what}; its log {self.log} ends with:\n{self._tail()}")

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])

    def stop(self, *, seconds: float = 20) -> None:
        """Ask it to end, kill it after `seconds`, and wait until it is gone."""
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
