"""The client of the tenancy service: fetches the manifest, sends reports (PROTOCOL.md).

Every answer that isn't a success becomes one TenancyError whose reason says what to do next.
Tenancy's own words stand in it on one line, shortened, and without the grant.
"""

import asyncio
import json
import re
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from monky_deployd.clients.http import (
    MAX_BODY,
    BodyTooLargeError,
    build_client,
    describe,
    read_limited,
)
from monky_deployd.clients.tenancy_answers import Answer, not_json, refusal
from monky_deployd.domain.config import OverlayCfg, TenancyCfg
from monky_deployd.domain.secret import Secret
from monky_deployd.errors import Reason, TenancyError

_ERROR_BODY_LIMIT = 64 * 1024
# RFC 6750, section 2.1: what may follow "Bearer ".
_BEARER = re.compile(r"[A-Za-z0-9._~+/=-]+")
_ETAG = re.compile(r"[\x21-\x7e]{1,1024}")
_CAN_NEVER_SUCCEED = (400, 413, 422)
# A 304 sooner than this (seconds) was not held, whatever its headers say: to believe it would
# make the agent ask without a pause.
_SHORTEST_HOLD = 1.0


class ReportsRejected(TenancyError):  # noqa: N818 - the name says what happened to them
    """Tenancy will never take these reports; `status` (HTTP) 413 means too much at once."""

    retryable = False

    def __init__(self, cause: str, *, status: int) -> None:
        super().__init__(cause)
        self.status = status


@dataclass(frozen=True)
class ManifestAnswer:
    """What tenancy answered to a fetch.

    `body` is the manifest's JSON, empty unless `changed`. `etag` goes into the next fetch.
    `waited` says that the server held the request as asked, so that the next may follow at
    once. `server_date` is tenancy's clock, None where it didn't say.
    """

    changed: bool
    body: bytes
    etag: str | None
    waited: bool
    server_date: datetime | None


class TenancyClient:
    """Speaks to tenancy for one environment. Use it with `async with`.

    Every call raises TenancyError; its `retry_after` (seconds, at most an hour) is set
    where tenancy named a time.
    """

    def __init__(
        self, cfg: TenancyCfg, overlay: OverlayCfg, environment: str, *, agent_version: str
    ) -> None:
        """Raises ConfigError where the CA file or the proxy mapping is unusable."""
        self._timeout = cfg.request_timeout
        self._environment = environment
        self._client = build_client(
            base_url=cfg.base_url,
            proxy=overlay.proxy,
            ca_file=cfg.ca_file,
            timeout=cfg.request_timeout,
        )
        # Parsed once: httpx would put each path together with the base anew.
        root = f"/v1/environments/{quote(environment, safe='')}"
        self._manifest_url = self._client.base_url.join(f"{root}/manifest")
        self._reports_url = self._client.base_url.join(f"{root}/reports")
        self._client.headers["User-Agent"] = f"monky-deployd/{agent_version}"
        self._client.headers["Accept"] = "application/json"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def fetch_manifest(
        self, token: Secret, *, etag: str | None, wait: float
    ) -> ManifestAnswer:
        """The manifest, if it isn't the one of `etag`; held by the server up to `wait` seconds."""
        asked = int(wait)
        conditional = etag if etag and _ETAG.fullmatch(etag) else None
        headers = {}
        if conditional:
            headers["If-None-Match"] = conditional
        if asked:
            headers["Prefer"] = f"wait={asked}"
        answer = await self._exchange("GET", self._manifest_url, token, headers=headers, wait=asked)
        if answer.status == 304 and conditional:
            return _unchanged(answer, conditional, asked)
        if answer.status != 200:
            raise refusal(answer, self._environment)
        if not answer.is_json:
            raise not_json(answer)
        if not _is_whole_json(answer.body):
            # Its ETag must not be kept: the rest of it would never be asked for.
            raise TenancyError("tenancy's manifest is no JSON document, or only a part of one")
        new_etag = answer.headers.get("etag")
        if conditional and new_etag == conditional:
            return _unchanged(answer, conditional, asked)
        return ManifestAnswer(
            changed=True,
            body=answer.body,
            etag=new_etag,
            waited=asked > 0 and (_says_held(answer) or _took_long(answer, asked)),
            server_date=answer.server_date,
        )

    async def send_reports(self, token: Secret, reports: Sequence[Mapping[str, Any]]) -> None:
        """Hands over `reports` in this order; returns when tenancy has taken them.

        Raises ReportsRejected where sending the same again can never succeed.
        """
        content = json.dumps({"reports": list(reports)}).encode()
        headers = {"Content-Type": "application/json"}
        answer = await self._exchange(
            "POST", self._reports_url, token, headers=headers, content=content
        )
        if 200 <= answer.status < 300:
            if answer.body and not answer.is_json:
                # Somebody else answers, a captive portal perhaps: tenancy does not have them.
                raise not_json(answer)
            return
        if answer.status in _CAN_NEVER_SUCCEED:
            raise ReportsRejected(
                f"tenancy rejects the reports with status {answer.status}{answer.quoted_words}",
                status=answer.status,
            )
        raise refusal(answer, self._environment)

    async def _exchange(
        self,
        method: str,
        url: httpx.URL,
        token: Secret,
        *,
        headers: Mapping[str, str],
        content: bytes | None = None,
        wait: float = 0,
    ) -> Answer:
        if not _BEARER.fullmatch(token.reveal()):
            raise TenancyError(
                "the grant holds characters that no bearer token may have",
                remedy="install it again, exactly as the kit shows it",
                reason=Reason.GRANT_MALFORMED,
            )
        patience = self._timeout + wait
        request = self._client.build_request(
            method,
            url,
            headers=headers,
            content=content,
            timeout=httpx.Timeout(self._timeout, read=patience),
        )
        started = time.monotonic()
        try:
            # httpx bounds each read; a server that trickles bytes is stopped here.
            async with asyncio.timeout(patience + self._timeout):
                response = await self._client.send(request, auth=_Bearer(token), stream=True)
                try:
                    body = await _read_body(response)
                finally:
                    await response.aclose()
        except httpx.HTTPError as error:
            raise _failed_exchange(error) from None
        except TimeoutError:
            raise TenancyError(
                f"tenancy did not finish its answer within {patience + self._timeout:.0f} s",
                reason=Reason.TENANCY_UNREACHABLE,
            ) from None
        return Answer(
            status=response.status_code,
            url=request.url,
            headers=response.headers,
            body=body,
            elapsed=time.monotonic() - started,
            token=token,
        )


