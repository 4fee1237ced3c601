"""What the tenancy client makes of each answer that tenancy, or something in its place, gives."""

import asyncio
import json
import traceback
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
import respx
from hypothesis import given
from hypothesis import strategies as st

from monky_deployd.clients.tenancy import ReportsRejected, TenancyClient
from monky_deployd.clients.tenancy_answers import Answer, refusal
from monky_deployd.domain.config import OverlayCfg, TenancyCfg
from monky_deployd.domain.http_headers import RETRY_AFTER_MAX
from monky_deployd.domain.secret import Secret
from monky_deployd.errors import ConfigError, ExitCode, Reason, TenancyError
from tests.unit.pki import http_answer, raw_server

TOKEN = "eyJhbGciOiJFUzI1NiJ9.canary-grant.c2lnbmF0dXJl"
ENVIRONMENT = "env-dev-01"
BASE = "https://tenancy.example"
MANIFEST = f"{BASE}/v1/environments/{ENVIRONMENT}/manifest"
REPORTS = f"{BASE}/v1/environments/{ENVIRONMENT}/reports"
NOW = datetime(2026, 12, 1, 12, 0, 0, tzinfo=UTC)


@pytest.fixture
async def client() -> AsyncIterator[TenancyClient]:
    cfg = TenancyCfg(host="tenancy.example")
    async with TenancyClient(cfg, OverlayCfg(), ENVIRONMENT, agent_version="1.2.3") as client:
        yield client


@pytest.fixture
def tenancy() -> Any:
    with respx.mock(assert_all_called=False) as router:
        yield router


async def fetch(client: TenancyClient, *, etag: str | None = None, wait: float = 0) -> Any:
    return await client.fetch_manifest(Secret(TOKEN), etag=etag, wait=wait)


async def fetch_error(client: TenancyClient, etag: str | None = None) -> TenancyError:
    with pytest.raises(TenancyError) as caught:
        await fetch(client, etag=etag)
    return checked(caught.value)


def checked(error: TenancyError) -> TenancyError:
    """`error`, after making sure that neither it nor what it would print holds the grant."""
    shown = "".join(traceback.format_exception(error)) + repr(error) + str(error.__dict__)
    assert TOKEN not in shown
    assert "\n" not in str(error)
    return error


def json_error(status: int, code: str, message: str = "", **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"error": code, "message": message}, headers=headers)


# Success


async def test_fetch_asks_with_grant_etag_and_wait(client: TenancyClient, tenancy: Any) -> None:
    route = tenancy.get(MANIFEST).respond(304)
    await fetch(client, etag='"v1"', wait=55.9)
    sent = route.calls.last.request
    assert sent.headers["authorization"] == f"Bearer {TOKEN}"
    assert sent.headers["if-none-match"] == '"v1"'
    assert sent.headers["prefer"] == "wait=55"
    assert sent.headers["user-agent"] == "monky-deployd/1.2.3"
    assert sent.headers["accept"] == "application/json"
    assert sent.extensions["timeout"]["read"] == 30 + 55
    assert sent.extensions["timeout"]["connect"] == 30


async def test_first_fetch_is_unconditional_and_does_not_wait(
    client: TenancyClient, tenancy: Any
) -> None:
    route = tenancy.get(MANIFEST).respond(200, json={})
    await fetch(client)
    sent = route.calls.last.request
    assert "if-none-match" not in sent.headers
    assert "prefer" not in sent.headers


async def test_new_manifest_is_handed_over_as_it_came(client: TenancyClient, tenancy: Any) -> None:
    headers = {
        "ETag": '"v2"',
        "Content-Type": "application/json; charset=utf-8",
        "Date": "Tue, 01 Dec 2026 12:00:00 GMT",
    }
    tenancy.get(MANIFEST).respond(200, content=b'{"schema": 1 }', headers=headers)
    answer = await fetch(client, etag='"v1"')
    assert answer.changed
    assert answer.body == b'{"schema": 1 }'
    assert answer.etag == '"v2"'
    assert answer.server_date == NOW


async def test_unchanged_manifest_keeps_its_etag(client: TenancyClient, tenancy: Any) -> None:
    tenancy.get(MANIFEST).respond(304)
    answer = await fetch(client, etag='"v1"')
    assert not answer.changed
    assert answer.body == b""
    assert answer.etag == '"v1"'
    assert answer.server_date is None


