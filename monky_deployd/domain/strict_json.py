"""JSON as RFC 8259 has it, less what it leaves open: a name may not stand twice in an object."""

import json
from typing import Any, NoReturn


def loads(text: str | bytes) -> Any:
    """The document in `text`.

    Raises ValueError, also for a duplicate name, deep nesting, and the NaN and Infinity that
    Python's own reader takes.
    """
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name stands twice in an object")
    return document
