"""Paths that come from outside are data: this says which of them may name a file of ours."""

import unicodedata

_MAX_LENGTH = 512
_MAX_SEGMENT = 200


def safe_relative_path(path: str) -> str:
    """`path` in its one clean form: relative, `/`-separated, with no `.`, `..` or empty part.

    A leading `./` is dropped; anything else that would have to be cleaned is refused.
    Raises ValueError with a phrase that goes on from "target X ".
    """
    if path.startswith("./"):
        path = path[2:]
    if not path or len(path) > _MAX_LENGTH:
        raise ValueError(f"is empty or longer than {_MAX_LENGTH} characters")
    if path.startswith("/"):
        raise ValueError("is absolute; it must be relative to the release")
    if "\\" in path or any(unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for c in path):
        raise ValueError("holds a backslash or a control or invisible character")
    if unicodedata.normalize("NFC", path) != path:
        raise ValueError("is not in Unicode's composed form (NFC)")
    for part in path.split("/"):
        if part in {"", ".", ".."}:
            raise ValueError("holds an empty, '.' or '..' part")
        if len(part.encode()) > _MAX_SEGMENT:
            raise ValueError(f"has a part longer than {_MAX_SEGMENT} bytes")
    return path
