"""One pass: each way through the phases, and the pull."""

import base64
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monky_deployd.clients.compose import Ran
from monky_deployd.domain.compose_events import ComposeEvent
from monky_deployd.domain.report import ErrorKind, Phase
from monky_deployd.errors import ExitCode, OpenBaoError, Reason
from tests.unit.agent_fakes import DB, ENV, WEB, manifest
from tests.unit.deploy_host import (
    BEFORE_PULL,
    CANARY,
    DEPLOY,
    EXITED,
    NEW_WEB,
    Bao,
    Host,
    host_in,
)

# --- the ways through a pass


async def test_a_first_deploy_goes_through_every_phase_in_order(host: Host) -> None:
    done = await host.run(manifest(7, {"web": WEB, "db": DB}, entries=[host.password()]))

    assert (done.reason, done.exit_code) == (Reason.CONVERGED, ExitCode.CONVERGED)
    assert (done.generation, done.running, done.next_try) == (7, 7, None)
    assert host.phases == [*DEPLOY, Phase.RECORD]
    assert host.compose.calls == ["readback", "model", "pull db web", "up"]
    assert {(s.service, s.state, s.good) for s in done.services} == {
        ("db", "running", True),
        ("web", "running", True),
    }
    assert host.releases.current() == done.release
    assert host.file(".env").read_text() == f'DB_PASSWORD="{CANARY}"\n'
    assert stat.S_IMODE(host.file(".env").stat().st_mode) == 0o600


async def test_what_runs_already_is_looked_at_and_left_alone(host: Host) -> None:
    await host.deploy(manifest())
    before = host.what_runs

    done = await host.run(manifest())

    assert done.reason is Reason.UP_TO_DATE
    assert host.phases == [*BEFORE_PULL, Phase.RECORD]
    assert host.compose.calls == ["model"]
    assert host.what_runs == before


# --- a credential that is refused


REFUSED = ComposeEvent(id="web", error="unauthorized: authentication required", text="Error")


def robot(host: Host, password: str) -> dict[str, Any]:
    host.openbao.put(f"{ENV}/robot", {"username": "robot", "password": password})
    return {
        "name": "robot",
        "path": f"{ENV}/robot",
        "use": "registry-auth",
        "registry_host": "reg.example",
    }


def rotate_at_the_pull(host: Host, password: str) -> None:
    """OpenBao gets the new password when the registry refuses the old one; then it pulls."""
    pull = host.compose.pull

    async def pull_and_rotate(*args: Any, **kwargs: Any) -> Ran:
        ran = await pull(*args, **kwargs)
        if not kwargs["keep_going"]:
            robot(host, password)
            host.compose.pull_says.clear()
            host.compose.alone_says.clear()
        return ran

    host.compose.pull = pull_and_rotate  # type: ignore[method-assign]


async def test_a_credential_that_is_new_by_now_is_tried_at_once(host: Host) -> None:
    body = manifest(entries=[robot(host, "the first password")])
    host.compose.pull_says["web"] = host.compose.alone_says["web"] = REFUSED
    rotate_at_the_pull(host, "the second password")

    done = await host.run(body)

    assert done.reason is Reason.CONVERGED
    assert host.compose.calls.count("pull web") == 2
    login = json.loads((host.compose.docker_config / "config.json").read_text())
    auth = base64.b64decode(login["auths"]["reg.example"]["auth"]).decode()
    assert auth == "robot:the second password"
    assert "second" not in host.scrubber.scrub("it says the second password")


async def test_what_no_credential_can_mend_is_not_tried_twice(host: Host) -> None:
    body = manifest(entries=[robot(host, "the first password")])
    missing = ComposeEvent(id="web", error="manifest unknown: manifest unknown", text="Error")
    host.compose.pull_says["web"] = host.compose.alone_says["web"] = missing
    rotate_at_the_pull(host, "the second password")
    done = await host.run(body)
    assert done.faults[0].kind is ErrorKind.NOT_FOUND
    assert host.compose.calls.count("pull web") == 1


async def test_the_same_credential_is_not_tried_twice(host: Host) -> None:
    body = manifest(entries=[robot(host, "the only password")])
    host.compose.pull_says["web"] = host.compose.alone_says["web"] = REFUSED
    done = await host.run(body)
    assert done.reason is Reason.PULL_FAILED
    assert host.compose.calls.count("pull web") == 1


