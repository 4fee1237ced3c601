"""What goes wrong in a pass: each fault has its phase and reason, and no secret is in any."""

import asyncio
import json
import logging
import shutil
from collections.abc import Callable

import pytest

from monky_deployd.domain.compose_events import ComposeEvent
from monky_deployd.domain.report import ErrorKind, Outcome, Phase
from monky_deployd.errors import (
    ComposeError,
    EngineError,
    ExitCode,
    FileError,
    MonkyError,
    Reason,
)
from tests.unit.agent_fakes import ENV, WEB, manifest, running
from tests.unit.deploy_host import (
    CANARY,
    EXITED,
    NEW_WEB,
    Host,
)

# --- what goes wrong in each phase


def path_of(host: Host) -> str:
    """A path in OpenBao that no other test writes to."""
    return f"{ENV}/{host.base.name}"


def write_value(host: Host, value: str = "v") -> None:
    host.openbao.put(path_of(host), {"value": value})


def missing_secret(host: Host) -> None:
    """The entry's path was never written."""


def not_to_be_carried(host: Host) -> None:
    write_value(host, "a\0b")


def docker_config_in_the_way(host: Host) -> None:
    write_value(host)
    shutil.rmtree(host.compose.docker_config)
    host.compose.docker_config.write_text("not a directory")


def command_fails(command: str, error: MonkyError) -> Callable[[Host], None]:
    def arrange(host: Host) -> None:
        write_value(host)
        host.compose.errors[command] = error

    return arrange


def read_back_otherwise(host: Host) -> None:
    write_value(host)
    host.compose.reads_env_as["NAME"] = "w"


def engine_away(host: Host) -> None:
    write_value(host)
    host.engine.error = EngineError("the engine does not answer")


def sealed(host: Host) -> None:
    host.openbao.seal()


@pytest.mark.parametrize(
    ("arrange", "phase", "reason"),
    [
        (missing_secret, Phase.RESOLVE, Reason.SECRET_MISSING),
        (sealed, Phase.RESOLVE, Reason.OPENBAO_SEALED),
        (not_to_be_carried, Phase.RENDER, Reason.ENTRY_REFUSED),
        (docker_config_in_the_way, Phase.RENDER, Reason.DOCKER_CONFIG_UNWRITABLE),
        (read_back_otherwise, Phase.ADMIT, Reason.ENTRY_REFUSED),
        (
            command_fails("model", ComposeError("no", reason=Reason.COMPOSE_INVALID)),
            Phase.ADMIT,
            Reason.COMPOSE_INVALID,
        ),
        (engine_away, Phase.ADMIT, Reason.ENGINE_UNREACHABLE),
        (command_fails("pull", ComposeError("no")), Phase.PULL, Reason.COMPOSE_UNUSABLE),
    ],
)
async def test_a_fault_before_the_switch_has_its_phase_and_reason_and_touches_nothing(
    host: Host, arrange: Callable[[Host], None], phase: Phase, reason: Reason
) -> None:
    await host.deploy(manifest(1))
    before = host.what_runs
    arrange(host)
    entry = {"name": "NAME", "path": path_of(host)}
    try:
        done = await host.run(manifest(2, {"web": NEW_WEB}, entries=[entry]))
    finally:
        host.openbao.unseal()

    assert (done.phase, done.reason) == (phase, reason)
    assert (done.generation, done.running) == (2, 1)
    assert done.sentence.endswith("; generation 1 keeps running")
    assert done.faults[0].message in done.sentence
    assert host.touched == []
    assert host.what_runs == before


@pytest.mark.parametrize(
    ("body", "reason", "generation"),
    [
        (b"not json", Reason.MANIFEST_INVALID, None),
        (manifest(2, schema=2), Reason.MANIFEST_INVALID, None),
        (manifest(2, environment="env-b"), Reason.MANIFEST_INVALID, None),
        (manifest(4), Reason.MANIFEST_STALE, 4),
        (
            manifest(6, entries=[{"name": "N", "value": "v", "use": "new"}]),
            Reason.ENTRY_REFUSED,
            None,
        ),
    ],
    ids=["no JSON", "schema", "environment", "stale", "use"],
)
async def test_a_manifest_that_is_refused_is_not_tried_again(
    host: Host, body: bytes, reason: Reason, generation: int | None
) -> None:
    await host.deploy(manifest(5))

    done = await host.run(body)

    assert (done.reason, done.phase, done.generation) == (reason, Phase.FETCH, generation)
    assert (done.running, done.next_try) == (5, None)
    assert host.phases == []
    assert host.compose.calls == []


