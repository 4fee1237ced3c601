"""OpenBao: log in with the grant (JWT auth), read KV version 2 secrets, revoke the token.

What the answers mean stands in `domain.openbao_answers`; here is how they are got.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import httpx

from monky_deployd.clients.http import build_client, describe, read_limited
from monky_deployd.domain.config import OpenBaoCfg, OverlayCfg
from monky_deployd.domain.kv import KvSecret, SecretPlace, secret_place
from monky_deployd.domain.openbao_answers import (
    Answer,
    LoginPlace,
    kv_secret,
    read_answer,
    session,
)
from monky_deployd.domain.secret import Scrubber, Secret
from monky_deployd.errors import MonkyError, OpenBaoError, Reason

# A secret is small; whatever is larger is not one.
_BODY_LIMIT = 4 * 1024 * 1024
# A token is replaced when this part of its lease is over.
_LEASE_USED = 2 / 3
_REVOKE_TIMEOUT = 5.0
# These keep method and body; other redirects would turn a login into something else.
_REDIRECTS = {httpx.codes.TEMPORARY_REDIRECT, httpx.codes.PERMANENT_REDIRECT}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Token:
    value: Secret
    fresh_until: float


class OpenBaoClient:
    """One session with OpenBao. Use as `async with`; on leaving, its tokens are revoked.

    The grant is kept in memory as long as the session lasts. When a token is past two thirds
    of its lease, or a read is refused with 403, the client logs in anew with the grant.
    `clock` gives monotonic seconds.
    """

    def __init__(
        self,
        cfg: OpenBaoCfg,
        overlay: OverlayCfg,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cfg = cfg
        self._clock = clock
        self._base_url = cfg.url.rstrip("/")
        self._login_place = LoginPlace(self._base_url, cfg.mount.strip("/"), cfg.role)
        self._http = build_client(
            base_url=self._base_url,
            proxy=overlay.proxy,
            ca_file=cfg.ca_file,
            timeout=cfg.request_timeout,
            max_body=_BODY_LIMIT,
        )
        self._scrubber = Scrubber()
        self._grant: Secret | None = None
        # Every token that was given out; the last one is in use. A replaced one is not revoked
        # at once: a read beside may still be under way with it.
        self._tokens: list[_Token] = []
        self._login_lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.revoke()
        finally:
            await self._http.aclose()

    async def login(self, grant: Secret) -> None:
        """Get a token for `grant`, and keep the grant for the session's later logins.

        Raises OpenBaoError: GRANT_EXPIRED, GRANT_NOT_YET_VALID, OPENBAO_LOGIN_REFUSED,
        OPENBAO_SEALED, OPENBAO_UNREACHABLE or OPENBAO_ERROR.
        """
        self._grant = grant
        self._scrubber.add([grant])
        async with self._login_lock:
            await self._log_in(grant)

    async def read(self, path: str, *, entry: str) -> KvSecret:
        """The newest version of the secret at `path`, for the manifest's entry `entry`.

        `path` counts from below the configured KV mount: `env-dev-01/app` with the mount
        `secret` is read from `/v1/secret/data/env-dev-01/app`. Call `login` first.

        Raises EntryError for an unusable path, and OpenBaoError that names entry and path:
        SECRET_MISSING, SECRET_DELETED, SECRET_DESTROYED, OPENBAO_FORBIDDEN, or as `login` does.
        """
        place = secret_place(entry=entry, mount=self._cfg.kv_mount, path=path)
        token = await self._usable_token()
        answer = await self._get(place, token)
        if answer.status == httpx.codes.FORBIDDEN:
            # It may be the token that is no longer good: OpenBao says the same 403 to both.
            token = await self._replace(token)
            answer = await self._get(place, token)
        return kv_secret(answer, place)

    async def revoke(self) -> None:
        """Revoke every token of this session and forget the grant, as far as OpenBao lets us.

        Never raises: a token that can't be revoked ends with its lease.
        """
        self._grant = None
        tokens, self._tokens = self._tokens, []
        try:
            async with asyncio.timeout(_REVOKE_TIMEOUT):
                for token in tokens:
                    await self._revoke(token)
        except TimeoutError:
            _log.debug("OpenBao did not revoke the token within %g s", _REVOKE_TIMEOUT)

    async def _revoke(self, token: _Token) -> None:
        try:
            answer = await self._send(
                "POST", "/v1/auth/token/revoke-self", subject="revoking the token", token=token
            )
        except MonkyError as error:
            _log.debug("the token of OpenBao was not revoked: %s", error)
            return
        if answer.status >= httpx.codes.BAD_REQUEST:
            _log.debug(
                "the token of OpenBao was not revoked: HTTP %d %s", answer.status, answer.words
            )

    async def _usable_token(self) -> _Token:
        if not self._tokens:
            raise RuntimeError("log in before reading")
        token = self._tokens[-1]
        return token if self._clock() < token.fresh_until else await self._replace(token)

    async def _replace(self, token: _Token) -> _Token:
        """A token other than `token`; of several callers at once, only the first logs in."""
        async with self._login_lock:
            if self._tokens[-1] is token and self._grant is not None:
                await self._log_in(self._grant)
            return self._tokens[-1]

    async def _log_in(self, grant: Secret) -> None:
        started = self._clock()
        answer = await self._send(
            "POST",
            f"/v1/auth/{self._login_place.mount}/login",
            subject=str(self._login_place),
            body={"role": self._cfg.role, "jwt": grant.reveal()},
        )
        begun = session(answer, self._login_place, now=datetime.now(UTC))
        self._scrubber.add([begun.token])
        fresh_until = started + begun.lease * _LEASE_USED if begun.lease else float("inf")
        self._tokens.append(_Token(begun.token, fresh_until))

    async def _get(self, place: SecretPlace, token: _Token) -> Answer:
        return await self._send("GET", place.api_path, subject=str(place), token=token)

    async def _send(
        self,
        method: str,
        path: str,
        *,
        subject: str,
        token: _Token | None = None,
        body: dict[str, str] | None = None,
    ) -> Answer:
        """One call, with at most one redirect. OpenBaoError if no answer comes."""
        request = self._request(method, path, token=token, body=body)
        try:
            response, content = await self._exchange(request)
            if response.status_code in _REDIRECTS:
                target = self._redirect_target(request, response, subject)
                request = self._request(method, target, token=token, body=body)
                response, content = await self._exchange(request)
        except httpx.HTTPError as error:
            raise OpenBaoError(
                f"{subject}: OpenBao can't be reached: {describe(error)}",
                remedy="check openbao.url, and that this host's ziti identity may dial OpenBao "
                "(monky-deployd doctor)",
                reason=Reason.OPENBAO_UNREACHABLE,
            ) from None
        return read_answer(response.status_code, response.headers, content, scrubber=self._scrubber)

    def _request(
        self,
        method: str,
        url: str | httpx.URL,
        *,
        token: _Token | None,
        body: dict[str, str] | None,
    ) -> httpx.Request:
        headers = {}
        if token is not None:
            headers["X-Vault-Token"] = token.value.reveal()
        if self._cfg.namespace:
            headers["X-Vault-Namespace"] = self._cfg.namespace
        return self._http.build_request(method, url, headers=headers, json=body)

    async def _exchange(self, request: httpx.Request) -> tuple[httpx.Response, bytes]:
        limit = 2 * self._cfg.request_timeout
        try:
            # httpx bounds each read; a server that trickles bytes is stopped here.
            async with asyncio.timeout(limit):
                response = await self._http.send(request, stream=True)
                try:
                    return response, await read_limited(response, _BODY_LIMIT)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise httpx.ReadTimeout("the answer did not end in time", request=request) from None

    def _redirect_target(
        self, request: httpx.Request, response: httpx.Response, subject: str
    ) -> httpx.URL:
        """Where a redirect leads to, which must be the same origin.

        A standby sends its callers to the active node. The agent does not go along: grant and
        token are for the configured host, whose name an answer must not change.
        """
        try:
            target = request.url.join(response.headers.get("Location", ""))
        except httpx.InvalidURL:
            target = httpx.URL()
        if _origin(target) != _origin(request.url):
            raise OpenBaoError(
                f"{subject}: OpenBao at {self._base_url} redirects to "
                f"{target.scheme}://{ascii(target.host)[1:-1]}, where grant and token must not go",
                remedy="set openbao.url to the active node or to an address that follows it; "
                "a standby should forward requests, not redirect them",
            )
        return target


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    port = url.port or {"https": 443, "http": 80}.get(url.scheme)
    return url.scheme, url.host, port
