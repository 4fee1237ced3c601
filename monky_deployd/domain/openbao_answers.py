"""What OpenBao's answers mean: a session, a secret, or an error in plain words.

The wire form is that of OpenBao's HTTP API (JWT auth method, KV version 2); the texts that are
told apart here are those of OpenBao 2.7.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NoReturn

from monky_deployd.domain.http_headers import http_date, retry_after
from monky_deployd.domain.kv import KvSecret, SecretPlace
from monky_deployd.domain.secret import Scrubber, Secret
from monky_deployd.errors import OpenBaoError, Reason

_OK = 200
_BAD_REQUEST = 400
_FORBIDDEN = 403
_NOT_FOUND = 404
_TOO_MANY_REQUESTS = 429
_UNAVAILABLE = 503

_WORDS_LIMIT = 400
_CLOCK_TOLERANCE = 5.0


@dataclass(frozen=True)
class Answer:
    """One answer. `document` is None if the body is no JSON object; it may hold secrets.

    `words` are the server's own, on one line, with known secrets masked. `retry_after` is in
    seconds.
    """

    status: int
    document: Mapping[str, Any] | None = field(repr=False)
    words: str
    server_time: datetime | None
    retry_after: float | None


@dataclass(frozen=True)
class Session:
    """A login's result. `lease` is the token's lifetime in seconds, 0 if it has no end."""

    token: Secret
    lease: float


@dataclass(frozen=True)
class LoginPlace:
    """Where a login goes to, for messages."""

    url: str
    mount: str
    role: str

    def __str__(self) -> str:
        return f"login to OpenBao at {self.url} (auth/{self.mount}, role {self.role})"


@dataclass(frozen=True)
class _Refusal:
    """A text in a refused login, and what it means."""

    needle: str
    meaning: str
    remedy: str
    reason: Reason = Reason.OPENBAO_LOGIN_REFUSED


_NEW_GRANT = "reveal a new kit in tenancy and install its grant (monky-deployd grant install)"
_CLOCKS = "compare the clocks of this host, of OpenBao and of tenancy (timedatectl)"
_ROLE = "compare the grant's claims with the role's (bao read auth/{mount}/role/{role})"
_KEYS = "compare the mount's keys with tenancy's signing key (bao read auth/{mount}/config)"
_NO_ROLE = "correct openbao.role, or create the role (bao write auth/{mount}/role/{role} ...)"

# The first match counts.
_LOGIN_REFUSALS = (
    _Refusal("token is expired", "the grant has expired", _NEW_GRANT, Reason.GRANT_EXPIRED),
    _Refusal(
        "token not yet valid", "the grant is not valid yet", _CLOCKS, Reason.GRANT_NOT_YET_VALID
    ),
    _Refusal(
        "issued in the future", "the grant is not valid yet", _CLOCKS, Reason.GRANT_NOT_YET_VALID
    ),
    _Refusal("(aud) claim", "the grant is meant for another audience", _ROLE),
    _Refusal("(iss) claim", "the grant comes from another issuer", _ROLE),
    _Refusal("(sub) claim", "the grant has another subject", _ROLE),
    _Refusal("must have three parts", "the grant is not a JWT", _NEW_GRANT),
    _Refusal(
        "verifying token signature", "no key that OpenBao trusts fits the grant's signature", _KEYS
    ),
    _Refusal("error validating claims", "the grant lacks a claim that the role asks for", _ROLE),
    _Refusal("not found in token", "the grant lacks a claim that the role asks for", _ROLE),
    _Refusal("could not be found", "OpenBao does not know the role", _NO_ROLE),
    _Refusal("missing token", "the grant is empty", _NEW_GRANT),
)
_OTHER_REFUSAL = _Refusal("", "the grant is not accepted", _ROLE)
# An auth path that does not exist is answered with 403, not with 404.
_NO_AUTH_MOUNT = _Refusal(
    "",
    "no auth method is mounted there",
    "correct openbao.mount or openbao.namespace, or enable it (bao auth enable -path={mount} jwt)",
)
_ABOUT_TIME = {Reason.GRANT_EXPIRED, Reason.GRANT_NOT_YET_VALID}


def read_answer(
    status: int, headers: Mapping[str, str], body: bytes, *, scrubber: Scrubber
) -> Answer:
    """The answer that these parts of an HTTP response are. `headers` must ignore case."""
    document = _json_object(body)
    server_time = http_date(headers.get("Date"))
    return Answer(
        status=status,
        document=document,
        words=_own_words(document, scrubber),
        server_time=server_time,
        retry_after=retry_after(headers.get("Retry-After"), server_time),
    )


def session(answer: Answer, place: LoginPlace, *, now: datetime) -> Session:
    """The session that a login began. `now` is this host's clock at the answer's arrival.

    Raises OpenBaoError, each cause in plain words and OpenBao's own.
    """
    if answer.status != _OK or answer.document is None:
        raise _login_error(answer, place, now)
    auth = _mapping(answer.document.get("auth"))
    token, lease = auth.get("client_token"), auth.get("lease_duration")
    # A token with other characters could not be sent as a header.
    if not (isinstance(token, str) and token and token.isascii() and token.isprintable()):
        raise OpenBaoError(
            f"{place}: the answer holds no usable token",
            remedy="the role must give out plain tokens, without response wrapping or MFA",
            reason=Reason.OPENBAO_LOGIN_REFUSED,
        )
    return Session(Secret(token), float(lease) if isinstance(lease, int) else 0.0)


def kv_secret(answer: Answer, place: SecretPlace) -> KvSecret:
    """The secret that a read of `place` brought. Raises OpenBaoError, each cause in its words."""
    if answer.document is None:
        raise _unexpected(answer, str(place))
    if answer.status == _OK:
        return _present_secret(answer.document, place)
    if answer.status == _NOT_FOUND:
        raise _not_found(answer, answer.document, place)
    if answer.status == _FORBIDDEN:
        raise OpenBaoError(
            f"{place}: OpenBao refuses to show this secret; it says: {answer.words}",
            remedy=_path_hint(place)
            or "an environment may read below its own prefix only: check the entry's path, "
            "openbao.kv_mount and the role's policy",
            reason=Reason.OPENBAO_FORBIDDEN,
        )
    raise _unexpected(answer, str(place))


def _present_secret(document: Mapping[str, Any], place: SecretPlace) -> KvSecret:
    data = _mapping(document.get("data"))
    values, version = data.get("data"), _mapping(data.get("metadata")).get("version")
    if isinstance(values, Mapping) and isinstance(version, int):
        return KvSecret(values, version)
    raise OpenBaoError(
        f"{place}: the answer is not in the form of KV version 2",
        remedy=f"openbao.kv_mount must be a KV version 2 mount; is {place.mount} of version 1?",
    )


def _not_found(answer: Answer, document: Mapping[str, Any], place: SecretPlace) -> OpenBaoError:
    """What a 404 is about: a lost version, a wrong mount, or a secret that isn't there."""
    metadata = _mapping(_mapping(document.get("data")).get("metadata"))
    if metadata.get("destroyed") is True or metadata.get("deletion_time"):
        return _lost_version(metadata, place)
    if "no handler for route" in answer.words:
        return OpenBaoError(
            f"{place}: nothing is mounted at {place.mount}; OpenBao says: {answer.words}",
            remedy="correct openbao.kv_mount",
        )
    if document.get("warnings"):
        return OpenBaoError(
            f"{place}: {place.mount} is not the root of a KV version 2 mount; "
            f"OpenBao says: {answer.words}",
            remedy="correct openbao.kv_mount; what comes after the mount belongs in the path",
        )
    if document.get("errors") == []:
        return OpenBaoError(
            f"{place}: OpenBao has no such secret: it was never written, or removed with all its "
            "versions",
            remedy=_path_hint(place)
            or f"write it (bao kv put {place.shown_path} ...) or correct the entry's path; "
            "openbao.kv_mount must be a KV version 2 mount",
            reason=Reason.SECRET_MISSING,
        )
    return _unexpected(answer, str(place))