async def test_server_without_conditional_requests_is_seen_through_by_its_etag(
    client: TenancyClient, tenancy: Any
) -> None:
    tenancy.get(MANIFEST).respond(200, json={"schema": 1}, headers={"ETag": '"v1"'})
    assert not (await fetch(client, etag='"v1"')).changed


async def test_server_without_etags_is_borne(client: TenancyClient, tenancy: Any) -> None:
    tenancy.get(MANIFEST).respond(200, json={"schema": 1})
    answer = await fetch(client, etag='"v1"')
    assert answer.changed
    assert answer.etag is None


async def test_etag_that_fits_no_header_is_not_sent(client: TenancyClient, tenancy: Any) -> None:
    route = tenancy.get(MANIFEST).respond(200, json={})
    await fetch(client, etag='"v\xe91\n"')
    assert "if-none-match" not in route.calls.last.request.headers


@pytest.mark.parametrize(
    ("applied", "wait", "waited"),
    [("wait", 55, True), ("respond-async, wait=30", 55, True), ("wait", 0, False), ("", 55, False)],
)
async def test_server_says_that_it_honours_the_wait(
    client: TenancyClient, tenancy: Any, applied: str, wait: int, waited: bool
) -> None:
    tenancy.get(MANIFEST).respond(200, json={}, headers={"Preference-Applied": applied})
    assert (await fetch(client, etag='"v1"', wait=wait)).waited is waited


async def test_304_that_comes_at_once_was_not_held_whatever_it_says(
    client: TenancyClient, tenancy: Any
) -> None:
    tenancy.get(MANIFEST).respond(304, headers={"Preference-Applied": "wait=55"})
    assert not (await fetch(client, etag='"v1"', wait=55)).waited


async def test_reports_are_sent_in_order(client: TenancyClient, tenancy: Any) -> None:
    route = tenancy.post(REPORTS).respond(202)
    await client.send_reports(Secret(TOKEN), [{"report_id": "a"}, {"report_id": "b"}])
    sent = route.calls.last.request
    assert json.loads(sent.content) == {"reports": [{"report_id": "a"}, {"report_id": "b"}]}
    assert sent.headers["content-type"] == "application/json"
    assert sent.headers["authorization"] == f"Bearer {TOKEN}"


# Refusals


@pytest.mark.parametrize(
    ("answer", "reason", "words"),
    [
        (
            json_error(401, "grant_superseded"),
            Reason.GRANT_SUPERSEDED,
            "tenancy refuses the grant: a newer one has superseded it",
        ),
        (
            json_error(401, "grant_expired"),
            Reason.GRANT_EXPIRED,
            "tenancy refuses the grant: it has expired",
        ),
        (
            json_error(401, "grant_not_yet_valid"),
            Reason.GRANT_NOT_YET_VALID,
            "tenancy refuses the grant: it is not valid yet",
        ),
        (
            httpx.Response(401, json={"reason": "grant_superseded"}),
            Reason.GRANT_SUPERSEDED,
            "a newer one has superseded it",
        ),
        (
            httpx.Response(
                401,
                headers={
                    "WWW-Authenticate": 'Bearer realm="t", error="invalid_token", '
                    'error_description="The token has been superseded"'
                },
            ),
            Reason.GRANT_SUPERSEDED,
            '("The token has been superseded")',
        ),
        (
            httpx.Response(
                401,
                json={"error": "invalid_token"},
                headers={"WWW-Authenticate": 'Bearer error_description="The token expired"'},
            ),
            Reason.GRANT_EXPIRED,
            "it has expired",
        ),
        (
            httpx.Response(401, html="<h1>Log in</h1>"),
            Reason.GRANT_REFUSED,
            "tenancy refuses the grant: it is not accepted;",
        ),
        (
            json_error(403, "wrong_environment", "not yours"),
            Reason.TENANCY_FORBIDDEN,
            'tenancy forbids this grant the environment env-dev-01 ("not yours")',
        ),
        (
            json_error(404, "unknown_environment"),
            Reason.TENANCY_UNKNOWN_ENVIRONMENT,
            "tenancy knows no environment env-dev-01",
        ),
        (
            httpx.Response(404, html="<h1>nginx</h1>"),
            Reason.TENANCY_ERROR,
            "https://tenancy.example answers 404 but not tenancy's own; "
            "check tenancy.host and tenancy.port",
        ),
        (
            httpx.Response(404, json={"detail": "Not Found"}),
            Reason.TENANCY_ERROR,
            "answers 404 but not tenancy's own",
        ),
        (
            json_error(410, "decommissioned"),
            Reason.TENANCY_DECOMMISSIONED,
            "tenancy has decommissioned the environment env-dev-01",
        ),
        (httpx.Response(429), Reason.TENANCY_BUSY, "tenancy asks for fewer requests"),
        (httpx.Response(503), Reason.TENANCY_BUSY, "tenancy is not available just now"),
        (
            httpx.Response(500, text="database\nis away"),
            Reason.TENANCY_ERROR,
            'tenancy answers 500 ("database is away")',
        ),
        (httpx.Response(502, html="<html>"), Reason.TENANCY_ERROR, "tenancy answers 502"),
        (httpx.Response(400), Reason.TENANCY_ERROR, "tenancy answers 400"),
        (httpx.Response(204), Reason.TENANCY_ERROR, "tenancy answers 204"),
    ],
)
async def test_each_refusal_has_its_reason_and_words(
    client: TenancyClient, tenancy: Any, answer: httpx.Response, reason: Reason, words: str
) -> None:
    tenancy.get(MANIFEST).mock(return_value=answer)
    error = await fetch_error(client)
    assert error.reason is reason
    assert words in str(error)
    assert error.exit_code is ExitCode.UNREACHABLE


