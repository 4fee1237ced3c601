"""Parts of secrets: what a parser that cut a value up may quote of it.

Compose's model check takes values apart at `:`, `/`, spaces and more, at the last digit of a
size, and writes parts of them in lower case. So a part is known by what it has in common with a
secret, wherever it was cut.
"""

import re
from collections.abc import Iterable, Iterator

# A word of a text, or an escape sequence, whose letter belongs to no word.
_WORD = re.compile(r"\\[abfnrtv]|[^\W_]+")
_LETTERS_OR_DIGITS = re.compile(r"[^\W\d_]+|\d+")
# How many characters in a row must stand in a secret too, by the length of the secret. By less,
# chance alone would make holes in every message of a host that holds long keys.
_SHORT_SECRET, _LONG_SECRET = 6, 64
_RUN_OF_SHORT, _RUN, _RUN_OF_LONG = 3, 4, 6
# A word of a secret counts from this length on, and from two characters on where it is a quarter
# of the secret.
_WORD_LENGTH = 4
_SHORT_WORD_LENGTH = 2
# Bounds the memory that one search takes.
_SLICE = 65536

Span = tuple[int, int]


class Fragments:
    """The known secrets as far as their parts go. Upper and lower case are the same here."""

    def __init__(self) -> None:
        self._words: set[str] = set()
        self._runs: dict[int, set[str]] = {}

    def add(self, value: str, spellings: Iterable[str]) -> None:
        """Take in a secret, in each of its `spellings`."""
        self._words |= set(_words(_folded(value)))
        runs = self._runs.setdefault(_run_length(value), set())
        runs |= {_folded(spelling) for spelling in spellings}

    def spans(self, text: str) -> Iterator[Span]:
        """Where parts of secrets stand in `text`, as (start, end); they may overlap."""
        folded = _folded(text)
        for word in _WORD.finditer(folded):
            if word[0] in self._words:
                yield word.span()
        for length, secrets in self._runs.items():
            for start in range(0, len(folded), _SLICE):
                part = folded[start : start + _SLICE + length - 1]
                yield from _common_runs(part, secrets, length, start)


def _words(value: str) -> Iterator[str]:
    for pattern in (_WORD, _LETTERS_OR_DIGITS):
        for word in pattern.findall(value):
            is_much_of_it = len(word) >= _SHORT_WORD_LENGTH and len(word) * 4 >= len(value)
            if len(word) >= _WORD_LENGTH or is_much_of_it:
                yield word


def _run_length(value: str) -> int:
    if len(value) <= _SHORT_SECRET:
        return _RUN_OF_SHORT
    return _RUN if len(value) <= _LONG_SECRET else _RUN_OF_LONG


def _common_runs(text: str, secrets: Iterable[str], length: int, offset: int) -> Iterator[Span]:
    """Each run of `length` characters of `text` that stands in one of `secrets` too."""
    runs: dict[str, list[int]] = {}
    for start in range(len(text) - length + 1):
        runs.setdefault(text[start : start + length], []).append(start)
    for run in {run for secret in secrets for run in _runs(secret, length) if run in runs}:
        for start in runs[run]:
            yield offset + start, offset + start + length


def _runs(secret: str, length: int) -> Iterator[str]:
    return (secret[start : start + length] for start in range(len(secret) - length + 1))


def _folded(text: str) -> str:
    """`text` in lower case, character for character: its positions stay those of `text`."""
    lowered = text.lower()
    return lowered if len(lowered) == len(text) else "".join(map(_lower, text))


def _lower(character: str) -> str:
    lowered = character.lower()
    return lowered if len(lowered) == 1 else character