def _lost_version(metadata: Mapping[str, Any], place: SecretPlace) -> OpenBaoError:
    version = _plain(metadata.get("version"))
    if metadata.get("destroyed") is True:
        return OpenBaoError(
            f"{place}: the newest version, {version}, is destroyed for good",
            remedy=f"write the secret anew (bao kv put {place.shown_path} ...)",
            reason=Reason.SECRET_DESTROYED,
        )
    return OpenBaoError(
        f"{place}: the newest version, {version}, was deleted at "
        f"{_plain(metadata.get('deletion_time'))}",
        remedy=f"bring it back (bao kv undelete -versions={version} {place.shown_path}) "
        "or write the secret anew",
        reason=Reason.SECRET_DELETED,
    )


def _path_hint(place: SecretPlace) -> str:
    """A remedy for a path that repeats what the agent itself puts before it."""
    if place.path.startswith((f"{place.mount}/", "data/")):
        return f"the entry's path counts from below {place.mount}: leave out the mount and data/"
    return ""


def _login_error(answer: Answer, place: LoginPlace, now: datetime) -> OpenBaoError:
    refusal = _refusal(answer)
    if refusal is None:
        return _unexpected(answer, str(place))
    clock = _clock_note(answer.server_time, now) if refusal.reason in _ABOUT_TIME else ""
    return OpenBaoError(
        f"{place}: {refusal.meaning}{clock}; OpenBao says: {answer.words}",
        remedy=refusal.remedy.format(mount=place.mount, role=place.role),
        reason=refusal.reason,
    )


