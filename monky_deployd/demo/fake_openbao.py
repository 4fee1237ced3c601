"""A small stand-in for OpenBao, for tests that must be fast: JWT login and KV version 2 reads.

Like OpenBao it keeps no replay state: it checks a grant's signature, audience and time, so a
grant that tenancy has superseded still logs in. The same contract tests run against this and
against the real server.
"""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import jwt
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from monky_deployd.demo.grants import AUDIENCE, ENVIRONMENT_CLAIM
from monky_deployd.demo.serving import serve

MOUNT = "jwt-tenancy"
ROLE = "see_env"
KV_MOUNT = "secret"

_LEEWAY = timedelta(seconds=60)
_TOKEN_TTL = 900
_SIGNATURE_REFUSED = (
    "error verifying token signature: no known key successfully validated the token signature"
)
# The first class that fits counts: some of these are subclasses of later ones.
_REFUSALS: tuple[tuple[type[jwt.InvalidTokenError], str], ...] = (
    (jwt.ExpiredSignatureError, "invalid expiration time (exp) claim: token is expired"),
    (jwt.ImmatureSignatureError, "invalid not before (nbf) claim: token not yet valid"),
    (
        jwt.InvalidAudienceError,
        "invalid audience (aud) claim: audience claim does not match any expected audience",
    ),
    (jwt.InvalidSignatureError, _SIGNATURE_REFUSED),
    (
        jwt.DecodeError,
        "error verifying token signature: go-jose/go-jose: compact JWS format must have three "
        "parts",
    ),
    (jwt.InvalidTokenError, _SIGNATURE_REFUSED),
)


@dataclass
class _Version:
    data: Mapping[str, Any]
    deletion_time: str = ""
    destroyed: bool = False


class FakeBao:
    """The stand-in: an ASGI `app`, reachable at `url` inside of `serving`."""

    def __init__(self, public_key_pem: str) -> None:
        """It takes grants that are signed with the key that `public_key_pem` belongs to."""
        self.url = ""
        self._key = public_key_pem
        self._secrets: dict[str, list[_Version]] = {}
        self._tokens: dict[str, str] = {}
        self._sealed = False
        self.app = Starlette(
            routes=[
                Route(f"/v1/auth/{MOUNT}/login", self._login, methods=["POST"]),
                Route("/v1/auth/token/revoke-self", self._revoke_self, methods=["POST"]),
                Route(f"/v1/{KV_MOUNT}/data/{{path:path}}", self._read, methods=["GET"]),
                Route("/{path:path}", self._elsewhere, methods=["GET", "POST"]),
            ]
        )

    @classmethod
    @contextmanager
    def serving(cls, public_key_pem: str) -> Iterator[Self]:
        """A stand-in that serves on a free port of 127.0.0.1 as long as the block lasts."""
        fake = cls(public_key_pem)
        with serve(fake.app) as served:
            fake.url = served.url
            yield fake

    def put(self, path: str, data: Mapping[str, Any]) -> int:
        """Write a new version of the secret at `path` below the KV mount; its number."""
        versions = self._secrets.setdefault(path, [])
        versions.append(_Version(dict(data)))
        return len(versions)

    def delete(self, path: str) -> None:
        """Delete the newest version so that it can be brought back."""
        self._secrets[path][-1].deletion_time = datetime.now(UTC).isoformat()

    def undelete(self, path: str, version: int) -> None:
        """Bring a deleted version back."""
        self._secrets[path][version - 1].deletion_time = ""

    def destroy(self, path: str, version: int) -> None:
        """Destroy a version for good."""
        self._secrets[path][version - 1] = _Version({}, destroyed=True)

    def seal(self) -> None:
        """Answer every call with 503 until `unseal`."""
        self._sealed = True

    def unseal(self) -> None:
        """Serve again."""
        self._sealed = False

    def revoke_tokens(self, environment: str) -> None:
        """Forget the tokens that `environment` logged in for, as if their leases had ended."""
        self._tokens = {
            token: owner for token, owner in self._tokens.items() if owner != environment
        }

    def live_tokens(self, environment: str) -> int:
        """How many tokens that `environment` logged in for are still good."""
        return list(self._tokens.values()).count(environment)

    async def _login(self, request: Request) -> Response:
        if self._sealed:
            return _sealed()
        body = await request.json()
        if body.get("role") != ROLE:
            return _error(400, f'role "{body.get("role")}" could not be found')
        if not body.get("jwt"):
            return _error(400, "missing token")
        try:
            claims = jwt.decode(
                body["jwt"], self._key, algorithms=["ES256"], audience=AUDIENCE, leeway=_LEEWAY
            )
        except jwt.InvalidTokenError as error:
            return _error(400, f"error validating token: {_refusal(error)}")
        if not claims.get(ENVIRONMENT_CLAIM):
            return _error(400, f'error validating claims: claim "{ENVIRONMENT_CLAIM}" is missing')
        token = f"s.{secrets.token_urlsafe(18)}"
        self._tokens[token] = claims[ENVIRONMENT_CLAIM]
        return JSONResponse(
            {"auth": {"client_token": token, "lease_duration": _TOKEN_TTL, "renewable": True}}
        )

    async def _revoke_self(self, request: Request) -> Response:
        if self._sealed:
            return _sealed()
        if self._tokens.pop(_token(request), None) is None:
            return _error(403, "permission denied")
        return Response(status_code=204)

    async def _read(self, request: Request) -> Response:
        if self._sealed:
            return _sealed()
        path: str = request.path_params["path"]
        environment = self._tokens.get(_token(request))
        if environment is None:
            return _error(403, "permission denied")
        if not path.startswith(f"{environment}/"):
            return _error(403, "1 error occurred:\n\t* permission denied\n\n")
        versions = self._secrets.get(path)
        return _newest(versions) if versions else _error(404)

    async def _elsewhere(self, request: Request) -> Response:
        return _sealed() if self._sealed else _error(403, "permission denied")


def _newest(versions: list[_Version]) -> Response:
    newest = versions[-1]
    gone = newest.destroyed or bool(newest.deletion_time)
    metadata = {
        "version": len(versions),
        "deletion_time": newest.deletion_time,
        "destroyed": newest.destroyed,
    }
    document = {"data": {"data": None if gone else newest.data, "metadata": metadata}}
    return JSONResponse(document, status_code=404 if gone else 200)


def _refusal(error: jwt.InvalidTokenError) -> str:
    return next(text for kind, text in _REFUSALS if isinstance(error, kind))


def _token(request: Request) -> str:
    return request.headers.get("X-Vault-Token", "")


def _error(status: int, *errors: str) -> Response:
    return JSONResponse({"errors": list(errors)}, status_code=status)


def _sealed() -> Response:
    return _error(503, "Vault is sealed")
