"""The client against a real OpenBao server: the contract, and what only the real one can say."""

import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from monky_deployd.clients.openbao import OpenBaoClient
from monky_deployd.demo import openbao as starter
from monky_deployd.demo.grants import GrantIssuer
from monky_deployd.demo.openbao import OpenBao
from monky_deployd.domain.kv import pick_value
from monky_deployd.domain.secret import Secret
from monky_deployd.errors import MonkyError, Reason
from tests.contracts.openbao_contract import CLAUSES, Clause, World, new_environment, refusal

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def issuer() -> GrantIssuer:
    return GrantIssuer()


@pytest.fixture
def world(openbao: OpenBao, issuer: GrantIssuer) -> World:
    openbao.configure(issuer.public_key_pem)
    return World(
        server=openbao,
        issuer=issuer,
        live_tokens=lambda environment: len(accessors(openbao, environment)),
        revoke_tokens=lambda environment: revoke(openbao, environment),
    )


@pytest.fixture
def mount(openbao: OpenBao) -> Iterator[Callable[[str, str], None]]:
    """`mount(path, version)` enables a KV engine there until the test is over."""
    mounted = []

    def enable(path: str, version: str) -> None:
        openbao.api("POST", f"sys/mounts/{path}", {"type": "kv", "options": {"version": version}})
        mounted.append(path)

    yield enable
    for path in mounted:
        openbao.api("DELETE", f"sys/mounts/{path}")


@pytest.fixture
def role(openbao: OpenBao, world: World) -> Iterator[Callable[..., None]]:
    """`role(token_num_uses=1)` changes the role until the test is over."""
    path = "auth/jwt-tenancy/role/see_env"
    before = openbao.api("GET", path)["data"]

    def change(**changes: Any) -> None:
        openbao.api("POST", path, {**before, **changes})

    yield change
    openbao.api("POST", path, before)


@pytest.fixture
def policy(openbao: OpenBao, role: Callable[..., None]) -> Callable[[str], None]:
    """`policy(hcl)` is all that the role allows until the test is over."""

    def allow(hcl: str) -> None:
        openbao.api("POST", "sys/policies/acl/test", {"policy": hcl})
        role(token_policies=["test"])

    return allow


def accessors(openbao: OpenBao, environment: str) -> list[str]:
    found = []
    for accessor in openbao.api("LIST", "auth/token/accessors")["data"]["keys"]:
        try:
            looked_up = openbao.api("POST", "auth/token/lookup-accessor", {"accessor": accessor})
        except MonkyError:
            continue
        if (looked_up["data"]["meta"] or {}).get("environment") == environment:
            found.append(accessor)
    return found


def revoke(openbao: OpenBao, environment: str) -> None:
    for accessor in accessors(openbao, environment):
        openbao.api("POST", "auth/token/revoke-accessor", {"accessor": accessor})


async def logged_in(client: OpenBaoClient, world: World, environment: str) -> None:
    await client.login(world.grant(environment))


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.__name__)
async def test_real_server_keeps_the_contract(clause: Clause, world: World) -> None:
    await clause(world)


async def test_mount_that_is_missing_reads_as_forbidden_to_an_environment(world: World) -> None:
    environment = new_environment()
    async with world.client(kv_mount="nomount") as bao:
        await logged_in(bao, world, environment)
        with refusal(Reason.OPENBAO_FORBIDDEN, "permission denied", "openbao.kv_mount"):
            await bao.read(f"{environment}/app", entry="APP")


async def test_mount_that_is_missing_is_named_where_the_policy_is_wider(
    world: World, policy: Callable[[str], None]
) -> None:
    policy('path "nomount/*" { capabilities = ["read"] }')
    async with world.client(kv_mount="nomount") as bao:
        await logged_in(bao, world, new_environment())
        with refusal(Reason.OPENBAO_ERROR, "nothing is mounted at nomount", "no handler for route"):
            await bao.read("any/app", entry="APP")


