"""The OpenBao client: what every answer that may come means."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
import respx

from monky_deployd.errors import Reason
from tests.contracts.openbao_contract import CANARY
from tests.unit.openbao_api import (
    DATA,
    GRANT,
    URL,
    canned_openbao,
    client,
    errors,
    kv_answer,
    login_answer,
    login_refused,
    read_refused,
    tokens_of,
)


@pytest.fixture
def api() -> Iterator[respx.MockRouter]:
    with canned_openbao() as router:
        yield router


async def test_login_sends_role_and_grant_and_reads_send_the_token(api: respx.MockRouter) -> None:
    route = api.get(DATA).mock(return_value=kv_answer({"value": CANARY}, version=7))
    async with client(namespace="team/a") as bao:
        await bao.login(GRANT)
        secret = await bao.read("env-a/app", entry="APP")
    login = api["login"].calls.last.request
    assert json.loads(login.content) == {"role": "see_env", "jwt": GRANT.reveal()}
    assert "X-Vault-Token" not in login.headers
    assert tokens_of(route) == ["s.token-1"]
    assert {call.request.headers["X-Vault-Namespace"] for call in api.calls} == {"team/a"}
    assert (secret.version, secret.data["value"]) == (7, CANARY)
    assert CANARY not in repr(secret)


# CASES 40: the texts are the server's.
@pytest.mark.parametrize(
    ("text", "reason", "meaning"),
    [
        (
            "error validating token: invalid expiration time (exp) claim: token is expired",
            Reason.GRANT_EXPIRED,
            "the grant has expired",
        ),
        (
            "error validating token: invalid not before (nbf) claim: token not yet valid",
            Reason.GRANT_NOT_YET_VALID,
            "the grant is not valid yet",
        ),
        (
            "error validating token: invalid issued at (iat) claim: token issued in the future",
            Reason.GRANT_NOT_YET_VALID,
            "the grant is not valid yet",
        ),
        (
            "error validating token: invalid audience (aud) claim: audience claim does not match "
            "any expected audience",
            Reason.OPENBAO_LOGIN_REFUSED,
            "meant for another audience",
        ),
        (
            "error validating token: invalid issuer (iss) claim",
            Reason.OPENBAO_LOGIN_REFUSED,
            "comes from another issuer",
        ),
        (
            "error validating token: invalid subject (sub) claim",
            Reason.OPENBAO_LOGIN_REFUSED,
            "has another subject",
        ),
        (
            "error validating token: error verifying token signature: no known key successfully "
            "validated the token signature",
            Reason.OPENBAO_LOGIN_REFUSED,
            "no key that OpenBao trusts fits the grant's signature",
        ),
        (
            'role "see_env" could not be found',
            Reason.OPENBAO_LOGIN_REFUSED,
            "does not know the role",
        ),
        ("missing token", Reason.OPENBAO_LOGIN_REFUSED, "the grant is empty"),
        ('claim "sub" not found in token', Reason.OPENBAO_LOGIN_REFUSED, "lacks a claim"),
        (
            'error validating claims: claim "proj" is missing',
            Reason.OPENBAO_LOGIN_REFUSED,
            "lacks a claim",
        ),
        ("something quite new", Reason.OPENBAO_LOGIN_REFUSED, "the grant is not accepted"),
    ],
)
async def test_refused_login_is_explained_in_plain_words_and_in_openbaos(
    api: respx.MockRouter, text: str, reason: Reason, meaning: str
) -> None:
    error = await login_refused(api, errors(400, text))
    assert error.reason == reason
    assert meaning in error.cause
    assert error.cause.endswith(f"OpenBao says: {text}")
    assert error.remedy


@pytest.mark.parametrize(
    ("offset", "note"),
    [
        (timedelta(minutes=-5), "this host's clock is 300 s ahead of OpenBao's"),
        (timedelta(minutes=5), "this host's clock is 300 s behind OpenBao's"),
        (timedelta(0), "this host's clock agrees with OpenBao's"),
    ],
)
@pytest.mark.parametrize("text", ["token is expired", "token not yet valid"])
async def test_refusal_for_time_says_how_far_the_clock_is_off(
    api: respx.MockRouter,
    monkeypatch: pytest.MonkeyPatch,
    offset: timedelta,
    note: str,
    text: str,
) -> None:
    class Frozen(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "Frozen":
            return cls(2026, 12, 1, 12, 0, 0, tzinfo=tz)

    monkeypatch.setattr("monky_deployd.clients.openbao.datetime", Frozen)
    date = format_datetime(Frozen.now(UTC) + offset, usegmt=True)
    assert f"({note})" in (await login_refused(api, errors(400, text, Date=date))).cause


@pytest.mark.parametrize("headers", [{}, {"Date": "yesterday, or so"}])
async def test_refusal_for_time_without_a_server_clock_says_nothing_of_clocks(
    api: respx.MockRouter, headers: dict[str, str]
) -> None:
    error = await login_refused(api, errors(400, "token is expired", **headers))
    assert "clock" not in error.cause


async def test_refusal_for_another_cause_says_nothing_of_clocks(api: respx.MockRouter) -> None:
    now = format_datetime(datetime.now(UTC), usegmt=True)
    assert "clock" not in (await login_refused(api, errors(400, "(aud) claim", Date=now))).cause


async def test_auth_path_that_is_not_mounted_is_told_from_a_refused_grant(
    api: respx.MockRouter,
) -> None:
    error = await login_refused(api, errors(403, "permission denied"))
    assert error.reason == Reason.OPENBAO_LOGIN_REFUSED
    assert "no auth method is mounted there" in error.cause
    assert "openbao.mount" in error.remedy


@pytest.mark.parametrize(
    "reply",
    [
        httpx.Response(200, json={"auth": None, "wrap_info": {"token": "s.token-wrapped"}}),
        login_answer(""),
        login_answer(7),
        login_answer("s.token-\r\nX-Other: x"),
    ],
)
async def test_login_answer_without_a_usable_token_is_refused(
    api: respx.MockRouter, reply: httpx.Response
) -> None:
    error = await login_refused(api, reply)
    assert error.reason == Reason.OPENBAO_LOGIN_REFUSED
    assert "no usable token" in error.cause


# CASES 37: three different answers to a read that finds nothing.
async def test_soft_deleted_secret_says_when_and_how_to_bring_it_back(
    api: respx.MockRouter,
) -> None:
    error = await read_refused(
        api, kv_answer(None, version=4, deletion_time="2026-11-30T10:00:00.5Z")
    )
    assert error.reason == Reason.SECRET_DELETED
    assert "version, 4, was deleted at 2026-11-30T10:00:00.5Z" in error.cause
    assert "bao kv undelete -versions=4 secret/env-a/app" in error.remedy


async def test_destroyed_secret_is_not_called_deleted(api: respx.MockRouter) -> None:
    error = await read_refused(api, kv_answer(None, version=4, destroyed=True))
    assert error.reason == Reason.SECRET_DESTROYED
    assert "version, 4, is destroyed for good" in error.cause


async def test_secret_that_never_was_is_missing(api: respx.MockRouter) -> None:
    error = await read_refused(api, errors(404))
    assert error.reason == Reason.SECRET_MISSING
    assert "no such secret" in error.cause


# CASES 39: mounts, versions, namespaces.
@pytest.mark.parametrize(
    ("reply", "reason", "phrase"),
    [
        (
            errors(404, 'no handler for route "secret/data/x". route entry not found.'),
            Reason.OPENBAO_ERROR,
            "nothing is mounted at secret",
        ),
        (
            httpx.Response(404, json={"data": None, "warnings": ["Invalid path for a versioned"]}),
            Reason.OPENBAO_ERROR,
            "secret is not the root of a KV version 2 mount; OpenBao says: Invalid path",
        ),
        (errors(404, "namespace not found"), Reason.OPENBAO_ERROR, "no such namespace"),
        (
            httpx.Response(200, json={"data": {"value": CANARY}}),
            Reason.OPENBAO_ERROR,
            "not in the form of KV version 2",
        ),
        (
            httpx.Response(200, json={"data": {"data": CANARY, "metadata": {"version": 1}}}),
            Reason.OPENBAO_ERROR,
            "not in the form of KV version 2",
        ),
        (
            httpx.Response(200, json={"data": {"data": {"value": CANARY}, "metadata": {}}}),
            Reason.OPENBAO_ERROR,
            "not in the form of KV version 2",
        ),
        (
            errors(403, "1 error occurred:\n\t* permission denied\n\n"),
            Reason.OPENBAO_FORBIDDEN,
            "it says: 1 error occurred: * permission denied",
        ),
        (errors(500, "could not find version data"), Reason.OPENBAO_ERROR, "OpenBao fails"),
        (errors(405, "unsupported operation"), Reason.OPENBAO_ERROR, "(HTTP 405); it says: unsup"),
    ],
)
async def test_refused_read_names_its_cause(
    api: respx.MockRouter, reply: httpx.Response, reason: Reason, phrase: str
) -> None:
    error = await read_refused(api, reply)
    assert error.reason == reason
    assert phrase in error.cause


@pytest.mark.parametrize("path", ["secret/data/env-a/app", "secret/env-a/app", "data/env-a/app"])
@pytest.mark.parametrize("status", [403, 404])
async def test_path_that_repeats_the_mount_gets_a_hint(
    api: respx.MockRouter, path: str, status: int
) -> None:
    error = await read_refused(api, errors(status), path=path)
    assert "leave out the mount and data/" in error.remedy


# CASES 45: sealed, and answers that are not OpenBao's.
async def test_sealed_server_is_named_for_reads_and_logins(api: respx.MockRouter) -> None:
    sealed = errors(503, "Vault is sealed", **{"Retry-After": "7"})
    for error in (await read_refused(api, sealed), await login_refused(api, sealed)):
        assert error.reason == Reason.OPENBAO_SEALED
        assert "OpenBao is sealed or not initialised (HTTP 503); it says: Vault is s" in error.cause
        assert "bao operator unseal" in error.remedy
        assert error.retry_after == 7


@pytest.mark.parametrize(
    ("reply", "phrase"),
    [
        (httpx.Response(502, html="<h1>Bad Gateway</h1>"), "(HTTP 502)"),
        (httpx.Response(503, html="upstream is sealed"), "(HTTP 503)"),
        (httpx.Response(404, html="<h1>no page</h1>"), "(HTTP 404)"),
        (httpx.Response(200, text=f"{CANARY} {{"), "(HTTP 200)"),
        (httpx.Response(200, json=[CANARY]), "(HTTP 200)"),
        (httpx.Response(200, text='{"data": NaN}'), "(HTTP 200)"),
        (httpx.Response(200, text="[" * 100_000), "(HTTP 200)"),
        (httpx.Response(200, content=b"\xff\xfe"), "(HTTP 200)"),
        (httpx.Response(302, headers={"Location": f"{URL}/login"}), "(HTTP 302)"),
    ],
)
async def test_body_that_is_not_openbaos_is_never_taken_for_its_word(
    api: respx.MockRouter, reply: httpx.Response, phrase: str
) -> None:
    for error in (await read_refused(api, reply), await login_refused(api, reply)):
        assert error.reason == Reason.OPENBAO_ERROR
        assert "the answer is not OpenBao's JSON" in error.cause
        assert phrase in error.cause
        assert "openbao.url" in error.remedy


async def test_not_found_of_another_service_is_not_a_missing_secret(api: respx.MockRouter) -> None:
    error = await read_refused(api, httpx.Response(404, json={"message": "no route"}))
    assert error.reason == Reason.OPENBAO_ERROR
    assert "unexpected answer (HTTP 404)" in error.cause


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "12"}, 12),
        (
            {
                "Date": "Tue, 01 Dec 2026 12:00:00 GMT",
                "Retry-After": "Tue, 01 Dec 2026 12:01:30 GMT",
            },
            90,
        ),
        ({"Retry-After": "Tue, 01 Dec 2026 12:01:30 GMT"}, None),
        ({"Retry-After": "9" * 400}, 3600),
        ({"Retry-After": "-3"}, None),
        ({"Retry-After": "soon"}, None),
        ({}, None),
    ],
)
async def test_rate_limit_says_when_to_come_back(
    api: respx.MockRouter, headers: dict[str, str], seconds: float | None
) -> None:
    error = await read_refused(api, errors(429, "rate limit quota exceeded", **headers))
    assert error.reason == Reason.OPENBAO_ERROR
    assert "fewer requests (HTTP 429); it says: rate limit quota exceeded" in error.cause
    assert error.retry_after == seconds


@pytest.mark.parametrize(
    ("failure", "phrase"),
    [
        (httpx.ConnectTimeout("t"), "no connection within the time allowed"),
        (httpx.ReadTimeout("t"), "no answer within the time allowed"),
        (httpx.ConnectError("x"), "closed while it was being set up"),
        (httpx.RemoteProtocolError(f"bad header {CANARY}"), "the answer is not valid HTTP"),
        (
            httpx.Response(200, content=b'{"data":"' + CANARY.encode() * 200_000 + b'"}'),
            "larger than 4194304 bytes",
        ),
    ],
)
async def test_server_that_can_not_be_talked_to_is_unreachable(
    api: respx.MockRouter, failure: Any, phrase: str
) -> None:
    for error in (await read_refused(api, failure), await login_refused(api, failure)):
        assert error.reason == Reason.OPENBAO_UNREACHABLE
        assert "OpenBao can't be reached: bao.example:8200: " in error.cause
        assert phrase in error.cause


async def test_openbaos_words_are_masked_flattened_and_cut(api: respx.MockRouter) -> None:
    said = f"token {GRANT.reveal()}\n\t* is\x1b[31m bad {'x' * 1000}"
    error = await login_refused(api, errors(400, said, "and more"))
    words = error.cause.partition("OpenBao says: ")[2]
    assert words.startswith("token [secret] * is?[31m bad xxx")
    assert words.endswith("...")
    assert len(words) == 400


async def test_token_in_openbaos_words_is_masked(api: respx.MockRouter) -> None:
    error = await read_refused(api, errors(500, "token s.token-1 is odd"))
    assert "token [secret] is odd" in error.cause
