"""The grant as the agent reads it: a JWT (RFC 7519), decoded without verifying. Pure.

Tenancy and OpenBao verify it; the agent only wants to say what it is and when it ends.
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from monky_deployd.domain.secret import Secret
from monky_deployd.domain.strict_json import loads
from monky_deployd.errors import GrantError, Reason

LEEWAY = timedelta(seconds=60)
INSTALL = "install the kit's grant with `monky-deployd grant install`"
# So many days before its end a grant is warned of, ever more urgently.
WARNING_DAYS = (14, 7, 3, 1)
_PART = re.compile(r"[A-Za-z0-9_-]+")


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

    A byte order mark and Windows line ends around it do no harm either. Raises GrantError
    (GRANT_MALFORMED), which never quotes the text.
    """
    token = text.removeprefix("\ufeff").strip()
    if not token:
        raise GrantError("the grant is empty", remedy=INSTALL)
    if token.startswith(("{", "[")):
        raise GrantError(
            "this is a JSON document, not a grant", remedy="install only the kit's grant value"
        )
    if len(token.split()) != 1:
        raise GrantError("this is not a JWT: white space stands inside it", remedy=INSTALL)
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
            remedy="reveal a new kit and " + INSTALL,
            reason=Reason.GRANT_EXPIRED,
        )
    # OpenBao refuses a grant that was issued in the future as one that isn't valid yet.
    starts = max(filter(None, (grant.not_before, grant.issued_at)), default=now)
    if now < starts - LEEWAY:
        raise GrantError(
            f"the grant is valid from {starts:%Y-%m-%d %H:%M:%S}Z on, "
            f"and this host's clock says {now.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z",
            remedy="check this host's clock (timedatectl) and tenancy's",
            reason=Reason.GRANT_NOT_YET_VALID,
        )


def last_days(grant: Grant, now: datetime) -> int | None:
    """Within how many days the grant ends, as one of WARNING_DAYS: the least that holds.

    None where it ends later, has no end, or is over, which is an error and no warning.
    """
    if grant.expires_at is None or now > grant.expires_at:
        return None
    left = grant.expires_at - now
    return min((days for days in WARNING_DAYS if left <= timedelta(days=days)), default=None)


def expiry_warning(grant: Grant, now: datetime) -> str:
    """That the grant ends soon, as a sentence; "" as long as that needs nobody's attention."""
    if last_days(grant, now) is None or grant.expires_at is None:
        return ""
    hours = int((grant.expires_at - now) / timedelta(hours=1))
    left = f"{hours // 24} days" if hours >= 48 else f"{hours} hours"
    return (
        f"the grant expires in {left}, on {grant.expires_at:%Y-%m-%d %H:%M}Z; "
        f"reveal a new kit and {INSTALL}"
    )


def _claims(token: str) -> dict[str, Any]:
    """The claims of a signed JWT in compact form (RFC 7515, section 7.1)."""
    parts = token.split(".")
    if len(parts) != 3:
        raise GrantError("this is not a JWT: it needs three parts with dots", remedy=INSTALL)
    if not all(_PART.fullmatch(part) for part in parts):
        raise GrantError("this is not a JWT: its parts are not base64url", remedy=INSTALL)
    try:
        header, claims = (loads(_decode(part)) for part in parts[:2])
    except ValueError:
        raise GrantError(
            "this is not a JWT: its parts are not base64url of JSON", remedy=INSTALL
        ) from None
    if not isinstance(header, dict) or not isinstance(claims, dict):
        raise GrantError("this is not a JWT: its claims are not an object", remedy=INSTALL)
    return claims


def _decode(part: str) -> bytes:
    """Base64url without padding (RFC 7515, section 2). Raises ValueError."""
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def _moment(claims: dict[str, Any], name: str) -> datetime | None:
    value = claims.get(name)
    if value is None:
        return None
    try:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError
        return datetime.fromtimestamp(value, UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        raise GrantError(f"the grant's claim {name} is not a time", remedy=INSTALL) from None


def _text(claims: dict[str, Any], name: str) -> str:
    """A claim for people: printable and short, "" where it is missing or no text."""
    value = claims.get(name)
    return value[:128] if isinstance(value, str) and value.isprintable() else ""
