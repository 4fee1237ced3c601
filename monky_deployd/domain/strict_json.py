"""JSON without what RFC 8259 leaves open: a name that stands twice in an object is refused."""

import json
from typing import Any


def loads(text: str | bytes) -> Any:
    """The document in `text`. Raises ValueError, also for a duplicate name and deep nesting."""
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name stands twice in an object")
    return document
