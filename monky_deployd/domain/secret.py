"""Secret values: a type that never prints itself, and the scrubber that masks them in text."""

import base64
import hmac
import json
from collections.abc import Iterable
from typing import NoReturn
from urllib.parse import quote, quote_plus

MASK = "[secret]"

# Shorter values ("1", "true", "dev") also occur in ordinary words; masking them would make a
# registry's message unreadable without hiding anything.
MIN_MASKED_LENGTH = 4
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
        self.add(secrets)

    def add(self, secrets: Iterable[Secret]) -> None:
        """Take in more secrets. Values under MIN_MASKED_LENGTH characters are not masked."""
        found = set(self._needles)
        for secret in secrets:
            found |= _spellings(secret.reveal())
        # Longest first, so that a value that contains another is masked whole.
        self._needles = sorted(found, key=len, reverse=True)

    def scrub(self, text: str) -> str:
        """`text` with each known secret replaced by `MASK`, and nothing else changed."""
        for needle in self._needles:
            if needle in text:
                text = text.replace(needle, MASK)
        return text

    def __repr__(self) -> str:
        return f"Scrubber({len(self._needles)} spellings)"


def _spellings(value: str) -> set[str]:
    """Every form in which `value` may come back: raw, JSON, URL, base64, dotenv, line by line."""
    if len(value) < MIN_MASKED_LENGTH:
        return set()
    forms = {
        value,
        value.strip(),
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        quote(value, safe="", errors="replace"),
        quote(value, errors="replace"),
        quote_plus(value, errors="replace"),
        value.translate(_DOTENV_ESCAPES),
        value.replace("$", "$$"),
    }
    raw = _utf8(value)
    forms.add(base64.b64encode(raw).decode())
    forms.add(base64.urlsafe_b64encode(raw).decode())
    forms.add(base64.b64encode(raw).decode().rstrip("="))
    if "\n" in value or "\r" in value:
        forms |= {
            line.strip() for line in value.splitlines() if len(line.strip()) >= MIN_MASKED_LINE
        }
    return {form for form in forms if len(form) >= MIN_MASKED_LENGTH}
