"""Runs the agent with a clock that can jump: `clock_shim.py FILE COMMAND…`.

FILE holds how many seconds the wall clock is ahead. It stands in for the machine's own clock,
which all tests share: everything that asks for the date sees the jump, waiting does not, just
as with a real one.
"""

import datetime
import sys
import time
from pathlib import Path

_FILE = Path(sys.argv[1])
_time = time.time


def _ahead() -> float:
    return float(_FILE.read_text())


class _Shifted(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "_Shifted":
        return cls.fromtimestamp(_time() + _ahead(), tz)


if __name__ == "__main__":
    datetime.datetime = _Shifted  # type: ignore[misc]
    time.time = lambda: _time() + _ahead()
    from monky_deployd.cli import main

    sys.exit(main(sys.argv[2:]))
