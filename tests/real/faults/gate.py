"""A docker CLI that stops before or after a command of Compose's until it is let go on."""

import os
import select
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 60

# An armed gate is a directory with two FIFOs, which the first comer takes for itself.
_WRAPPER = """#!/bin/sh
gates={gates}
word=
for word in "$@"; do
  case $word in config|pull|up|stop|down) break;; esac
done
gate() {{
  mv "$gates/$1" "$gates/$1.$$" 2>/dev/null || return 0
  echo "$$" >"$gates/$1.$$/asked"
  read -r answer <"$gates/$1.$$/go" || true
}}
gate "before-$word"
{docker} "$@"
code=$?
gate "after-$word"
exit $code
"""


class Gate:
    """Stands in the way of one command. `pid` is that of the program that waits at it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        for name in ("asked", "go"):
            os.mkfifo(directory / name)
        # Held open for both ways, so that no open of either side ever waits.
        self._asked, self._go = (
            os.open(directory / name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            for name in ("asked", "go")
        )
        self.pid = 0

    def reached(self) -> None:
        """Wait until a command stands before the gate."""
        ready, _, _ = select.select([self._asked], [], [], PATIENCE)
        assert ready, "no command came to the gate"
        self.pid = int(os.read(self._asked, 32))

    def open(self) -> None:
        """Let it go on."""
        os.write(self._go, b"go\n")

    def passed(self) -> None:
        """Wait until the command that was let go on has ended."""
        deadline = time.monotonic() + PATIENCE
        while _runs(self.pid):
            assert time.monotonic() < deadline, "the command does not end"
            time.sleep(0.02)

    def close(self) -> None:
        for descriptor in (self._asked, self._go):
            os.close(descriptor)


class GatedDocker:
    """The wrapper below `base`: `binary` is what the agent is to take for the docker CLI."""

    def __init__(self, base: Path) -> None:
        self._gates = base / "gates"
        self._gates.mkdir()
        self.binary = base / "docker"
        docker = shutil.which("docker")
        assert docker
        self.binary.write_text(
            _WRAPPER.format(gates=shlex.quote(str(self._gates)), docker=shlex.quote(docker))
        )
        self.binary.chmod(0o755)

    @contextmanager
    def gate(self, name: str) -> Iterator[Gate]:
        """A gate `before-…` or `after-…` the next such command; it is open after the block."""
        gate = Gate(self._gates / name)
        try:
            yield gate
        finally:
            gate.close()
            for left in self._gates.glob(f"{name}*"):
                shutil.rmtree(left)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
