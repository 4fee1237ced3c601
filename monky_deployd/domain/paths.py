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


class Claims:
    """Which paths are taken, and by whom: no two files share one, and none lies in another."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {}
        self._directories: dict[str, str] = {}

    def take(self, path: str, owner: str) -> str:
        """Take `path` for `owner`. The path in its clean form.

        Raises ValueError, also for a path that isn't safe, with a phrase as above.
        """
        clean = safe_relative_path(path)
        parents = [clean[:end] for end, character in enumerate(clean) if character == "/"]
        for taken in (self._files.get(name) for name in (clean, *parents)):
            if taken is not None:
                raise ValueError(f"collides with {taken}")
        if clean in self._directories:
            raise ValueError(f"collides with {self._directories[clean]}")
        self._files[clean] = owner
        self._directories |= dict.fromkeys(parents, owner)
        return clean
