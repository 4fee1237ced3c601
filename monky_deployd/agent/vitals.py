"""Signs of life of the agent's tasks, for the watchdog."""

import time


class Vitals:
    """Promises of the tasks to be heard again. The watchdog is fed only while all are kept."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}

    def promise(self, task: str, seconds: float) -> None:
        """`task` will make its next promise within `seconds`."""
        self._due[task] = time.monotonic() + seconds

    def overdue(self) -> list[str]:
        """The tasks that did not keep their promise."""
        now = time.monotonic()
        return [task for task, due in self._due.items() if due <= now]