# --- secrets that change


async def test_a_changed_value_is_seen_and_a_new_version_of_the_same_is_not(host: Host) -> None:
    body = manifest(entries=[host.password()])
    await host.deploy(body)
    assert not await host.reconciler.secrets_changed(body, host.grant)
    host.password()
    assert not await host.reconciler.secrets_changed(body, host.grant)
    host.openbao.put(f"{ENV}/db", {"password": "another one"})
    assert await host.reconciler.secrets_changed(body, host.grant)


async def test_a_value_that_is_gone_is_a_change_too(host: Host) -> None:
    body = manifest(entries=[host.password()])
    await host.deploy(body)
    host.openbao.put(f"{ENV}/db", {"another": "key"})
    assert await host.reconciler.secrets_changed(body, host.grant)


async def test_an_openbao_that_does_not_answer_says_nothing_about_it(host: Host) -> None:
    body = manifest(entries=[host.password()])
    await host.deploy(body)
    host.openbao.seal()
    try:
        with pytest.raises(OpenBaoError):
            await host.reconciler.secrets_changed(body, host.grant)
    finally:
        host.openbao.unseal()


async def test_a_container_that_is_gone_is_brought_back_without_asking_the_registry(
    host: Host,
) -> None:
    await host.deploy(manifest(services={"web": WEB, "db": DB}))
    host.engine.remove("db")

    done = await host.run(manifest(services={"web": WEB, "db": DB}))

    assert done.reason is Reason.CONVERGED
    assert not any(call.startswith("pull") for call in host.compose.calls)
    assert {c.service for c in host.engine.containers_now} == {"web", "db"}


async def test_an_image_that_is_gone_is_pulled_and_no_other(host: Host) -> None:
    await host.deploy(manifest(services={"web": WEB, "db": DB}))
    host.engine.remove("db")
    del host.engine.images[DB]

    done = await host.run(manifest(services={"web": WEB, "db": DB}))

    assert done.reason is Reason.CONVERGED
    assert "pull db" in host.compose.calls


async def test_a_repair_that_fails_is_tried_again_and_changes_no_release(host: Host) -> None:
    await host.deploy(manifest(1))
    await host.deploy(manifest(2))
    current = host.releases.current()
    host.engine.remove("web")
    host.compose.comes_up_as[WEB] = EXITED

    done = await host.run(manifest(2))

    assert (done.reason, done.phase, done.running) == (Reason.UNHEALTHY, Phase.VERIFY, 2)
    assert done.next_try
    assert host.touched == ["up"]
    assert host.releases.current() == current


async def test_the_hosts_own_compose_files_stand_in_where_the_manifest_has_none(
    tmp_path: Path, bao: Bao
) -> None:
    own = tmp_path / "compose.yaml"
    own.write_text(json.dumps({"services": {"web": {"image": WEB}}}))
    body = json.loads(manifest())
    del body["compose"]
    with host_in(tmp_path, bao, docker={"compose_files": [str(own)]}) as host:
        await host.deploy(json.dumps(body).encode())

        assert host.file("host-0-compose.yaml").read_bytes() == own.read_bytes()

        own.write_bytes(b"\xff")
        done = await host.run(json.dumps(body).encode())
    assert (done.reason, done.phase) == (Reason.MANIFEST_INVALID, Phase.RENDER)
    assert f"the host's compose file {own} is not UTF-8" in done.sentence


async def test_the_same_generation_with_other_content_is_applied_and_named(host: Host) -> None:
    await host.deploy(manifest(3))
    done = await host.deploy(manifest(3, {"web": NEW_WEB}))
    assert "tenancy published generation 3 twice" in done.notes[0]


# --- pull


def says(text: str, status: str) -> Callable[[str], ComposeEvent]:
    return lambda service: ComposeEvent(id=service, text=text, status=status)


DENIED = says("Error", "unauthorized: authentication required")
INTERRUPTED = says("Interrupted", "")


