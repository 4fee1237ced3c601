"""Reads the recorded runs of Compose in tests/data."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from monky_deployd.domain.compose_events import ComposeEvent, parse_json_line, parse_plain_line

DATA = Path(__file__).parent / "data"

Parse = Callable[[Sequence[str], Sequence[str]], tuple[ComposeEvent, ...]]


@dataclass(frozen=True)
class Section:
    """One recorded run of Compose: its name and the lines of its stderr."""

    name: str
    lines: tuple[str, ...]


def sections(file: str, prefix: str = "") -> dict[str, Section]:
    """The sections of a transcript; a name that comes again gets `#2`."""
    found: dict[str, Section] = {}
    text = (DATA / file).read_text(encoding="utf-8")
    for part in re.split(r"^=== ", text, flags=re.MULTILINE)[1:]:
        head, _, rest = part.partition("\n")
        if not head.startswith(prefix):
            continue
        name = head.removeprefix(prefix).split()[0]
        name = f"{name}#2" if name in found else name
        stderr = rest.removeprefix("--stdout:\n").removeprefix("--stderr:\n")
        found[name] = Section(name, tuple(stderr.removesuffix("\n").split("\n")))
    return found


def parsed_json(lines: Sequence[str], services: Sequence[str] = ()) -> tuple[ComposeEvent, ...]:
    return tuple(event for line in lines if (event := parse_json_line(line)))


def parsed_plain(lines: Sequence[str], services: Sequence[str]) -> tuple[ComposeEvent, ...]:
    return tuple(parse_plain_line(line, services) for line in lines)
