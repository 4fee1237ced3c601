"""Secret values: a type that never prints itself, and the scrubber that masks them in text."""

import base64
import hmac
import json
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn
from urllib.parse import quote, quote_plus

from monky_deployd.domain.fragments import Fragments, Span

MASK = "[secret]"

# Shorter values ("1", "no", "dev") also occur in ordinary words; masking them would make a
# registry's message unreadable without hiding anything.
MIN_MASKED_LENGTH = 4
# What Go's encoder, unlike Python's, escapes in JSON.
_GO_ESCAPES = str.maketrans(
    {char: f"\\u{ord(char):04x}" for char in ("<", ">", "&", "\u2028", "\u2029")}
)
# As `.env` spells a value (`domain.dotenv` sits above this module, so it can't be asked).
_DOTENV_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "$": r"\$", "\n": r"\n", "\r": r"\r"})
# A line of a multi-line value (a PEM key) is masked on its own from this length on.
MIN_MASKED_LINE = 8


class Secret:
    """Text that must not be seen. `reveal()` is the only way out; `repr` and `str` are masked.

    Comparison is constant-time; it can't be pickled, hashed or formatted into text by accident.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself. Call it only where the value is written to its allowed place."""
        return self._value

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(_utf8(self._value), _utf8(other._value))

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return bool(self._value)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not serialised")


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


class Scrubber:
    """Masks known secret values, in every spelling that a tool's output may give them."""

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        self._needles: list[str] = []
        self._fragments = Fragments()
        self.add(secrets)

    def add(self, secrets: Iterable[Secret]) -> None:
        """Take in more secrets. Values under MIN_MASKED_LENGTH characters are not masked."""
        found = set(self._needles)
        for secret in secrets:
            value = secret.reveal()
            if len(value) >= MIN_MASKED_LENGTH:
                found |= _spellings(value)
                self._fragments.add(value, _quoted(value))
        self._needles = sorted(found)

    def scrub(self, text: str) -> str:
        """`text` with each known secret replaced by `MASK`, and nothing else changed.

        Secrets that overlap are masked as one. What is masked already stays as it is.
        """
        return _masked(text, self._whole)

    def scrub_fragments(self, text: str) -> str:
        """`scrub`, and what was cut out of a secret masked too, such as the host of an address.

        For words about values that a parser took apart. It masks rather too much: what a secret
        has in common with an ordinary word goes too, so a registry's words are not for it.
        """
        return _masked(text, lambda part: [*self._whole(part), *self._fragments.spans(part)])

    def _whole(self, text: str) -> list[Span]:
        present = (needle for needle in self._needles if needle in text)
        return [span for needle in present for span in _occurrences(needle, text)]

    def __repr__(self) -> str:
        return f"Scrubber({len(self._needles)} spellings)"


def _masked(text: str, find: Callable[[str], Iterable[Span]]) -> str:
    """`text` with `MASK` for each span that `find` tells; what is masked already stays."""
    return MASK.join(_replaced(part, _merged(find(part))) for part in text.split(MASK))


def _replaced(text: str, spans: Iterable[Span]) -> str:
    kept, position = [], 0
    for start, end in spans:
        kept.append(text[position:start])
        position = end
    return MASK.join([*kept, text[position:]])


def _occurrences(needle: str, text: str) -> Iterator[Span]:
    """Where `needle` stands in `text`, also where it overlaps itself."""
    start = text.find(needle)
    while start >= 0:
        yield start, start + len(needle)
        start = text.find(needle, start + 1)


def _merged(spans: Iterable[Span]) -> list[Span]:
    """The spans in order, those that overlap made one."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _spellings(value: str) -> set[str]:
    """Every form in which `value` may come back: quoted, URL, base64, whole or line by line."""
    forms = {
        *_quoted(value),
        # As Compose's model spells a value, for the words of those who read the model.
        *_quoted(value.replace("$", "$$")),
        value.strip(),
        quote(value, safe="", errors="replace"),
        quote(value, errors="replace"),
        quote_plus(value, errors="replace"),
    }
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        encoded = encode(_utf8(value)).decode()
        forms |= {encoded, encoded.rstrip("=")}
    for line in map(str.strip, value.splitlines()):
        if len(line) >= MIN_MASKED_LINE:
            forms |= _quoted(line)
    return {form for form in forms if len(form) >= MIN_MASKED_LENGTH}


def _quoted(text: str) -> set[str]:
    """`text` as it is, and inside the quotes of Python, its JSON, Go's, and a `.env`.

    Also inside two pairs of quotes: Compose's JSON holds messages in which Go quotes a value.
    """
    once = _quoted_once(text)
    return once.union(*map(_quoted_once, once))


def _quoted_once(text: str) -> set[str]:
    as_json = json.dumps(text, ensure_ascii=False)[1:-1]
    return {
        text,
        repr(text)[1:-1],
        ascii(text)[1:-1],
        json.dumps(text)[1:-1],
        as_json,
        as_json.translate(_GO_ESCAPES),
        text.translate(_DOTENV_ESCAPES),
    }