def _refusal(answer: Answer) -> _Refusal | None:
    if answer.document is None:
        return None
    if answer.status == _FORBIDDEN:
        return _NO_AUTH_MOUNT
    if answer.status != _BAD_REQUEST:
        return None
    return next((item for item in _LOGIN_REFUSALS if item.needle in answer.words), _OTHER_REFUSAL)


def _clock_note(server_time: datetime | None, now: datetime) -> str:
    if server_time is None:
        return ""
    ahead = (now - server_time).total_seconds()
    if abs(ahead) <= _CLOCK_TOLERANCE:
        return " (this host's clock agrees with OpenBao's)"
    direction = "ahead of" if ahead > 0 else "behind"
    return f" (this host's clock is {abs(ahead):.0f} s {direction} OpenBao's)"


def _unexpected(answer: Answer, subject: str) -> OpenBaoError:
    """The error for an answer that is about neither the grant nor the secret."""
    meaning, remedy, reason = _trouble(answer)
    words = f"; it says: {answer.words}" if answer.words else ""
    return OpenBaoError(
        f"{subject}: {meaning} (HTTP {answer.status}){words}",
        remedy=remedy,
        reason=reason,
        retry_after=answer.retry_after,
    )


def _trouble(answer: Answer) -> tuple[str, str, Reason]:
    if answer.status == _UNAVAILABLE and "sealed" in answer.words:
        remedy = "unseal it (bao operator unseal), or initialise it if it is new"
        return "OpenBao is sealed or not initialised", remedy, Reason.OPENBAO_SEALED
    if answer.status == _TOO_MANY_REQUESTS:
        return "OpenBao asks for fewer requests", "", Reason.OPENBAO_ERROR
    if answer.document is None:
        remedy = "check openbao.url; does something else answer there, such as a proxy?"
        return "the answer is not OpenBao's JSON", remedy, Reason.OPENBAO_ERROR
    if answer.status == _NOT_FOUND and "namespace not found" in answer.words:
        return "OpenBao has no such namespace", "correct openbao.namespace", Reason.OPENBAO_ERROR
    if answer.status >= 500:
        return "OpenBao fails", "see OpenBao's own log", Reason.OPENBAO_ERROR
    return "OpenBao gives an unexpected answer", "", Reason.OPENBAO_ERROR


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _own_words(document: Mapping[str, Any] | None, scrubber: Scrubber) -> str:
    if document is None:
        return ""
    said = document.get("errors") or document.get("warnings") or []
    text = "; ".join(str(item) for item in said) if isinstance(said, list) else ""
    # Scrubbed first: a shortened or re-spaced secret would not be recognised.
    words = " ".join(scrubber.scrub(text).split())
    clean = "".join(char if char.isprintable() else "?" for char in words)
    return clean if len(clean) <= _WORDS_LIMIT else clean[: _WORDS_LIMIT - 3] + "..."


def _plain(value: Any) -> str:
    """A version or a time out of an answer: short, and fit for a message."""
    return ascii(str(value))[1:-1][:40]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
