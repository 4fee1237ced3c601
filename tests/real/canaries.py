"""Secrets that no text has by chance, and a searcher that finds them however they are spelled."""

import base64
import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus

# The tokens of OpenBao, which nobody but it and the agent knows: service, batch, recovery.
OPENBAO_TOKEN = re.compile(rb"\b(?:hv)?[sbr]\.[A-Za-z0-9_-]{24,}")


def mark(label: str) -> str:
    """A word that is found again wherever it goes: no encoder but base64 changes it."""
    return f"c4n4ry{label}{secrets.token_hex(6)}"


class Canaries:
    """Named secrets to look for. What is found is told by name and spelling, never as it is."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._needles = [
            (f"{name} {spelling}", needle)
            for name, value in values.items()
            for spelling, needle in spellings(value)
        ]

    def found_in(self, data: bytes) -> list[str]:
        """Which secrets stand in `data`, each with its spelling."""
        folded = data.lower()
        found = {name for name, needle in self._needles if needle in data or needle in folded}
        if OPENBAO_TOKEN.search(data):
            found.add("a token of OpenBao")
        return sorted(found)


def spellings(value: str) -> Iterator[tuple[str, bytes]]:
    """Every form of `value` that is looked for, with its name."""
    as_json = json.dumps(value, ensure_ascii=False)[1:-1]
    yield "raw", value.encode()
    yield "in lower case", value.lower().encode()
    yield "as JSON", json.dumps(value)[1:-1].encode()
    yield "as JSON in UTF-8", as_json.encode()
    yield "as JSON in JSON", json.dumps(as_json)[1:-1].encode()
    yield "as repr", repr(value)[1:-1].encode()
    yield "in a URL", quote(value, safe="").encode()
    yield "in a URL's path", quote(value).encode()
    yield "in a form", quote_plus(value).encode()
    for shift in range(3):
        for name, encode in _BASE64.items():
            yield f"in {name} at {shift}", _without_neighbours(encode, value.encode(), shift)


_BASE64 = {"base64": base64.b64encode, "base64 for URLs": base64.urlsafe_b64encode}


def _without_neighbours(encode: object, value: bytes, shift: int) -> bytes:
    """What the encoder makes of `value` behind `shift` other bytes, whatever stands around it."""
    assert callable(encode)
    encoded: bytes = encode(b"\0" * shift + value)
    first = (shift * 8 + 5) // 6
    whole = (shift + len(value)) * 8 // 6
    return encoded[first:whole]


def lines_of(name: str, text: str) -> Iterable[tuple[str, str]]:
    """The lines of a long secret as secrets of their own."""
    return ((f"{name}, line {number}", line) for number, line in enumerate(text.split("\n")))
