"""Registry credentials: what an entry's value may look like, and docker's `config.json`.

Docker drops every credential of a `config.json` in which one is bad, so each is checked before
it is written. Of that file's format only `auths` is used: a credential helper that the host
lacks would break Compose.
"""

import base64
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from monky_deployd.domain import strict_json
from monky_deployd.domain.secret import Secret
from monky_deployd.errors import EntryError

# The only key under which docker looks for Docker Hub's credential.
HUB_KEY = "https://index.docker.io/v1/"
_HUB = "docker.io"
_HUB_INDEX = "index.docker.io"
_HUB_ALIASES = frozenset(
    {_HUB, _HUB_INDEX, "registry-1.docker.io", "registry.hub.docker.com", "hub.docker.com"}
)

_SCHEME = re.compile(r"https?://")
_LABEL = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
# What an image reference can name (the distribution reference grammar): no `_`, no last dot.
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-f:]+\])(?::(?P<port>[0-9]{{1,5}}))?")

# Values that start like this are JSON or a mistake; no registry has such user names.
_JSON_STARTS = ("{", "[", '"')
_LOGIN = ("username", "password")
# Harbor 2 exports a robot as name and secret, Harbor 1 as name and token.
_LOGINS = (_LOGIN, ("name", "secret"), ("name", "token"))
_TOKENS = ("identitytoken", "registrytoken")
_SHAPES = (
    'give user:password, JSON with username and password, Harbor\'s robot export, {"auth": ...} '
    'or {"auths": ...}'
)
_NAME_A_HOST = "set the entry's registry_host"


@dataclass(frozen=True)
class Credential:
    """What docker sends to one registry. `host` is normalised: the key in `auths`."""

    host: str
    username: str = field(repr=False)
    password: Secret

    @property
    def auth(self) -> Secret:
        """User and password as `auths` holds them: base64 of `user:password` in UTF-8."""
        pair = f"{self.username}:{self.password.reveal()}"
        return Secret(base64.b64encode(pair.encode()).decode())


class _RefusedError(ValueError):
    """Why a value can't be used: a phrase that holds nothing of the value."""

    def __init__(self, phrase: str, remedy: str = "correct the entry's value") -> None:
        super().__init__(phrase)
        self.remedy = remedy


def parse_credentials(
    name: str, value: Secret, registry_host: str | None
) -> tuple[Credential, ...]:
    """The credentials in `value`, which entry `name` marks `registry-auth`, one for each host.

    Accepted are `user:password` (split at the first colon), and JSON: username and password,
    a Harbor robot's export, `{"auth": ...}`, a whole `{"auths": ...}` document, or the hosts
    of one without the `auths` around them (the legacy `.dockercfg`). JSON may carry its own
    `registry_host`. Where `registry_host` is given too, it must be the same, and one of the
    hosts of `auths`.

    Raises EntryError that names the entry and nothing of its value.
    """
    try:
        return _parse(value.reveal(), registry_host)
    except _RefusedError as refusal:
        raise EntryError(f"entry {name!r} {refusal}", remedy=refusal.remedy) from None


def normalise_host(text: str) -> str:
    """The key under which docker looks up the registry that `text` means.

    Scheme, path and surrounding spaces go, a port stays; every name of Docker Hub becomes
    `HUB_KEY`. Docker compares the rest exactly with the image reference: the host is
    lower-cased here since references are written so.

    Raises ValueError with a phrase that goes on from "registry_host ", without the text: a URL
    may hold a password.
    """
    # Before lower(), which turns some other letters into ASCII ones.
    if not text.isascii():
        raise _RefusedError("is not a host name in ASCII")
    host = _SCHEME.sub("", text.strip().lower(), count=1).partition("/")[0]
    if not host:
        raise _RefusedError("is empty")
    if "@" in host:
        raise _RefusedError("holds a user name")
    match = _HOST.fullmatch(host)
    if match is None:
        raise _RefusedError("is not a host name with an optional port")
    if match["port"] is not None and not 1 <= int(match["port"]) <= 65535:
        raise _RefusedError("has a port that is not between 1 and 65535")
    return HUB_KEY if host in _HUB_ALIASES else host


def docker_config(credentials: Iterable[tuple[str, Credential]]) -> bytes:
    """The `config.json` for `credentials`, each with the name of the entry that it came from.

    The same credentials give the same bytes in any order. Raises EntryError that names the
    entries where two give one host different credentials.
    """
    chosen: dict[str, tuple[str, Credential]] = {}
    conflicts = []
    for name, credential in credentials:
        first, other = chosen.setdefault(credential.host, (name, credential))
        if credential != other:
            conflicts.append(f"entries {first!r} and {name!r} for {credential.host}")
    if conflicts:
        raise EntryError(
            f"a registry host has two different credentials: {'; '.join(conflicts)}",
            remedy="keep one of the entries in the manifest",
        )
    auths = {host: {"auth": chosen[host][1].auth.reveal()} for host in sorted(chosen)}
    return (json.dumps({"auths": auths}) + "\n").encode()


def docker_key(image_host: str) -> str:
    """The key in `auths` that docker looks up for an image's host, as `registry_of_image` gives.

    Only these two names of Docker Hub mean its key in an image reference, unlike in a manifest.
    """
    return HUB_KEY if image_host in {"docker.io", "index.docker.io"} else image_host


def registry_of_image(image: str) -> str:
    """The registry host of an image reference, by the distribution reference rule.

    The part before the first `/` is a host if it could not be a path; else it is `docker.io`.
    """
    first, slash, _ = image.partition("/")
    is_host = "." in first or ":" in first or first == "localhost" or first != first.lower()
    if not slash or not is_host or first == _HUB_INDEX:
        return _HUB
    return first


