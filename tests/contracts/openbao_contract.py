"""What the agent relies on in OpenBao: the same clauses for the stand-in and the real server.

Each clause gets a `World` and uses an environment name of its own, so that a server may be shared.
"""

import traceback
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import pytest

from monky_deployd.clients.openbao import OpenBaoClient
from monky_deployd.demo.grants import GrantIssuer
from monky_deployd.domain.config import OpenBaoCfg, OverlayCfg
from monky_deployd.domain.secret import Secret
from monky_deployd.errors import OpenBaoError, Reason

CANARY = "canary-4b7e-not-to-be-seen"


class Server(Protocol):
    """What both servers offer to a test."""

    url: str

    def put(self, path: str, data: Mapping[str, Any]) -> int: ...
    def delete(self, path: str) -> None: ...
    def undelete(self, path: str, version: int) -> None: ...
    def destroy(self, path: str, version: int) -> None: ...
    def seal(self) -> None: ...
    def unseal(self) -> None: ...


@dataclass(frozen=True)
class World:
    """A server that trusts `issuer`, and ways to look at and to end an environment's tokens."""

    server: Server
    issuer: GrantIssuer
    live_tokens: Callable[[str], int]
    revoke_tokens: Callable[[str], None]

    def client(self, **settings: Any) -> OpenBaoClient:
        return OpenBaoClient(OpenBaoCfg(url=self.server.url, **settings), OverlayCfg())

    def grant(self, environment: str, **claims: Any) -> Secret:
        return Secret(self.issuer.issue(environment, **claims))


Clause = Callable[[World], Awaitable[None]]
CLAUSES: list[Clause] = []


def clause(function: Clause) -> Clause:
    CLAUSES.append(function)
    return function


def new_environment() -> str:
    return f"env-{uuid.uuid4().hex[:12]}"


@contextmanager
def refusal(reason: Reason, *phrases: str, hidden: tuple[Secret, ...] = ()) -> Iterator[None]:
    """Expect an OpenBaoError of `reason` whose message has `phrases` and no secret in it."""
    with pytest.raises(OpenBaoError) as caught:
        yield
    assert caught.value.reason == reason
    message = str(caught.value)
    assert "\n" not in message
    for phrase in phrases:
        assert phrase in message
    assert_silent(caught.value, CANARY, *(secret.reveal() for secret in hidden))


def assert_silent(error: BaseException, *texts: str) -> None:
    """Nothing that a traceback or a log of `error` could show has one of `texts` in it."""
    shown = "".join(traceback.format_exception(error))
    link: BaseException | None = error
    while link is not None:
        shown += f"{link} {link!r} {link.args} {getattr(link, 'doc', '')}"
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    for text in texts:
        assert text not in shown


@clause
async def reads_its_own_secret(world: World) -> None:
    environment = new_environment()
    world.server.put(f"{environment}/app", {"user": "someone", "on": True, "list": [1, "a"]})
    async with world.client() as bao:
        await bao.login(world.grant(environment))
        secret = await bao.read(f"{environment}/app", entry="APP")
    assert dict(secret.data) == {"user": "someone", "on": True, "list": [1, "a"]}
    assert secret.version == 1


@clause
async def reads_the_newest_version(world: World) -> None:
    environment = new_environment()
    world.server.put(f"{environment}/app", {"value": "old"})
    world.server.put(f"{environment}/app", {"value": "new"})
    async with world.client() as bao:
        await bao.login(world.grant(environment))
        secret = await bao.read(f"/{environment}/app/", entry="APP")
    assert (secret.data["value"], secret.version) == ("new", 2)


@clause
async def reads_paths_with_unusual_characters(world: World) -> None:
    environment = new_environment()
    async with world.client() as bao:
        await bao.login(world.grant(environment))
        for name in ("a b+c", "what?#", "50%2F50", "größe"):
            world.server.put(f"{environment}/{name}", {"value": name})
            secret = await bao.read(f"{environment}/{name}", entry="APP")
            assert secret.data["value"] == name


@clause
async def tells_a_deleted_secret_from_a_missing_one(world: World) -> None:
    environment = new_environment()
    path = f"{environment}/app"
    version = world.server.put(path, {"value": CANARY})
    world.server.delete(path)
    today = datetime.now(UTC).date().isoformat()
    async with world.client() as bao:
        await bao.login(world.grant(environment))
        with refusal(
            Reason.SECRET_DELETED,
            f"entry 'APP' (secret/{path}): the newest version, 1, was deleted at {today}",
            f"bao kv undelete -versions=1 secret/{path}",
        ):
            await bao.read(path, entry="APP")
        world.server.undelete(path, version)
        assert (await bao.read(path, entry="APP")).data["value"] == CANARY


@clause
async def tells_a_destroyed_secret_from_a_missing_one(world: World) -> None:
    environment = new_environment()
    path = f"{environment}/app"
    world.server.put(path, {"value": "old"})
    world.server.destroy(path, world.server.put(path, {"value": CANARY}))
    async with world.client() as bao:
        await bao.login(world.grant(environment))
        with refusal(
            Reason.SECRET_DESTROYED, f"'APP' (secret/{path})", "newest version, 2, is destroyed"
        ):
            await bao.read(path, entry="APP")


