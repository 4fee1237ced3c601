"""The disk is full: the state directory is a small file system of its own."""

import errno
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.real.faults import proxy
from tests.real.faults.bench import Bench, Parts, open_bench
from tests.real.faults.matrix import Case, Group

_SIZE = "4m"
_CHUNK = 4096
_LARGE = 256 * 1024
_NO_ROOM = "no room"


def _filler(bench: Bench) -> Path:
    return bench.world.state / "filler"


def _fill(bench: Bench, *, leave: int = 0) -> None:
    """Take all the room but `leave` bytes."""
    with _filler(bench).open("ab", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * _CHUNK)
        except OSError as error:
            assert error.errno == errno.ENOSPC
        file.truncate(max(0, file.tell() - leave))


def _free(bench: Bench) -> None:
    _filler(bench).unlink()


def _with_large_file(bench: Bench) -> list[dict[str, Any]]:
    large = {"name": "large", "value": "x" * _LARGE, "use": "file", "target": "conf/large"}
    return [*bench.entries, large]


def _stage(bench: Bench) -> str:
    """The release has no room; what tells of it has."""
    _fill(bench, leave=_LARGE // 2)
    before = bench.entries
    bench.entries = _with_large_file(bench)
    bench.publish()
    report = bench.told("disk")
    bench.entries = before
    _free(bench)
    return str(report["phase"])


def _stage_without_any_room(bench: Bench) -> str:
    _fill(bench)
    bench.publish()
    bench.says(_NO_ROOM)
    _free(bench)
    return _NO_ROOM


def _at_gate(name: str, bench: Bench) -> str:
    with bench.gate(name) as gate:
        bench.publish()
        gate.reached()
        _fill(bench)
        gate.open()
        bench.says(_NO_ROOM)
    _free(bench)
    return _NO_ROOM


def _admit(bench: Bench) -> str:
    return _at_gate("before-config", bench)


def _record(bench: Bench) -> str:
    """The containers are up; that can't be written down."""
    return _at_gate("after-up", bench)


def _report(bench: Bench) -> str:
    """Tenancy has the report; that can't be written down."""
    path = f"/v1/environments/{bench.world.slug}/reports"
    with bench.tenancy.suffering(proxy.TIMEOUT, prefix=path) as order:
        bench.publish()
        order.wait()
        _fill(bench)
    bench.says(_NO_ROOM)
    _free(bench)
    return _NO_ROOM


def _start(bench: Bench) -> str:
    """The agent ends, and is started again, as the service manager does it."""
    bench.end(signal.SIGTERM)
    _fill(bench)
    bench.publish()
    daemon = bench.start()
    bench.says(_NO_ROOM)
    assert daemon.wait() != 0
    bench.daemon = None
    _free(bench)
    bench.start()
    return f"{_NO_ROOM}, started again"


@contextmanager
def _open(base: Path, parts: Parts) -> Iterator[Bench]:
    with open_bench(base, parts) as bench:
        state = bench.world.state
        state.mkdir(mode=0o700)
        _run("mount", "-t", "tmpfs", "-o", f"size={_SIZE},mode=0700", "tmpfs", str(state))
        try:
            yield bench
        finally:
            if bench.daemon:
                bench.daemon.stop()
                bench.daemon = None
            _run("umount", str(state))


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


GROUPS = [
    Group(
        "disk",
        [
            Case("stage", "ENOSPC", _stage),
            Case("stage", "ENOSPC, not a byte left", _stage_without_any_room),
            Case("admit", "ENOSPC", _admit),
        ],
        _open,
    ),
    Group(
        "disk-too",
        [
            Case("record", "ENOSPC in state.db", _record),
            Case("report", "ENOSPC in state.db", _report),
            Case("start", "ENOSPC", _start),
        ],
        _open,
    ),
]