async def test_304_to_an_unconditional_request_is_no_success(
    client: TenancyClient, tenancy: Any
) -> None:
    tenancy.get(MANIFEST).respond(304)
    error = await fetch_error(client)
    assert error.reason is Reason.TENANCY_ERROR
    assert error.cause == "tenancy answers 304, not modified, to a request without a condition"


@pytest.mark.parametrize(
    ("location", "target"),
    [
        (f"https://user:{TOKEN}@evil.example:8443/p?{TOKEN}", "https://evil.example:8443"),
        ("http://tenancy.example/", "http://tenancy.example"),
        ("/login?next=x", "https://tenancy.example"),
        (f"https://{TOKEN}/", "an address that can't be read"),
    ],
)
async def test_redirect_is_refused_and_shown_by_its_origin(
    client: TenancyClient, tenancy: Any, location: str, target: str
) -> None:
    tenancy.get(MANIFEST).respond(307, headers={"Location": location})
    error = await fetch_error(client)
    assert f"tenancy answers 307 and points to {target}; " in str(error)
    assert TOKEN.lower() not in str(error).lower()
    assert error.reason is Reason.TENANCY_ERROR
    assert len(tenancy.calls) == 1


@pytest.mark.parametrize("content_type", ["text/html; charset=utf-8", ""])
async def test_success_that_is_not_json_is_refused(
    client: TenancyClient, tenancy: Any, content_type: str
) -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    tenancy.get(MANIFEST).respond(200, content=b"<html>", headers=headers)
    error = await fetch_error(client)
    assert error.reason is Reason.TENANCY_ERROR
    assert f"with {content_type.split(';')[0] or 'no content type'} where JSON" in str(error)


@pytest.mark.parametrize("body", [b'{"schema": 1, "entr', b"", b"not json"])
async def test_part_of_a_manifest_is_refused_so_that_its_etag_is_not_kept(
    client: TenancyClient, tenancy: Any, body: bytes
) -> None:
    headers = {"Content-Type": "application/json", "ETag": '"7"'}
    tenancy.get(MANIFEST).respond(200, content=body, headers=headers)
    error = await fetch_error(client)
    assert error.reason is Reason.TENANCY_ERROR
    assert "only a part of one" in error.cause


async def test_reports_are_not_taken_by_whoever_answers_with_a_page(
    client: TenancyClient, tenancy: Any
) -> None:
    page = {"Content-Type": "text/html"}
    tenancy.post(REPORTS).respond(200, content=b"<html>", headers=page)
    with pytest.raises(TenancyError, match="text/html where JSON is expected"):
        await client.send_reports(Secret(TOKEN), [{"report_id": "a"}])
    tenancy.post(REPORTS).respond(204)
    await client.send_reports(Secret(TOKEN), [{"report_id": "a"}])


