"""Secrets of OpenBao's KV version 2 engine: where an entry points to, and the text it means."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from monky_deployd.domain.secret import Secret
from monky_deployd.errors import EntryError, OpenBaoError, Reason

# The key that is meant where an entry names none and the secret holds several.
DEFAULT_KEY = "value"
_KEYS_SHOWN = 10
_PATH_LIMIT = 1024
# OpenBao keeps numbers as 64-bit floats: from here on, whole numbers come back changed.
_INEXACT_FROM = 2**53


@dataclass(frozen=True, repr=False)
class KvSecret:
    """One version of a secret. Its `repr` tells how many keys it has, never a value."""

    data: Mapping[str, Any]
    version: int

    def __repr__(self) -> str:
        return f"KvSecret(version={self.version}, keys={len(self.data)})"


@dataclass(frozen=True)
class SecretPlace:
    """Where an entry's value lives. Shown in messages as `bao kv get` takes it: mount/path."""

    entry: str
    mount: str
    path: str

    def __str__(self) -> str:
        return f"entry {_shown(self.entry)} ({self.shown_path})"

    @property
    def shown_path(self) -> str:
        """Mount and path, without control characters, for a message or a command."""
        return ascii(f"{self.mount}/{self.path}")[1:-1]

    @property
    def api_path(self) -> str:
        """The path of the HTTP API's read call, each segment percent-encoded."""
        return f"/v1/{quote(self.mount)}/data/{quote(self.path)}"


def secret_place(*, entry: str, mount: str, path: str) -> SecretPlace:
    """The place that `path`, which counts from below the KV mount, means for `entry`.

    One leading and one trailing slash are dropped. Raises EntryError for a path with an empty,
    `.` or `..` segment (OpenBao would redirect it), an unprintable character, or one too long.
    """
    clean = path.removeprefix("/").removesuffix("/")
    if not clean.isprintable() or len(clean) > _PATH_LIMIT:
        raise EntryError(
            f"entry {_shown(entry)}: path {_shown(path)} holds an unprintable character or is "
            f"longer than {_PATH_LIMIT} characters"
        )
    if any(segment in {"", ".", ".."} for segment in clean.split("/")):
        raise EntryError(
            f"entry {_shown(entry)}: path {_shown(path)} is empty or has an empty, '.' or '..' "
            "segment",
            remedy="write the path below the KV mount, such as env-dev-01/database",
        )
    return SecretPlace(entry, mount.strip("/"), clean)


def pick_value(
    secret: KvSecret, *, entry: str, path: str, key: str | None, whole_json: bool
) -> Secret:
    """The text that an entry means.

    With `key`, that key's value. Without, the whole secret as a JSON document if `whole_json`
    (`registry-auth`), else the value of the only key, or of the key `value`.

    Strings are taken as they are, booleans as `true` and `false`, objects and lists as compact
    JSON. Raises OpenBaoError: SECRET_MISSING if there is no such key (it names the keys that
    there are), ENTRY_REFUSED for null and for numbers, which OpenBao may have rewritten.
    """
    subject = f"entry {_shown(entry)} ({ascii(path)[1:-1]}, version {secret.version})"
    if key is None and whole_json:
        return Secret(_json_text(dict(secret.data), f"{subject}: the secret"))
    chosen = _choose_key(secret, subject=subject, key=key)
    return Secret(_text(secret.data[chosen], f"{subject}: key {_shown(chosen)}"))


def _choose_key(secret: KvSecret, *, subject: str, key: str | None) -> str:
    if key is not None:
        if key in secret.data:
            return key
        raise OpenBaoError(
            f"{subject}: the secret has no key {_shown(key)}; it has {_key_names(secret)}",
            remedy="correct the entry's key or add it to the secret",
            reason=Reason.SECRET_MISSING,
        )
    if len(secret.data) == 1:
        return next(iter(secret.data))
    if DEFAULT_KEY in secret.data:
        return DEFAULT_KEY
    raise OpenBaoError(
        f"{subject}: which key is meant? The secret has {_key_names(secret)}",
        remedy=f"give the entry a key, or the secret a key named {DEFAULT_KEY!r}",
        reason=Reason.SECRET_MISSING,
    )


def _key_names(secret: KvSecret) -> str:
    names = sorted(secret.data)
    if not names:
        return "no keys at all"
    more = f" and {len(names) - _KEYS_SHOWN} more" if len(names) > _KEYS_SHOWN else ""
    return ", ".join(_shown(name) for name in names[:_KEYS_SHOWN]) + more


def _text(value: Any, subject: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return _json_text(value, subject)
    kind = "null" if value is None else "a number, which OpenBao may have rewritten"
    raise _refused(f"{subject} is {kind}")


def _json_text(value: Any, subject: str) -> str:
    if _holds_inexact_number(value):
        raise _refused(f"{subject} holds a number of 2^53 or more, which OpenBao rewrites")
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise _refused(f"{subject} is nested too deeply") from None


def _holds_inexact_number(value: Any) -> bool:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, int | float) and abs(item) >= _INEXACT_FROM:
            return True
    return False


def _refused(cause: str) -> OpenBaoError:
    return OpenBaoError(
        cause, remedy="store it in OpenBao as a string", reason=Reason.ENTRY_REFUSED
    )


def _shown(name: str) -> str:
    shown = ascii(name)
    return shown if len(shown) <= 80 else shown[:77] + "..."