@pytest.mark.parametrize(
    ("command", "phase"), [("switch", Phase.SWITCH), ("up", Phase.UP), ("verify", Phase.VERIFY)]
)
async def test_a_fault_after_the_pull_has_its_phase_and_is_tried_again(
    host: Host, monkeypatch: pytest.MonkeyPatch, command: str, phase: Phase
) -> None:
    if command == "switch":

        def refuse(release_id: str) -> None:
            raise FileError("no room", reason=Reason.DISK)

        monkeypatch.setattr(host.releases, "switch", refuse)
    elif command == "up":
        host.compose.errors["up"] = ComposeError("docker can't be started")
    else:

        async def goes_away() -> None:
            host.engine.error = EngineError("the engine does not answer")

        host.compose.on_up = goes_away

    done = await host.run(manifest())
    first_try = done.next_try
    host.engine.error = None
    host.compose.errors.clear()
    host.compose.on_up = None
    monkeypatch.undo()

    assert (done.phase, done.reason) == (
        phase,
        {
            "switch": Reason.DISK,
            "up": Reason.COMPOSE_UNUSABLE,
            "verify": Reason.ENGINE_UNREACHABLE,
        }[command],
    )
    assert done.faults[0].kind is (ErrorKind.DISK if command == "switch" else ErrorKind.OTHER)
    assert first_try
    assert (await host.run(manifest())).reason is Reason.CONVERGED


async def test_the_other_sides_wish_to_be_left_alone_reaches_the_next_try(host: Host) -> None:
    host.compose.errors["model"] = ComposeError("busy", retry_after=1000)
    done = await host.run(manifest())
    assert done.next_try
    assert (done.next_try - done.finished_at).total_seconds() >= 1000


# --- secrets, bugs and interruptions


async def leaks(host: Host) -> list[Outcome]:
    """Passes in which every part of the host says the secret."""
    body = manifest(entries=[host.password()], deploy={"on_failure": "keep"})
    found = []
    host.compose.errors["model"] = ComposeError(f'unexpected character in "{CANARY}"')
    found.append(await host.run(body))
    host.compose.errors["model"] = LookupError(CANARY)
    found.append(await host.run(body))
    host.compose.errors.clear()
    host.compose.comes_up_as[WEB] = {**EXITED, "error": f"exec: {CANARY}: not found"}
    found.append(await host.run(body))
    host.compose.up_says = (ComposeEvent(error=f"no {CANARY}"),)
    found.append(await host.run(body))
    return found


async def test_no_secret_is_in_any_outcome_whoever_said_it(host: Host) -> None:
    for done in await leaks(host):
        assert not done.good
        assert CANARY not in json.dumps(done.as_json())
        assert "[secret]" in done.faults[0].message
    assert CANARY not in json.dumps([report.body for report in host.store.pending(100)])
    assert CANARY.encode() not in (host.base / "state.db").read_bytes()


async def test_a_fault_of_the_agents_own_is_an_outcome_that_is_reported_logged_and_retried(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    await host.deploy(manifest(1))
    before = host.what_runs
    host.compose.errors["model"] = KeyError("services")

    done = await host.run(manifest(2))

    assert (done.reason, done.phase) == (Reason.INTERNAL, Phase.ADMIT)
    assert done.exit_code is ExitCode.DEPLOY_FAILED
    assert done.sentence == (
        "a fault of the agent's own: KeyError: 'services'; please report it, with the journal; "
        "generation 1 keeps running"
    )
    assert done.next_try
    assert host.what_runs == before
    assert host.store.pending(10)[-1].body["outcome"] == "internal"
    [record] = [r for r in caplog.records if r.name.endswith("reconcile")]
    assert record.levelno == logging.ERROR
    assert record.exc_info
    assert record.monky["reason"] == "internal"  # type: ignore[attr-defined]

    again = await host.run(manifest(2))
    assert again.faults[0].count == 2
    host.compose.errors.clear()
    assert (await host.run(manifest(2))).reason is Reason.CONVERGED


async def test_a_pass_that_is_interrupted_says_where_and_the_next_one_converges(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    begun = asyncio.Event()

    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    host.compose.on_up = hang
    async with running(host.run(manifest())):
        await begun.wait()

    [record] = [r for r in caplog.records if r.name.endswith("reconcile")]
    assert "interrupted in phase up" in record.getMessage()
    assert record.monky["reason"] == "interrupted"  # type: ignore[attr-defined]
    assert host.store.pending(10) == []
    host.compose.on_up = None
    assert (await host.run(manifest())).reason is Reason.CONVERGED


async def test_openbao_is_asked_only_for_what_the_manifest_names_and_its_token_is_revoked(
    host: Host,
) -> None:
    await host.deploy(manifest(1, entries=[{"name": "PLAIN", "value": "v"}]))
    assert host.openbao.live_tokens(ENV) == 0
    password = host.password()
    await host.deploy(manifest(2, entries=[password, {**password, "name": "AGAIN"}]))
    assert host.openbao.live_tokens(ENV) == 0
    assert host.file(".env").read_text().count(CANARY) == 2


async def test_registry_credentials_are_in_dockers_config_and_never_in_the_release(
    host: Host,
) -> None:
    host.openbao.put(f"{ENV}/robot", {"username": "robot$shop+pull", "password": CANARY})
    entry = {
        "name": "robot",
        "path": f"{ENV}/robot",
        "use": "registry-auth",
        "registry_host": "reg.example",
    }
    await host.deploy(manifest(entries=[entry]))

    written = json.loads((host.compose.docker_config / "config.json").read_text())
    assert set(written["auths"]) == {"reg.example"}
    assert host.file(".env").read_text() == ""
    assert host.scrubber.scrub(f"robot said {CANARY}") == "robot said [secret]"