async def test_a_failed_pull_leaves_what_runs_exactly_as_it_was(host: Host) -> None:
    await host.deploy(manifest(1))
    before = host.what_runs
    env = host.file(".env").read_bytes()
    host.compose.pull_says["db"] = DENIED("db")
    entry = {"name": "LEVEL", "value": "2"}

    done = await host.run(manifest(2, {"web": WEB, "db": DB}, entries=[entry]))

    assert (done.reason, done.phase) == (Reason.PULL_FAILED, Phase.PULL)
    assert (done.generation, done.running) == (2, 1)
    assert done.sentence.endswith("; generation 1 keeps running")
    assert host.phases == [*BEFORE_PULL, Phase.PULL]
    assert host.touched == []
    assert host.what_runs == before
    assert host.file(".env").read_bytes() == env
    [fault] = done.faults
    assert (fault.service, fault.image, fault.registry) == ("db", DB, "reg.example")
    assert (fault.kind, fault.message) == (
        ErrorKind.AUTH,
        "unauthorized: authentication required",
    )
    assert "no registry-auth entry for host reg.example" in fault.hint


async def test_the_hint_knows_whether_the_manifest_has_a_credential(host: Host) -> None:
    host.compose.pull_says["web"] = DENIED("web")
    robot = {
        "name": "robot",
        "value": "robot$shop+pull:pw",
        "use": "registry-auth",
        "registry_host": "reg.example",
    }
    done = await host.run(manifest(entries=[robot]))
    assert "the manifest's credential for host reg.example was not enough" in done.faults[0].hint


async def test_a_service_without_words_of_its_own_is_pulled_alone_for_them(host: Host) -> None:
    host.compose.pull_says = {"db": INTERRUPTED("db"), "web": INTERRUPTED("web")}
    host.compose.alone_says["db"] = ComposeEvent(error="no space left on device")

    done = await host.run(manifest(services={"web": WEB, "db": DB}))

    assert host.compose.calls == ["model", "pull db web", "pull-alone db", "pull-alone web"]
    assert [(f.service, f.kind, f.message) for f in done.faults] == [
        ("db", ErrorKind.DISK, "no space left on device")
    ]


async def test_what_works_alone_was_no_fault(host: Host) -> None:
    host.compose.pull_says["web"] = INTERRUPTED("web")
    await host.deploy(manifest())


async def test_a_pull_that_says_nothing_is_told_with_its_exit_code(host: Host) -> None:
    host.compose.pull_says["web"] = host.compose.alone_says["web"] = ComposeEvent(
        id="web", text="Pulling"
    )
    done = await host.run(manifest())
    assert done.faults[0].message == "docker compose pull ended with exit code 1 and said nothing"


@pytest.mark.parametrize(
    ("timed_out", "calls"),
    [
        ("pull", ["pull db web"]),
        ("pull-alone", ["pull db web", "pull-alone db"]),
    ],
)
async def test_when_the_time_is_up_no_other_service_takes_as_long_again(
    host: Host, timed_out: str, calls: list[str]
) -> None:
    pulling = {name: ComposeEvent(id=name, text="Pulling") for name in ("web", "db")}
    host.compose.pull_says = host.compose.alone_says = pulling
    host.compose.timed_out = {timed_out}

    done = await host.run(manifest(services={"web": WEB, "db": DB}))

    assert [call for call in host.compose.calls if "pull" in call] == calls
    assert {(f.service, f.kind) for f in done.faults} == {
        ("db", ErrorKind.TIMEOUT),
        ("web", ErrorKind.TIMEOUT),
    }
    assert "docker.pull_timeout" in done.faults[0].message


@pytest.mark.parametrize(
    ("policy", "local", "calls"),
    [
        ("always", [WEB, DB], ["pull db web"]),
        ("missing", [WEB], ["pull db"]),
        ("missing", [WEB, DB], []),
        ("never", [WEB, DB], []),
    ],
)
async def test_only_what_the_pull_policy_wants_is_pulled(
    host: Host, policy: str, local: list[str], calls: list[str]
) -> None:
    host.engine.images = {ref: f"sha256:{ref}" for ref in local}
    await host.deploy(manifest(services={"web": WEB, "db": DB}, deploy={"pull": policy}))
    assert [call for call in host.compose.calls if "pull" in call] == calls