def _is_whole_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except RecursionError:
        # Whole or not, whoever parses it says what is wrong with it.
        return True
    except ValueError:
        return False
    return True


class _Bearer(httpx.Auth):
    """Puts the grant into the request only when it is sent, so that no other code holds it."""

    def __init__(self, token: Secret) -> None:
        self._token = token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers["Authorization"] = f"Bearer {self._token.reveal()}"
        yield request


async def _read_body(response: httpx.Response) -> bytes:
    """The body of a 200 whole or not at all; of any other answer, whatever words came."""
    if response.status_code == 200:
        return await read_limited(response, MAX_BODY)
    try:
        return await read_limited(response, _ERROR_BODY_LIMIT)
    except httpx.HTTPError:
        # The status alone already says what happened.
        return b""


def _unchanged(answer: Answer, etag: str, asked: int) -> ManifestAnswer:
    held = _says_held(answer) and answer.elapsed >= _SHORTEST_HOLD
    return ManifestAnswer(
        changed=False,
        body=b"",
        etag=etag,
        waited=asked > 0 and (held or _took_long(answer, asked)),
        server_date=answer.server_date,
    )


def _says_held(answer: Answer) -> bool:
    """Whether the server says that it honours `Prefer: wait` (RFC 7240, section 3)."""
    applied = answer.headers.get("preference-applied", "").lower().split(",")
    return any(token.partition("=")[0].strip() == "wait" for token in applied)


def _took_long(answer: Answer, asked: int) -> bool:
    return answer.elapsed >= asked / 2


def _failed_exchange(error: httpx.HTTPError) -> TenancyError:
    if isinstance(error, BodyTooLargeError | httpx.DecodingError):
        return TenancyError(f"tenancy's answer can't be used: {describe(error)}")
    return TenancyError(
        f"tenancy can't be reached: {describe(error)}",
        remedy="`monky-deployd doctor` tests the way there step by step",
        reason=Reason.TENANCY_UNREACHABLE,
    )
