"""What the demo prints: headings, commands with their output, and proofs."""

import json
import os
import shlex
from collections.abc import Sequence
from typing import Any, TextIO

from monky_deployd.errors import MonkyError

_INDENT = "    "
_BOLD, _DIM, _GREEN, _PLAIN = "\033[1m", "\033[2m", "\033[32m", "\033[0m"


class Page:
    """Writes to `stream`, with colours only where it is a terminal and NO_COLOR is not set."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._colours = stream.isatty() and not os.environ.get("NO_COLOR")
        self._steps = 0

    def step(self, title: str) -> None:
        """The next step begins."""
        self._steps += 1
        self._write(f"\n{self._in(_BOLD, f'{self._steps}. {title}')}")

    def say(self, text: str) -> None:
        """A sentence of the demo's own."""
        self._write(f"  {text}")

    def command(self, argv: Sequence[str]) -> None:
        """A command, as a person types it."""
        self._write(f"  {self._in(_BOLD, '$ ' + shlex.join(argv))}")

    def output(self, text: str) -> None:
        """What something else said, as it stands."""
        for line in text.rstrip("\n").splitlines():
            self._write(f"{_INDENT}{self._in(_DIM, line) if line else ''}".rstrip())

    def document(self, document: Any) -> None:
        """A JSON document."""
        self.output(json.dumps(document, indent=2, ensure_ascii=False))

    def prove(self, holds: bool, claim: str) -> None:
        """Print a claim that holds. MonkyError, which ends the demo, for one that doesn't."""
        if not holds:
            raise MonkyError(f"step {self._steps} went wrong; this does not hold: {claim}")
        self._write(f"  {self._in(_GREEN, 'proved:')} {claim}")

    def _in(self, style: str, text: str) -> str:
        return f"{style}{text}{_PLAIN}" if self._colours else text

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()
