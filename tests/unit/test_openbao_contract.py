"""The OpenBao client against the stand-in, which keeps the same contract as the real server."""

import logging
from collections.abc import Iterator

import pytest

from monky_deployd.clients.openbao import OpenBaoClient
from monky_deployd.demo.fake_openbao import FakeBao
from monky_deployd.demo.grants import GrantIssuer
from monky_deployd.domain.config import OpenBaoCfg, OverlayCfg
from monky_deployd.errors import OpenBaoError
from tests.contracts.openbao_contract import CANARY, CLAUSES, Clause, World, new_environment


@pytest.fixture(scope="module")
def issuer() -> GrantIssuer:
    return GrantIssuer()


@pytest.fixture(scope="module")
def world(issuer: GrantIssuer) -> Iterator[World]:
    with FakeBao.serving(issuer.public_key_pem) as fake:
        yield World(fake, issuer, live_tokens=fake.live_tokens, revoke_tokens=fake.revoke_tokens)


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.__name__)
async def test_stand_in_keeps_the_contract(clause: Clause, world: World) -> None:
    await clause(world)


async def test_proxy_mapping_changes_only_where_the_socket_is_dialled(world: World) -> None:
    environment = new_environment()
    world.server.put(f"{environment}/app", {"value": "x"})
    cfg = OpenBaoCfg(url="http://bao.internal:8200", allow_plain_http=True)
    overlay = OverlayCfg(proxy={"bao.internal:8200": world.server.url.removeprefix("http://")})
    async with OpenBaoClient(cfg, overlay) as bao:
        await bao.login(world.grant(environment))
        assert (await bao.read(f"{environment}/app", entry="APP")).data["value"] == "x"


async def test_nothing_secret_is_logged_at_any_level(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    environment = new_environment()
    grant = world.grant(environment)
    world.server.put(f"{environment}/app", {"value": CANARY})
    with caplog.at_level(logging.DEBUG):
        async with world.client() as bao:
            await bao.login(grant)
            await bao.read(f"{environment}/app", entry="APP")
            with pytest.raises(OpenBaoError):
                await bao.read(f"{environment}/nope", entry="APP")
    assert "httpx" in {record.name for record in caplog.records}
    for text in (CANARY, grant.reveal()):
        assert text not in caplog.text