@clause
async def names_a_secret_that_never_was(world: World) -> None:
    environment = new_environment()
    async with world.client() as bao:
        await bao.login(world.grant(environment))
        with refusal(
            Reason.SECRET_MISSING,
            f"entry 'APP' (secret/{environment}/nope): OpenBao has no such secret",
        ):
            await bao.read(f"{environment}/nope", entry="APP")


@clause
async def keeps_environments_apart(world: World) -> None:
    mine, other = new_environment(), new_environment()
    world.server.put(f"{other}/app", {"value": CANARY})
    async with world.client() as bao:
        await bao.login(world.grant(mine))
        with refusal(
            Reason.OPENBAO_FORBIDDEN, f"entry 'APP' (secret/{other}/app)", "permission denied"
        ):
            await bao.read(f"{other}/app", entry="APP")


@clause
async def says_that_a_grant_has_expired(world: World) -> None:
    grant = world.grant(new_environment(), lifetime=timedelta(minutes=-10))
    async with world.client() as bao:
        with refusal(
            Reason.GRANT_EXPIRED,
            "the grant has expired (this host's clock agrees with OpenBao's)",
            "OpenBao says: error validating token: invalid expiration time (exp) claim",
            hidden=(grant,),
        ):
            await bao.login(grant)


@clause
async def says_that_a_grant_is_not_yet_valid(world: World) -> None:
    later = datetime.now(UTC) + timedelta(minutes=10)
    grant = world.grant(new_environment(), not_before=later)
    async with world.client() as bao:
        with refusal(
            Reason.GRANT_NOT_YET_VALID,
            "the grant is not valid yet (this host's clock agrees with OpenBao's)",
            "invalid not before (nbf) claim: token not yet valid",
            hidden=(grant,),
        ):
            await bao.login(grant)


@clause
async def refuses_a_grant_for_another_audience(world: World) -> None:
    grant = world.grant(new_environment(), audience="somewhere-else")
    async with world.client() as bao:
        with refusal(Reason.OPENBAO_LOGIN_REFUSED, "another audience", hidden=(grant,)):
            await bao.login(grant)


@clause
async def refuses_a_grant_of_another_signer(world: World) -> None:
    grant = Secret(GrantIssuer().issue(new_environment()))
    async with world.client() as bao:
        with refusal(
            Reason.OPENBAO_LOGIN_REFUSED, "no key that OpenBao trusts fits", hidden=(grant,)
        ):
            await bao.login(grant)


@clause
async def refuses_what_is_no_jwt(world: World) -> None:
    async with world.client() as bao:
        with refusal(Reason.OPENBAO_LOGIN_REFUSED, "the grant is not a JWT"):
            await bao.login(Secret(CANARY))


@clause
async def names_a_role_that_is_missing(world: World) -> None:
    async with world.client(role="see_all") as bao:
        with refusal(Reason.OPENBAO_LOGIN_REFUSED, "does not know the role", "see_all"):
            await bao.login(world.grant(new_environment()))


@clause
async def names_an_auth_mount_that_is_missing(world: World) -> None:
    async with world.client(mount="jwt-elsewhere") as bao:
        with refusal(
            Reason.OPENBAO_LOGIN_REFUSED,
            "auth/jwt-elsewhere",
            "no auth method is mounted there",
            "permission denied",
        ):
            await bao.login(world.grant(new_environment()))


@clause
async def takes_a_superseded_grant_until_it_expires(world: World) -> None:
    environment = new_environment()
    superseded = world.grant(environment, jti="first-reveal")
    world.server.put(f"{environment}/app", {"value": "x"})
    for grant in (world.grant(environment, jti="second-reveal"), superseded, superseded):
        async with world.client() as bao:
            await bao.login(grant)
            assert (await bao.read(f"{environment}/app", entry="APP")).version == 1


@clause
async def says_that_it_is_sealed_and_works_again_afterwards(world: World) -> None:
    environment = new_environment()
    grant = world.grant(environment)
    world.server.put(f"{environment}/app", {"value": CANARY})
    async with world.client() as bao, world.client() as late:
        await bao.login(grant)
        world.server.seal()
        try:
            with refusal(Reason.OPENBAO_SEALED, "entry 'APP'", "sealed or not initialised"):
                await bao.read(f"{environment}/app", entry="APP")
            with refusal(Reason.OPENBAO_SEALED, "login to OpenBao", "sealed", hidden=(grant,)):
                await late.login(grant)
        finally:
            world.server.unseal()
        assert (await bao.read(f"{environment}/app", entry="APP")).data["value"] == CANARY


@clause
async def revokes_its_token_on_leaving(world: World) -> None:
    environment = new_environment()
    async with world.client() as bao:
        await bao.login(world.grant(environment))
        assert world.live_tokens(environment) == 1
    assert world.live_tokens(environment) == 0


@clause
async def logs_in_again_when_its_token_is_gone(world: World) -> None:
    environment = new_environment()
    world.server.put(f"{environment}/app", {"value": "x"})
    async with world.client() as bao:
        await bao.login(world.grant(environment))
        world.revoke_tokens(environment)
        assert (await bao.read(f"{environment}/app", entry="APP")).data["value"] == "x"
        assert world.live_tokens(environment) == 1
    assert world.live_tokens(environment) == 0
