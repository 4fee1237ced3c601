"""The client against the reference server, over real sockets: both keep PROTOCOL.md's contract."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from monky_deployd.clients.tenancy import ReportsRejected, TenancyClient
from monky_deployd.demo.grants import GrantIssuer
from monky_deployd.demo.serving import Served, serve
from monky_deployd.demo.tenancy_server import CannedAnswer, FakeTenancy
from monky_deployd.domain.config import OverlayCfg, TenancyCfg
from monky_deployd.domain.secret import Secret
from monky_deployd.errors import Reason, TenancyError
from tests.unit.pki import Authority

ENVIRONMENT = "env-dev-01"
LONG = 600


@pytest.fixture
def tenancy() -> FakeTenancy:
    tenancy = FakeTenancy()
    tenancy.publish(ENVIRONMENT, {"schema": 1, "generation": 1})
    return tenancy


@pytest.fixture
def served(tenancy: FakeTenancy) -> Iterator[Served]:
    with tenancy.serve() as served:
        yield served


@pytest.fixture
async def client(served: Served) -> AsyncIterator[TenancyClient]:
    async with connect(served) as client:
        yield client


@pytest.fixture
def grant(tenancy: FakeTenancy) -> Secret:
    return Secret(tenancy.grant(ENVIRONMENT))


def connect(served: Served, environment: str = ENVIRONMENT) -> TenancyClient:
    cfg = TenancyCfg(host=served.host, port=served.port, scheme="http")
    return TenancyClient(cfg, OverlayCfg(), environment, agent_version="0")


async def refused(call: Any) -> TenancyError:
    with pytest.raises(TenancyError) as caught:
        await call
    return caught.value


async def until_held(tenancy: FakeTenancy, count: int) -> None:
    """Return when the server has got `count` requests."""
    while len(tenancy.requests) < count:
        await asyncio.sleep(0.005)


# The manifest


async def test_manifest_comes_whole_and_then_unchanged(
    client: TenancyClient, grant: Secret
) -> None:
    first = await client.fetch_manifest(grant, etag=None, wait=LONG)
    assert first.changed
    assert first.waited
    assert first.body == b'{"generation": 1, "schema": 1}'
    assert first.server_date is not None
    second = await client.fetch_manifest(grant, etag=first.etag, wait=0)
    assert not second.changed
    assert second.etag == first.etag
    assert not second.waited


async def test_publish_releases_a_held_request(
    tenancy: FakeTenancy, client: TenancyClient, grant: Secret
) -> None:
    first = await client.fetch_manifest(grant, etag=None, wait=0)
    held = asyncio.create_task(client.fetch_manifest(grant, etag=first.etag, wait=LONG))
    await until_held(tenancy, 2)
    tenancy.publish("another", {"generation": 9})
    tenancy.publish(ENVIRONMENT, {"generation": 1, "schema": 1})
    assert not held.done()
    tenancy.publish(ENVIRONMENT, {"schema": 1, "generation": 2})
    answer = await held
    assert answer.changed
    assert answer.waited
    assert b'"generation": 2' in answer.body


async def test_wait_ends_with_304(client: TenancyClient, grant: Secret) -> None:
    first = await client.fetch_manifest(grant, etag=None, wait=0)
    answer = await client.fetch_manifest(grant, etag=first.etag, wait=1)
    assert not answer.changed
    assert answer.waited


async def test_server_that_ignores_the_wait_is_told_apart(
    tenancy: FakeTenancy, client: TenancyClient, grant: Secret
) -> None:
    tenancy.honours_wait = False
    first = await client.fetch_manifest(grant, etag=None, wait=LONG)
    second = await client.fetch_manifest(grant, etag=first.etag, wait=LONG)
    assert not first.waited
    assert not second.waited


async def test_held_request_does_not_hold_up_the_stop(tenancy: FakeTenancy, grant: Secret) -> None:
    server = tenancy.serve()
    async with connect(server.__enter__()) as client:
        first = await client.fetch_manifest(grant, etag=None, wait=0)
        held = asyncio.create_task(client.fetch_manifest(grant, etag=first.etag, wait=LONG))
        await until_held(tenancy, 2)
        await asyncio.to_thread(server.__exit__, None, None, None)
        assert not (await held).changed
        error = await refused(client.fetch_manifest(grant, etag=None, wait=0))
    assert error.reason is Reason.TENANCY_UNREACHABLE


# The grant


async def test_second_reveal_supersedes_the_first_grant(
    tenancy: FakeTenancy, client: TenancyClient, grant: Secret
) -> None:
    second = Secret(tenancy.grant(ENVIRONMENT))
    error = await refused(client.fetch_manifest(grant, etag=None, wait=0))
    assert error.reason is Reason.GRANT_SUPERSEDED
    assert grant.reveal() not in str(error)
    assert (await client.fetch_manifest(second, etag=None, wait=0)).changed


async def test_superseding_reaches_a_held_request(
    tenancy: FakeTenancy, client: TenancyClient
) -> None:
    grant = Secret(tenancy.issuer.issue(ENVIRONMENT, jti="first"))
    first = await client.fetch_manifest(grant, etag=None, wait=0)
    held = asyncio.create_task(client.fetch_manifest(grant, etag=first.etag, wait=LONG))
    await until_held(tenancy, 2)
    tenancy.supersede("first")
    assert (await refused(held)).reason is Reason.GRANT_SUPERSEDED


async def test_each_bad_grant_has_its_reason(tenancy: FakeTenancy, client: TenancyClient) -> None:
    issuer = tenancy.issuer
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    cases = {
        issuer.issue(ENVIRONMENT, lifetime=timedelta(minutes=-5)): Reason.GRANT_EXPIRED,
        issuer.issue(ENVIRONMENT, not_before=tomorrow): Reason.GRANT_NOT_YET_VALID,
        issuer.issue(ENVIRONMENT, audience="elsewhere"): Reason.GRANT_REFUSED,
        GrantIssuer().issue(ENVIRONMENT): Reason.GRANT_REFUSED,
        issuer.issue("another"): Reason.TENANCY_FORBIDDEN,
    }
    for grant, reason in cases.items():
        error = await refused(client.fetch_manifest(Secret(grant), etag=None, wait=0))
        assert error.reason is reason


async def test_environment_that_is_gone_or_unknown(
    tenancy: FakeTenancy, client: TenancyClient, grant: Secret, served: Served
) -> None:
    tenancy.decommission(ENVIRONMENT)
    error = await refused(client.fetch_manifest(grant, etag=None, wait=0))
    assert error.reason is Reason.TENANCY_DECOMMISSIONED
    async with connect(served, "nowhere") as stranger:
        nowhere = Secret(tenancy.grant("nowhere"))
        error = await refused(stranger.fetch_manifest(nowhere, etag=None, wait=0))
    assert error.reason is Reason.TENANCY_UNKNOWN_ENVIRONMENT


async def test_grant_never_stays_in_what_the_server_saw(
    tenancy: FakeTenancy, client: TenancyClient, grant: Secret
) -> None:
    await client.fetch_manifest(grant, etag=None, wait=0)
    assert grant.reveal() not in repr(tenancy.requests)
    assert tenancy.requests[0].headers["user-agent"] == "monky-deployd/0"


# Reports


async def test_repeated_reports_are_kept_once_and_in_order(
    tenancy: FakeTenancy, client: TenancyClient, grant: Secret
) -> None:
    a, b, c = ({"report_id": name, "seq": seq} for seq, name in enumerate("abc"))
    await client.send_reports(grant, [a, b])
    await client.send_reports(grant, [b, c, c])
    assert tenancy.reports(ENVIRONMENT) == [a, b, c]
    assert tenancy.received(ENVIRONMENT) == [a, b, b, c, c]


async def test_reports_of_the_wrong_shape_are_rejected(
    client: TenancyClient, grant: Secret, tenancy: FakeTenancy
) -> None:
    cases: list[tuple[dict[str, Any], int]] = [
        ({"seq": 1}, 422),
        ({"report_id": "x" * 5_000_000}, 413),
    ]
    for report, status in cases:
        with pytest.raises(ReportsRejected) as caught:
            await client.send_reports(grant, [report])
        assert caught.value.status == status
    assert tenancy.reports(ENVIRONMENT) == []


# Faults, TLS and the admin's side


async def test_canned_answer_is_given_once_to_its_endpoint(
    tenancy: FakeTenancy, client: TenancyClient, grant: Secret
) -> None:
    tenancy.answers.append(CannedAnswer(503, headers={"Retry-After": "7"}, endpoint="manifest"))
    await client.send_reports(grant, [])
    error = await refused(client.fetch_manifest(grant, etag=None, wait=0))
    assert error.reason is Reason.TENANCY_BUSY
    assert error.retry_after == 7
    assert (await client.fetch_manifest(grant, etag=None, wait=0)).changed


async def test_contract_holds_over_tls_through_a_proxy_mapping(
    tenancy: FakeTenancy, grant: Secret, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "ca")
    pair = authority.issue("tenancy.example")
    with tenancy.serve(certfile=str(pair.certfile), keyfile=str(pair.keyfile)) as served:
        assert served.url == f"https://127.0.0.1:{served.port}"
        cfg = TenancyCfg(host="tenancy.example", ca_file=str(authority.ca_file))
        overlay = OverlayCfg(proxy={"tenancy.example:443": f"127.0.0.1:{served.port}"})
        async with TenancyClient(cfg, overlay, ENVIRONMENT, agent_version="0") as client:
            assert (await client.fetch_manifest(grant, etag=None, wait=0)).changed
    assert tenancy.requests[0].headers["host"] == "tenancy.example"


def test_unusable_certificate_is_an_error_of_serve(tenancy: FakeTenancy, tmp_path: Path) -> None:
    with pytest.raises(OSError), tenancy.serve(certfile=str(tmp_path / "none.pem")):
        pytest.fail("it must not start")


def test_agents_listener_has_no_admin_side(served: Served) -> None:
    url = f"{served.url}/admin/environments/{ENVIRONMENT}/grants"
    assert httpx.post(url, trust_env=False).status_code == 404


async def test_admin_publishes_reveals_and_reads(
    tenancy: FakeTenancy, client: TenancyClient
) -> None:
    with serve(tenancy.admin) as served:
        async with httpx.AsyncClient(base_url=served.url, trust_env=False) as admin:
            environment = f"/admin/environments/{ENVIRONMENT}"
            revealed = await admin.post(f"{environment}/grants")
            grant = Secret(revealed.json()["grant"])
            put = await admin.put(f"{environment}/manifest", json={"generation": 5})
            answer = await client.fetch_manifest(grant, etag=None, wait=0)
            assert answer.etag == put.json()["etag"]
            await client.send_reports(grant, [{"report_id": "a"}])
            reports = await admin.get(f"{environment}/reports")
            assert reports.json() == {"reports": [{"report_id": "a"}]}
            key = await admin.get("/admin/public-key")
            assert key.text == tenancy.issuer.public_key_pem
            assert (await admin.put(f"{environment}/manifest", content=b"{")).status_code == 400
            await admin.post(f"{environment}/grants")
        error = await refused(client.fetch_manifest(grant, etag=None, wait=0))
    assert error.reason is Reason.GRANT_SUPERSEDED


async def test_server_program_serves_until_sigterm_and_prints_no_grant() -> None:
    command = [sys.executable, "-m", "monky_deployd.demo.tenancy_server", "--port", "0"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        lines = [(await process.stdout.readline()).decode() for _ in range(2)]
        found = [re.fullmatch(r"(tenancy|admin) (http://127\.0\.0\.1:\d+)\n", x) for x in lines]
        url = {match.group(1): match.group(2) for match in found if match}
        async with httpx.AsyncClient(trust_env=False) as http:
            slug = f"environments/{ENVIRONMENT}"
            grant = (await http.post(f"{url['admin']}/admin/{slug}/grants")).json()["grant"]
            await http.put(f"{url['admin']}/admin/{slug}/manifest", json={"generation": 1})
            headers = {"Authorization": f"Bearer {grant}"}
            manifest = await http.get(f"{url['tenancy']}/v1/{slug}/manifest", headers=headers)
        assert manifest.json() == {"generation": 1}
    finally:
        os.kill(process.pid, signal.SIGTERM)
        rest = await process.stdout.read()
    assert await process.wait() == 0
    assert rest == b""
