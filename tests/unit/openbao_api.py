"""An OpenBao of canned answers for the client's tests, and what they expect of its errors."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import respx

from monky_deployd.clients.openbao import OpenBaoClient
from monky_deployd.domain.config import OpenBaoCfg, OverlayCfg
from monky_deployd.domain.secret import Secret
from monky_deployd.errors import OpenBaoError
from tests.contracts.openbao_contract import CANARY, assert_silent

URL = "https://bao.example:8200"
LOGIN = "/v1/auth/jwt-tenancy/login"
REVOKE = "/v1/auth/token/revoke-self"
DATA = "/v1/secret/data/env-a/app"
GRANT = Secret("eyJhbGciOiJFUzI1NiJ9.grant-not-to-be-seen.c2lnbmF0dXJl")
SECRETS = (GRANT.reveal(), "s.token-", CANARY)


class Clock:
    """Monotonic seconds that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def canned_openbao() -> Iterator[respx.MockRouter]:
    """An OpenBao that lets log in, each time with another token, and revokes."""
    with respx.mock(base_url=URL, assert_all_called=False) as router:
        router.post(LOGIN, name="login").mock(side_effect=NumberedTokens())
        router.post(REVOKE, name="revoke").respond(204)
        yield router


class NumberedTokens:
    """Answers logins with the tokens s.token-1, s.token-2, ..."""

    def __init__(self, lease: int = 900) -> None:
        self.count = 0
        self.lease = lease

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.count += 1
        return login_answer(f"s.token-{self.count}", self.lease)


def login_answer(token: Any, lease: Any = 900) -> httpx.Response:
    return httpx.Response(200, json={"auth": {"client_token": token, "lease_duration": lease}})


def errors(status: int, *texts: str, **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"errors": list(texts)}, headers=headers)


def kv_answer(data: Any, **metadata: Any) -> httpx.Response:
    described = {"version": 1, "deletion_time": "", "destroyed": False, **metadata}
    status = 200 if data is not None else 404
    return httpx.Response(status, json={"data": {"data": data, "metadata": described}})


def client(clock: Clock | None = None, **settings: Any) -> OpenBaoClient:
    cfg = OpenBaoCfg(url=URL, **settings)
    return OpenBaoClient(cfg, OverlayCfg(), clock=clock or Clock())


def tokens_of(route: respx.Route) -> list[str]:
    return [call.request.headers["X-Vault-Token"] for call in route.calls]


def answer(route: respx.Route, reply: Any) -> None:
    """Let `route` answer with `reply`: a response, an error, or a function of the request."""
    if isinstance(reply, httpx.Response):
        route.mock(return_value=reply)
    else:
        route.mock(side_effect=reply)


async def read_refused(api: respx.MockRouter, reply: Any, path: str = "env-a/app") -> OpenBaoError:
    """The error that reading `path` ends with when OpenBao's answer to it is `reply`."""
    answer(api.get(f"/v1/secret/data/{path}"), reply)
    async with client() as bao:
        await bao.login(GRANT)
        with pytest.raises(OpenBaoError) as caught:
            await bao.read(path, entry="APP")
    assert str(caught.value).startswith(f"entry 'APP' (secret/{path}): ")
    assert_silent(caught.value, *SECRETS)
    return caught.value


async def login_refused(api: respx.MockRouter, reply: Any) -> OpenBaoError:
    """The error that a login ends with when OpenBao's answer to it is `reply`."""
    answer(api["login"], reply)
    async with client() as bao:
        with pytest.raises(OpenBaoError) as caught:
            await bao.login(GRANT)
    assert str(caught.value).startswith(
        f"login to OpenBao at {URL} (auth/jwt-tenancy, role see_env): "
    )
    assert_silent(caught.value, *SECRETS)
    return caught.value


async def never(request: httpx.Request) -> httpx.Response:
    """An answer that does not come."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")
