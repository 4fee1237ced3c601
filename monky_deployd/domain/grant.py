"""The grant as the agent reads it: a JWT (RFC 7519), decoded without verifying. Pure.

Tenancy and OpenBao verify it; the agent only wants to say what it is and when it ends.
"""

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from monky_deployd.domain.secret import Secret
from monky_deployd.errors import GrantError, Reason

LEEWAY = timedelta(seconds=60)
_INSTALL = "install it with `monky-deployd grant install`"


@dataclass(frozen=True)
class Grant:
    """A grant and its claims; None or "" where a claim is missing. `identity` is for the log."""

    token: Secret
    expires_at: datetime | None
    not_before: datetime | None
    issued_at: datetime | None
    jti: str
    environment: str
    identity: str


def parse_grant(text: str) -> Grant:
    """The grant in `text`, white space around it dropped.

    Raises GrantError (GRANT_MALFORMED), which never quotes the text.
    """
    token = text.removeprefix("\ufeff").strip()
    if not token:
        raise GrantError("the grant is empty", remedy=_INSTALL)
    if token.startswith("{"):
        raise GrantError(
            "this is a JSON document, not a grant", remedy="install only the kit's grant value"
        )
    claims = _claims(token)
    jti = _text(claims, "jti")
    return Grant(
        token=Secret(token),
        expires_at=_moment(claims, "exp"),
        not_before=_moment(claims, "nbf"),
        issued_at=_moment(claims, "iat"),
        jti=jti,
        environment=_text(claims, "environment") or _text(claims, "sub"),
        identity=jti or hashlib.sha256(token.encode()).hexdigest()[:12],
    )


def check_times(grant: Grant, now: datetime) -> None:
    """Raise GrantError (GRANT_EXPIRED, GRANT_NOT_YET_VALID) by this host's clock, 60 s lenient."""
    if grant.expires_at is not None and now > grant.expires_at + LEEWAY:
        raise GrantError(
            f"the grant expired on {grant.expires_at:%Y-%m-%d %H:%M}Z",
            remedy="reveal a new kit and " + _INSTALL,
            reason=Reason.GRANT_EXPIRED,
        )
    if grant.not_before is not None and now < grant.not_before - LEEWAY:
        raise GrantError(
            f"the grant is valid from {grant.not_before:%Y-%m-%d %H:%M}Z on, "
            f"and this host's clock says {now:%Y-%m-%d %H:%M}Z",
            remedy="check this host's clock",
            reason=Reason.GRANT_NOT_YET_VALID,
        )


def _claims(token: str) -> dict[str, Any]:
    parts = token.split(".")
    if len(parts) != 3 or not token.isascii():
        raise GrantError("this is not a JWT: it needs three parts with dots", remedy=_INSTALL)
    try:
        claims = json.loads(_decode(parts[1]))
        json.loads(_decode(parts[0]))
    except (ValueError, RecursionError):
        raise GrantError(
            "this is not a JWT: its parts are not base64url of JSON", remedy=_INSTALL
        ) from None
    if not isinstance(claims, dict):
        raise GrantError("this is not a JWT: its claims are not an object", remedy=_INSTALL)
    return claims


def _decode(part: str) -> bytes:
    try:
        return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError("not base64url") from error


def _moment(claims: dict[str, Any], name: str) -> datetime | None:
    value = claims.get(name)
    if value is None:
        return None
    try:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError
        return datetime.fromtimestamp(value, UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        raise GrantError(f"the grant's claim {name} is not a time", remedy=_INSTALL) from None


def _text(claims: dict[str, Any], name: str) -> str:
    """A claim for people: printable and short, "" where it is missing or no text."""
    value = claims.get(name)
    return value[:128] if isinstance(value, str) and value.isprintable() else ""
