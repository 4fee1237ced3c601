"""Grants as tenancy issues them: a key pair, and JWTs (RFC 7519) signed with it.

The one place that knows a grant's claims. The agent reads `exp`, `nbf`, `iat`, `jti` and
`environment` without checking the signature; tenancy and OpenBao check it.
"""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

ISSUER = "monky-tenancy"
AUDIENCE = "openbao"
ENVIRONMENT_CLAIM = "environment"

_ALGORITHM = "ES256"
_DEFAULT_LIFETIME = timedelta(days=30)


class GrantIssuer:
    """Issues grants with a key pair of its own, made anew for each issuer."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())

    @property
    def public_key_pem(self) -> str:
        """The public key for OpenBao's `jwt_validation_pubkeys` (PEM, SubjectPublicKeyInfo)."""
        return (
            self._key.public_key()
            .public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            .decode()
        )

    def issue(
        self,
        environment: str,
        *,
        jti: str | None = None,
        lifetime: timedelta = _DEFAULT_LIFETIME,
        not_before: datetime | None = None,
        audience: str = AUDIENCE,
    ) -> str:
        """A grant for `environment`, valid from `not_before` (default: now) for `lifetime`.

        A negative `lifetime` makes one that has already expired.
        """
        now = datetime.now(UTC)
        start = not_before or min(now, now + lifetime)
        claims = {
            "iss": ISSUER,
            "aud": audience,
            "sub": environment,
            ENVIRONMENT_CLAIM: environment,
            "jti": jti or uuid.uuid4().hex,
            "iat": now,
            "nbf": start,
            "exp": (not_before or now) + lifetime,
        }
        return jwt.encode(claims, self._key, algorithm=_ALGORITHM)

    def verify(self, grant: str) -> dict[str, Any]:
        """The claims of a grant of this issuer's that is valid now.

        Raises jwt.ExpiredSignatureError, jwt.ImmatureSignatureError, or jwt.InvalidTokenError.
        """
        return jwt.decode(
            grant,
            self._key.public_key(),
            algorithms=[_ALGORITHM],
            audience=AUDIENCE,
            issuer=ISSUER,
            options={"require": ["exp", "nbf", "iat", "jti", ENVIRONMENT_CLAIM]},
        )
