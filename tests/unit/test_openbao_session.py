"""The OpenBao client: what it sends where, and how long its tokens live."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import respx

from monky_deployd.clients.openbao import OpenBaoClient
from monky_deployd.domain.config import OpenBaoCfg, OverlayCfg
from monky_deployd.domain.secret import Secret
from monky_deployd.errors import EntryError, OpenBaoError, Reason
from tests.contracts.openbao_contract import refusal
from tests.unit.openbao_api import (
    DATA,
    GRANT,
    URL,
    Clock,
    NumberedTokens,
    answer,
    canned_openbao,
    client,
    errors,
    kv_answer,
    login_answer,
    login_refused,
    never,
    read_refused,
    tokens_of,
)


@pytest.fixture
def api() -> Iterator[respx.MockRouter]:
    with canned_openbao() as router:
        yield router


# CASES 44: paths are clean before they leave, and a redirect leads nowhere else.
@pytest.mark.parametrize("path", ["", "a//b", "a/../b", "./a"])
async def test_unclean_path_is_refused_before_anything_is_sent(
    api: respx.MockRouter, path: str
) -> None:
    async with client() as bao:
        await bao.login(GRANT)
        with pytest.raises(EntryError, match="entry 'APP': path"):
            await bao.read(path, entry="APP")
        assert api.calls.call_count == 1


@pytest.mark.parametrize("location", [f"{URL}/v1/elsewhere", "/v1/elsewhere"])
@pytest.mark.parametrize("status", [307, 308])
async def test_redirect_within_the_origin_is_followed_with_the_token(
    api: respx.MockRouter, location: str, status: int
) -> None:
    api.get(DATA).respond(status, headers={"Location": location})
    route = api.get("/v1/elsewhere").mock(return_value=kv_answer({"value": "x"}))
    async with client() as bao:
        await bao.login(GRANT)
        assert (await bao.read("env-a/app", entry="APP")).data["value"] == "x"
    assert tokens_of(route) == ["s.token-1"]


async def test_redirected_login_within_the_origin_sends_the_grant_again(
    api: respx.MockRouter,
) -> None:
    api["login"].respond(307, headers={"Location": "/v1/auth/other/login"})
    route = api.post("/v1/auth/other/login").mock(return_value=login_answer("s.token-1"))
    async with client() as bao:
        await bao.login(GRANT)
    assert json.loads(route.calls.last.request.content)["jwt"] == GRANT.reveal()


@pytest.mark.parametrize(
    "location",
    [
        "https://node-2.example:8200/v1/x",
        "https://bao.example/v1/x",
        "http://bao.example:8200/v1/x",
        "//evil.example/v1/x",
        "https://bao.example:8200@evil.example/v1/x",
        "https://[/",
    ],
)
async def test_redirect_to_another_origin_is_refused(api: respx.MockRouter, location: str) -> None:
    # Any call to another place would find no route here and fail as unreachable.
    away = httpx.Response(307, headers={"Location": location})
    for error in (await read_refused(api, away), await login_refused(api, away)):
        assert error.reason == Reason.OPENBAO_ERROR
        assert "where grant and token must not go" in error.cause
        assert "openbao.url" in error.remedy
    assert {call.request.url.host for call in api.calls} == {"bao.example"}


async def test_redirect_is_followed_only_once(api: respx.MockRouter) -> None:
    error = await read_refused(api, httpx.Response(307, headers={"Location": DATA}))
    assert "(HTTP 307)" in error.cause
    assert len([call for call in api.calls if call.request.url.path == DATA]) == 2


@pytest.mark.parametrize(("passed", "logins"), [(599, 1), (600, 2), (5000, 2)])
async def test_token_is_replaced_past_two_thirds_of_its_lease(
    api: respx.MockRouter, passed: float, logins: int
) -> None:
    route = api.get(DATA).mock(return_value=kv_answer({"value": "x"}))
    clock = Clock()
    async with client(clock) as bao:
        await bao.login(GRANT)
        clock.now += passed
        await bao.read("env-a/app", entry="APP")
        await bao.read("env-a/app", entry="APP")
    assert tokens_of(route) == [f"s.token-{logins}"] * 2
    assert tokens_of(api["revoke"]) == [f"s.token-{number}" for number in range(1, logins + 1)]


async def test_token_without_a_lease_is_kept(api: respx.MockRouter) -> None:
    api["login"].mock(side_effect=NumberedTokens(lease=0))
    api.get(DATA).mock(return_value=kv_answer({"value": "x"}))
    clock = Clock()
    async with client(clock) as bao:
        await bao.login(GRANT)
        clock.now += 1e9
        await bao.read("env-a/app", entry="APP")
    assert api["login"].call_count == 1


async def test_forbidden_read_is_tried_once_more_with_a_new_token(api: respx.MockRouter) -> None:
    await read_refused(api, errors(403, "permission denied"))
    read = [call.request for call in api.calls if call.request.url.path == DATA]
    assert [request.headers["X-Vault-Token"] for request in read] == ["s.token-1", "s.token-2"]
    assert api["login"].call_count == 2
    assert tokens_of(api["revoke"]) == ["s.token-1", "s.token-2"]


async def test_login_that_fails_after_a_forbidden_read_is_what_is_told(
    api: respx.MockRouter,
) -> None:
    api["login"].mock(side_effect=[login_answer("s.token-1"), errors(400, "token is expired")])
    api.get(DATA).mock(return_value=errors(403, "permission denied"))
    async with client() as bao:
        await bao.login(GRANT)
        with refusal(Reason.GRANT_EXPIRED, "the grant has expired", hidden=(GRANT,)):
            await bao.read("env-a/app", entry="APP")


async def test_reads_side_by_side_share_one_new_login(api: respx.MockRouter) -> None:
    all_on_their_way = asyncio.Barrier(5)

    async def only_the_second(request: httpx.Request) -> httpx.Response:
        if request.headers["X-Vault-Token"] == "s.token-2":
            return kv_answer({"value": "x"})
        if request.headers["X-Vault-Token"] == "s.token-1":
            await all_on_their_way.wait()
        return errors(403, "permission denied")

    api.get(DATA).mock(side_effect=only_the_second)
    async with client() as bao:
        await bao.login(GRANT)
        await asyncio.gather(*(bao.read("env-a/app", entry="APP") for _ in range(5)))
    assert api["login"].call_count == 2


async def test_new_login_with_another_grant_takes_its_place(api: respx.MockRouter) -> None:
    route = api.get(DATA).mock(return_value=kv_answer({"value": "x"}))
    async with client() as bao:
        await bao.login(GRANT)
        await bao.login(Secret("another-grant"))
        await bao.read("env-a/app", entry="APP")
    assert json.loads(api["login"].calls.last.request.content)["jwt"] == "another-grant"
    assert tokens_of(route) == ["s.token-2"]
    assert tokens_of(api["revoke"]) == ["s.token-1", "s.token-2"]


@pytest.mark.parametrize(
    "failure",
    [
        httpx.ConnectError("x"),
        httpx.ReadTimeout("x"),
        errors(403, "permission denied"),
        errors(503, "Vault is sealed"),
        httpx.Response(307, headers={"Location": "https://evil.example/"}),
        httpx.Response(502, html="x"),
    ],
)
async def test_token_that_can_not_be_revoked_is_only_noted(
    api: respx.MockRouter, caplog: pytest.LogCaptureFixture, failure: Any
) -> None:
    answer(api["revoke"], failure)
    with caplog.at_level(logging.DEBUG, "monky_deployd"):
        async with client() as bao:
            await bao.login(GRANT)
    notes = [record for record in caplog.records if record.name.startswith("monky_deployd")]
    assert [record.levelno for record in notes] == [logging.DEBUG]
    assert "was not revoked" in notes[0].getMessage()
    assert "s.token-" not in caplog.text


async def test_revoking_does_not_hold_up_the_end_for_long(
    api: respx.MockRouter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("monky_deployd.clients.openbao._REVOKE_TIMEOUT", 0.01)
    api["revoke"].mock(side_effect=never)
    with caplog.at_level(logging.DEBUG, "monky_deployd"):
        async with client() as bao:
            await bao.login(GRANT)
    assert "did not revoke the token within 0.01 s" in caplog.text


async def test_cancelled_session_still_revokes_its_token(api: respx.MockRouter) -> None:
    reading = asyncio.Event()

    async def hang(request: httpx.Request) -> httpx.Response:
        reading.set()
        return await never(request)

    api.get(DATA).mock(side_effect=hang)

    async def work() -> None:
        async with client() as bao:
            await bao.login(GRANT)
            await bao.read("env-a/app", entry="APP")

    task = asyncio.create_task(work())
    await reading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tokens_of(api["revoke"]) == ["s.token-1"]


async def test_revoking_never_hides_the_error_that_ended_the_session(
    api: respx.MockRouter,
) -> None:
    api["revoke"].mock(side_effect=httpx.ConnectError("x"))
    with pytest.raises(ZeroDivisionError):
        async with client() as bao:
            await bao.login(GRANT)
            raise ZeroDivisionError


async def test_session_without_a_login_revokes_nothing_and_reads_nothing(
    api: respx.MockRouter,
) -> None:
    async with client() as bao:
        with pytest.raises(RuntimeError, match="log in before reading"):
            await bao.read("env-a/app", entry="APP")
    assert not api.calls


async def test_revoked_session_needs_a_new_login(api: respx.MockRouter) -> None:
    async with client() as bao:
        await bao.login(GRANT)
        await bao.revoke()
        with pytest.raises(RuntimeError):
            await bao.read("env-a/app", entry="APP")
    assert tokens_of(api["revoke"]) == ["s.token-1"]


async def test_an_answer_that_trickles_is_stopped() -> None:
    async def trickle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        with contextlib.suppress(OSError):
            while not writer.is_closing():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)

    server = await asyncio.start_server(trickle, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        cfg = OpenBaoCfg(url=f"http://127.0.0.1:{port}", request_timeout=0.1)
        async with OpenBaoClient(cfg, OverlayCfg()) as openbao:
            with pytest.raises(OpenBaoError, match="can't be reached") as caught:
                async with asyncio.timeout(5):
                    await openbao.login(GRANT)
    assert caught.value.reason is Reason.OPENBAO_UNREACHABLE