async def test_clock_difference_is_named_where_it_may_be_the_cause(
    client: TenancyClient, tenancy: Any
) -> None:
    ahead = format_datetime(datetime.now(UTC) + timedelta(hours=2), usegmt=True)
    tenancy.get(MANIFEST).mock(return_value=json_error(401, "grant_not_yet_valid", Date=ahead))
    assert "s behind tenancy's)" in (await fetch_error(client)).remedy
    now = format_datetime(datetime.now(UTC), usegmt=True)
    tenancy.get(MANIFEST).mock(return_value=json_error(401, "grant_expired", Date=now))
    assert "clock" not in (await fetch_error(client)).remedy


# Retry-After


def busy(**headers: str) -> TenancyError:
    answer = Answer(
        status=503,
        url=httpx.URL(BASE),
        headers=httpx.Headers(
            [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
        ),
        body=b"",
        elapsed=0,
        token=Secret(TOKEN),
    )
    return refusal(answer, ENVIRONMENT)


def http_date(seconds: float) -> str:
    return format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        (" 120 ", 120.0),
        ("999999999", RETRY_AFTER_MAX),
        pytest.param("9" * 5000, RETRY_AFTER_MAX, id="5000 digits"),
        (http_date(90), 90.0),
        (http_date(-90), 0.0),
        (http_date(10**6), RETRY_AFTER_MAX),
        ("-5", None),
        ("soon", None),
        ("1.5", None),
        ("٣", None),
        ("", None),
    ],
)
def test_retry_after_in_both_forms_against_tenancys_clock(
    value: str, seconds: float | None
) -> None:
    error = busy(Retry_After=value, Date=http_date(0))
    assert error.retry_after == seconds
    assert error.reason is Reason.TENANCY_BUSY


def test_retry_after_date_without_a_server_date_uses_this_clock() -> None:
    soon = datetime.now(UTC) + timedelta(seconds=600)
    retry_after = busy(Retry_After=format_datetime(soon, usegmt=True)).retry_after
    assert retry_after is not None
    assert 0 < retry_after <= 600


@given(st.text(st.characters(codec="ascii")))
def test_no_retry_after_breaks_the_client(value: str) -> None:
    retry_after = busy(Retry_After=value, Date=value).retry_after
    assert retry_after is None or 0 <= retry_after <= RETRY_AFTER_MAX


# Tenancy's words


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (f"no use for Bearer {TOKEN}!", '("no use for Bearer [secret]!")'),
        ("two\r\n  lines", '("two lines")'),
        ("\x1b[31mred\x07 \u202e", '("\\x1b[31mred\\x07 \\u202e")'),
        ("é ☃", '("é ☃")'),
        pytest.param("x" * 1000, f'("{"x" * 300}…")', id="long"),
        pytest.param("y" * 290 + TOKEN, f'("{"y" * 290}[secret]")', id="grant at the cut"),
    ],
)
async def test_words_are_one_short_line_without_the_grant(
    client: TenancyClient, tenancy: Any, message: str, shown: str
) -> None:
    tenancy.get(MANIFEST).mock(return_value=json_error(500, "oops", message))
    assert (await fetch_error(client)).cause == f"tenancy answers 500 {shown}"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b'{"error": 5, "message": ["x"]}',
        pytest.param(b"[" * 60_000, id="deep"),
        pytest.param(b"[" * 100_000, id="long"),
        pytest.param(b"\xff" * 99, id="not UTF-8"),
    ],
)
async def test_error_body_of_any_shape_is_borne(
    client: TenancyClient, tenancy: Any, body: bytes
) -> None:
    headers = {"Content-Type": "application/json"}
    tenancy.get(MANIFEST).respond(500, content=body, headers=headers)
    assert (await fetch_error(client)).cause == "tenancy answers 500"


async def test_grant_in_other_headers_is_masked(client: TenancyClient, tenancy: Any) -> None:
    challenge = f'Bearer error_description="{TOKEN} is expired"'
    tenancy.get(MANIFEST).respond(401, headers={"WWW-Authenticate": challenge})
    error = await fetch_error(client)
    assert error.reason is Reason.GRANT_EXPIRED
    assert '("[secret] is expired")' in error.cause


@pytest.mark.parametrize("token", [f"{TOKEN}\n", f"{TOKEN} x", "é", "", f"{TOKEN}\r\nX: y"])
async def test_grant_that_fits_no_header_is_refused_unsent(
    client: TenancyClient, tenancy: Any, token: str
) -> None:
    with pytest.raises(TenancyError) as caught:
        await client.fetch_manifest(Secret(token), etag=None, wait=0)
    assert checked(caught.value).reason is Reason.GRANT_MALFORMED
    assert not tenancy.calls