async def test_kv_mount_that_is_not_the_root_of_the_mount_is_named(
    world: World, policy: Callable[[str], None]
) -> None:
    policy('path "secret/*" { capabilities = ["read"] }')
    async with world.client(kv_mount="secret/deeper") as bao:
        await logged_in(bao, world, new_environment())
        with refusal(Reason.OPENBAO_ERROR, "not the root of a KV version 2 mount", "Invalid path"):
            await bao.read("any/app", entry="APP")


async def test_version_1_mount_is_named_as_the_likely_cause(
    world: World,
    openbao: OpenBao,
    policy: Callable[[str], None],
    mount: Callable[[str, str], None],
) -> None:
    mount("kv1", "1")
    openbao.api("POST", "kv1/any/app", {"value": "x"})
    openbao.api("POST", "kv1/data/any/odd", {"value": "x"})
    policy('path "kv1/*" { capabilities = ["read"] }')
    async with world.client(kv_mount="kv1") as bao:
        await logged_in(bao, world, new_environment())
        with refusal(Reason.SECRET_MISSING, "openbao.kv_mount must be a KV version 2 mount"):
            await bao.read("any/app", entry="APP")
        with refusal(Reason.OPENBAO_ERROR, "is kv1 of version 1?"):
            await bao.read("any/odd", entry="APP")


async def test_unknown_namespace_is_named(world: World) -> None:
    async with world.client(namespace="nowhere") as bao:
        with refusal(Reason.OPENBAO_ERROR, "no such namespace", "correct openbao.namespace"):
            await bao.login(world.grant(new_environment()))


async def test_path_that_repeats_the_mount_gets_a_hint(world: World) -> None:
    environment = new_environment()
    async with world.client() as bao:
        await logged_in(bao, world, environment)
        with refusal(Reason.OPENBAO_FORBIDDEN, "leave out the mount and data/"):
            await bao.read(f"secret/data/{environment}/app", entry="APP")


async def test_numbers_that_the_server_rewrites_are_refused(world: World) -> None:
    environment = new_environment()
    world.server.put(f"{environment}/app", {"id": 12345678901234567890, "deep": {"id": 2**60}})
    async with world.client() as bao:
        await logged_in(bao, world, environment)
        secret = await bao.read(f"{environment}/app", entry="APP")
    assert secret.data["id"] != 12345678901234567890
    for key in ("id", "deep"):
        with refusal(Reason.ENTRY_REFUSED, f"key '{key}'", "as a string"):
            pick_value(secret, entry="APP", path="app", key=key, whole_json=False)


async def test_values_keep_every_character(world: World) -> None:
    environment = new_environment()
    value = "<&> \"quotes\" \\ 'more' $HOME line\nline\r\n\ttab ü €"
    world.server.put(f"{environment}/app", {"value": value})
    async with world.client() as bao:
        await logged_in(bao, world, environment)
        secret = await bao.read(f"{environment}/app", entry="APP")
    assert pick_value(secret, entry="A", path="p", key=None, whole_json=False) == Secret(value)


async def test_claim_that_the_role_asks_for_is_named(
    world: World, role: Callable[..., None]
) -> None:
    role(bound_claims={"tenant": "x"})
    async with world.client() as bao:
        with refusal(Reason.OPENBAO_LOGIN_REFUSED, "lacks a claim", 'claim "tenant" is missing'):
            await bao.login(world.grant(new_environment()))


async def test_last_use_of_a_limited_token_is_followed_by_a_new_login(
    world: World, openbao: OpenBao, role: Callable[..., None]
) -> None:
    environment = new_environment()
    role(token_num_uses=1)
    openbao.put(f"{environment}/app", {"value": "x"})
    async with world.client() as bao:
        await logged_in(bao, world, environment)
        for _ in range(3):
            assert (await bao.read(f"{environment}/app", entry="APP")).version == 1


def test_starter_takes_another_port_when_somebody_was_quicker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1], starter._free_port()])
        monkeypatch.setattr(starter, "_free_port", lambda: next(ports))
        server = OpenBao.start(tmp_path)
        try:
            assert server.api("GET", "sys/health")["initialized"]
        finally:
            server.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/v1/sys/health", trust_env=False)
    log = tmp_path / "openbao.log"
    assert server.root_token.reveal() in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