def _parse(text: str, registry_host: str | None) -> tuple[Credential, ...]:
    stated = set() if registry_host is None else {_stated_host(registry_host)}
    start = text.lstrip()
    if start.startswith("\ufeff"):
        raise _RefusedError("starts with a byte order mark", "remove it")
    if start.startswith(_JSON_STARTS):
        return _from_json(_load(text), stated)
    username, colon, password = text.partition(":")
    if not colon:
        raise _RefusedError("is neither JSON nor user:password (it has no colon)", _SHAPES)
    return (_credential(_only(stated), username, password),)


def _load(text: str) -> dict[str, Any]:
    document = _json(text)
    if document is None:
        raise _RefusedError("is not valid JSON, or names a field twice", _SHAPES)
    if not isinstance(document, dict):
        raise _RefusedError("is JSON, but not an object", _SHAPES)
    return document


def _json(text: str) -> object:
    """The document in `text`, or None. The decoder's own error would hold the whole text."""
    try:
        return strict_json.loads(text)
    except ValueError:
        return None


def _from_json(document: dict[str, Any], stated: set[str]) -> tuple[Credential, ...]:
    if "registry_host" in document:
        stated = stated | {_stated_host(_text(document, "registry_host"))}
    if "auths" not in document:
        if _is_legacy(document):
            return _from_auths(document, stated)
        return (_credential(_only(stated), *_login(document, _LOGINS)),)
    if _names_a_login(document):
        raise _RefusedError("is JSON with both auths and a single login", "keep one of the two")
    return _from_auths(document["auths"], stated)


def _is_legacy(document: Mapping[str, Any]) -> bool:
    members = document.values()
    return bool(members) and all(isinstance(f, dict) and "auth" in f for f in members)


def _names_a_login(fields: Mapping[str, Any]) -> bool:
    return "auth" in fields or any(user in fields and word in fields for user, word in _LOGINS)


def _from_auths(auths: object, stated: set[str]) -> tuple[Credential, ...]:
    if not isinstance(auths, dict) or not auths:
        raise _RefusedError("has auths without any registry host in it", _SHAPES)
    found: dict[str, Credential] = {}
    for position, (host, fields) in enumerate(auths.items(), start=1):
        credential = _from_auth(host, fields, position)
        if found.setdefault(credential.host, credential) != credential:
            raise _RefusedError("has two different credentials for one registry host", "keep one")
    if not stated <= found.keys():
        raise _RefusedError(
            "has a registry_host that is not among the hosts of its auths", "correct or remove it"
        )
    return tuple(found.values())


def _from_auth(host: str, fields: object, position: int) -> Credential:
    """One member of `auths`, named by its position since its key is part of the value."""
    try:
        key = normalise_host(host)
    except _RefusedError as refusal:
        raise _RefusedError(f"has a host in auths (number {position}) that {refusal}") from None
    try:
        if not isinstance(fields, dict):
            raise _RefusedError("is not a JSON object")
        return _credential(key, *_login(fields, (_LOGIN,)))
    except _RefusedError as refusal:
        where = f"has a login in auths (number {position}) that {refusal}"
        raise _RefusedError(where, refusal.remedy) from None


def _login(fields: Mapping[str, Any], logins: Iterable[tuple[str, str]]) -> tuple[str, str]:
    for token in _TOKENS:
        if fields.get(token):
            raise _RefusedError(f"holds a token ({token}), not a password", _SHAPES)
    found = {
        (_text(fields, username), _text(fields, password))
        for username, password in logins
        if username in fields and password in fields
    }
    if "auth" in fields:
        found.add(_decoded(_text(fields, "auth")))
    if not found:
        raise _RefusedError("is JSON without a user name and a password", _SHAPES)
    if len(found) > 1:
        raise _RefusedError("holds two logins that differ", "keep one")
    return found.pop()


def _decoded(auth: str) -> tuple[str, str]:
    pair = _unbase64(auth)
    if pair is None:
        raise _RefusedError("holds an auth that is not base64 of UTF-8 text")
    username, colon, password = pair.partition(":")
    if not colon:
        raise _RefusedError("holds an auth without a colon between user name and password")
    return username, password


def _unbase64(auth: str) -> str | None:
    # Line ends are what base64(1) puts in after every 76 characters; docker bears them too.
    packed = auth.replace("\r", "").replace("\n", "")
    try:
        return base64.b64decode(packed, validate=True).decode()
    except ValueError:
        return None


def _text(fields: Mapping[str, Any], key: str) -> str:
    text = fields[key]
    if not isinstance(text, str):
        raise _RefusedError(f"has a {key} that is not a string")
    return text


def _stated_host(text: str) -> str:
    try:
        return normalise_host(text)
    except _RefusedError as refusal:
        raise _RefusedError(
            f"has a registry_host that {refusal}", "give host or host:port"
        ) from None


def _only(stated: set[str]) -> str:
    if not stated:
        raise _RefusedError("does not say for which registry it is", _NAME_A_HOST)
    if len(stated) > 1:
        raise _RefusedError(
            "has a registry_host in the manifest and another in its value", "keep one"
        )
    return next(iter(stated))


def _credential(host: str, username: str, password: str) -> Credential:
    if not username:
        raise _RefusedError("has an empty user name")
    if not password:
        raise _RefusedError("has an empty password, for which docker sends no credentials")
    if ":" in username:
        raise _RefusedError("has a user name with a colon, where docker would end it")
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in username + password):
        raise _RefusedError(
            "holds a control character or invalid Unicode", "remove it (often a last line end)"
        )
    return Credential(host, username, Secret(password))