# Reports


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_reports_that_can_never_succeed_are_rejected(
    client: TenancyClient, tenancy: Any, status: int
) -> None:
    tenancy.post(REPORTS).mock(return_value=json_error(status, "bad", f"no {TOKEN}"))
    with pytest.raises(ReportsRejected) as caught:
        await client.send_reports(Secret(TOKEN), [{"report_id": "a"}])
    assert not caught.value.retryable
    assert caught.value.status == status
    assert str(checked(caught.value)) == (
        f'tenancy rejects the reports with status {status} ("no [secret]")'
    )


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, Reason.GRANT_REFUSED),
        (404, Reason.TENANCY_ERROR),
        (410, Reason.TENANCY_DECOMMISSIONED),
        (429, Reason.TENANCY_BUSY),
        (500, Reason.TENANCY_ERROR),
        (302, Reason.TENANCY_ERROR),
        (304, Reason.TENANCY_ERROR),
    ],
)
async def test_reports_refused_for_now_are_not_rejected(
    client: TenancyClient, tenancy: Any, status: int, reason: Reason
) -> None:
    tenancy.post(REPORTS).respond(status, headers={"Retry-After": "7"})
    with pytest.raises(TenancyError) as caught:
        await client.send_reports(Secret(TOKEN), [{"report_id": "a"}])
    assert not isinstance(caught.value, ReportsRejected)
    assert checked(caught.value).reason is reason
    assert caught.value.retryable


# The wire


async def wire_error(answer: Any, **settings: Any) -> TenancyError:
    async with raw_server(answer) as notes:
        cfg = TenancyCfg(host="127.0.0.1", port=notes.port, scheme="http", **settings)
        async with TenancyClient(cfg, OverlayCfg(), ENVIRONMENT, agent_version="0") as client:
            return await fetch_error(client)


async def test_refused_connection_is_unreachable_and_names_where_it_dialled() -> None:
    async with raw_server(b"") as notes:
        port = notes.port
    overlay = OverlayCfg(proxy={"tenancy.example:443": f"127.0.0.1:{port}"})
    cfg = TenancyCfg(host="tenancy.example")
    async with TenancyClient(cfg, overlay, ENVIRONMENT, agent_version="0") as client:
        error = await fetch_error(client)
    assert error.reason is Reason.TENANCY_UNREACHABLE
    assert error.cause == (
        "tenancy can't be reached: "
        f"tenancy.example:443 (dialled at 127.0.0.1:{port}): connection refused"
    )


async def test_truncated_manifest_is_never_taken_for_whole() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{}"
    error = await wire_error(answer)
    assert error.reason is Reason.TENANCY_UNREACHABLE
    assert "the connection ended before the whole answer had come" in error.cause


async def test_endless_manifest_is_stopped() -> None:
    async def endless(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
        writer.write(head)
        while True:
            writer.write(bytes(65536))
            await writer.drain()

    error = await wire_error(endless)
    assert error.reason is Reason.TENANCY_ERROR
    assert "the answer is larger than 4194304 bytes" in error.cause


async def test_answer_that_trickles_is_stopped() -> None:
    async def trickle(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        while True:
            writer.write(b" ")
            await asyncio.sleep(0.01)

    error = await wire_error(trickle, request_timeout=0.2)
    assert error.reason is Reason.TENANCY_UNREACHABLE
    assert "did not finish its answer" in error.cause


async def test_refusal_counts_even_if_its_words_are_cut_off_or_too_many() -> None:
    head = b"HTTP/1.1 410 Gone\r\nContent-Type: text/plain\r\nContent-Length: 99\r\n\r\nx"
    assert (await wire_error(head)).reason is Reason.TENANCY_DECOMMISSIONED
    long = http_answer(b"x" * 100_000, "Content-Type: text/plain", status="410 Gone")
    error = await wire_error(long)
    assert error.reason is Reason.TENANCY_DECOMMISSIONED
    assert error.cause == "tenancy has decommissioned the environment env-dev-01"


def test_unusable_ca_file_is_found_when_the_client_is_made() -> None:
    cfg = TenancyCfg(host="tenancy.example", ca_file="/does/not/exist.pem")
    with pytest.raises(ConfigError, match=r"/does/not/exist\.pem"):
        TenancyClient(cfg, OverlayCfg(), ENVIRONMENT, agent_version="0")
