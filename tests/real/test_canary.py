"""Every secret of a full run is looked for wherever it has no business: there must be none.

One agent goes through a good deploy, each kind of failure, crashes and every command, in its most
talkative log. The tests then search what it said, sent, kept and handed to its children.
"""

import base64
import json
import shutil
import signal
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import pytest

from monky_deployd.demo.engine import Engine
from monky_deployd.demo.images import make_image
from monky_deployd.demo.registry import Registry
from monky_deployd.domain.secret import Secret
from tests.real.canaries import OPENBAO_TOKEN
from tests.real.canary_run import (
    KEY_TARGET,
    Run,
    Values,
    compose_plugin,
    is_allowed,
    make_all_steps,
    recorder,
)
from tests.real.world import World

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def canary_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    registry = Registry.start(tmp_path_factory.mktemp("registry"))
    try:
        yield registry
    finally:
        registry.stop()


@pytest.fixture(scope="module")
def run(
    lasting_world: World,
    canary_registry: Registry,
    engine: Engine,
    run_label: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Run:
    """The whole run, made once."""
    world, values = lasting_world, Values()
    world.registry = canary_registry
    image = make_image(engine, canary_registry, f"{world.slug}/web", "1", label=run_label)
    canary_registry.rotate(Secret(values.registry))
    seen = tmp_path_factory.mktemp("seen")
    docker = recorder(seen.parent / f"{seen.name}-docker", shutil.which("docker") or "", seen)
    world.use_compose(recorder(seen.parent / f"{seen.name}-compose", compose_plugin(), seen))
    world.settle_time = 1
    world.configure(log={"level": "debug"}, docker={"binary": str(docker)})
    made = Run(world, values, image, seen)
    values.grants.append(world.grant_file.read_text())
    make_all_steps(made)
    return made


# The searcher itself

FORMS: dict[str, Callable[[str], str]] = {
    "raw": str,
    "lower": str.lower,
    "json": json.dumps,
    "json-in-json": lambda value: json.dumps(json.dumps(value)),
    "repr": repr,
    "url": lambda value: quote(value, safe=""),
    **{
        f"base64-{shift}": lambda value, shift=shift: base64.b64encode(
            b"abc"[:shift] + value.encode() + b"tail"
        ).decode()
        for shift in range(3)
    },
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_searcher_finds_a_planted_canary(form: Callable[[str], str]) -> None:
    values = Values(grants=["aGVhZGVy.c4n4ryClaims.c4n4rySignature"])
    canaries = values.canaries("robot$estate+reader")
    planted = [values.password, values.whole_address, values.registry, *values.grants]
    for value in (*planted, *values.address, values.key.split("\n")[3]):
        assert canaries.found_in(f"before {form(value)} after".encode())
    assert canaries.found_in(b"before, [secret], after") == []


# What came of the run


def test_each_step_ended_as_it_was_meant_to(run: Run) -> None:
    assert run.ended == {
        "good": (0, "converged"),
        "up to date": (0, "up-to-date"),
        "login refused": (1, "pull-failed"),
        "no such tag": (1, "pull-failed"),
        "no image reference": (1, "pull-failed"),
        "whole value quoted": (1, "compose-invalid"),
        "parts quoted by ports": (1, "compose-invalid"),
        "parts quoted by volumes": (1, "compose-invalid"),
        "parts quoted by sizes": (1, "compose-invalid"),
        "plan, whole value quoted": (1, "compose-invalid"),
        "plan, parts quoted by ports": (1, "compose-invalid"),
        "plan, parts quoted by volumes": (1, "compose-invalid"),
        "plan, parts quoted by sizes": (1, "compose-invalid"),
        "for people": (1, ""),
        "policy": (4, "policy-refused"),
        "forbidden": (3, "openbao-forbidden"),
        "no such secret": (3, "secret-missing"),
        "no such key": (3, "secret-missing"),
        "no way to carry it": (1, "entry-refused"),
        "target refused": (1, "entry-refused"),
        "login of another shape": (1, "entry-refused"),
        "rolled back": (1, "rolled-back"),
        "fault": (1, "internal"),
        "uncaught": (1, ""),
        "aborted": (-signal.SIGABRT, ""),
        "tenancy is down": (3, "tenancy-unreachable"),
        "superseded": (3, "grant-superseded"),
        "doctor, superseded": (3, ""),
        "grant install --check": (0, ""),
        "grant install": (0, ""),
        "config show": (0, ""),
        "config show --json": (0, ""),
        "plan": (0, ""),
        "plan --json": (0, ""),
        "status": (3, ""),
        "status --json": (3, ""),
        "doctor": (0, ""),
        "doctor --json": (0, ""),
        "grant show": (0, ""),
        "grant show --json": (0, ""),
        "config check": (0, ""),
    }


def test_no_step_says_a_secret(run: Run) -> None:
    found = {step: run.canaries.found_in(text.encode()) for step, text in run.said.items()}
    assert {step: names for step, names in found.items() if names} == {}
    # Both crashes show where they were, and that something was masked there.
    for step in ("fault", "uncaught"):
        assert "Traceback (most recent call last)" in run.said[step]
        assert "no use of [secret] in {" in run.said[step]
    assert "Fatal Python error: Aborted" in run.said["aborted"]


def test_no_report_holds_a_secret(run: Run) -> None:
    reports = run.world.tenancy.received(run.world.slug)
    assert len(reports) >= 15
    found = [run.canaries.found_in(json.dumps(report).encode()) for report in reports]
    assert found == [[]] * len(reports)


def test_the_database_holds_no_secret_after_any_step(run: Run) -> None:
    assert all(run.databases.values())
    found = {step: run.canaries.found_in(content) for step, content in run.databases.items()}
    assert {step: names for step, names in found.items() if names} == {}


def test_no_child_gets_a_secret_by_its_arguments_or_environment(run: Run) -> None:
    recorded = sorted(run.seen.iterdir())
    programs = {path.name.rsplit("-", 2)[-2] for path in recorded}
    assert programs == {"docker", "compose"}
    assert len(recorded) > 40
    content = [path.read_bytes() for path in recorded]
    assert all(b"DOCKER_CONFIG=" in text for text in content)
    # The agent that was aborted may be gone before its child looks at it.
    assert len([text for text in content if b"monky_deployd" in text]) > 20
    assert [run.canaries.found_in(text) for text in content] == [[]] * len(content)


def test_secrets_lie_only_in_their_places_and_with_their_modes(run: Run) -> None:
    found = {path: run.canaries.found_in(file.read_bytes()) for path, file in run.state_files()}
    astray = {path: names for path, names in found.items() if names and not is_allowed(path)}
    assert astray == {}
    assert "current" in {path.name for path in run.world.state.iterdir()}
    kept = {Path(path).name for path, names in found.items() if names}
    assert kept == {".env", "config.json", "tls.key"}
    modes = {path: stat.S_IMODE(file.stat().st_mode) for path, file in run.state_files()}
    open_to_others = {
        path: oct(mode)
        for path, mode in modes.items()
        if mode != (0o444 if path.endswith(KEY_TARGET) else 0o600)
    }
    assert open_to_others == {}
    # Below a release others may go on, for containers whose user isn't root: past it they can't.
    state = run.world.state
    doors = [state, state / "releases", *(state / "releases").iterdir(), state / "docker"]
    assert {oct(stat.S_IMODE(door.stat().st_mode)) for door in doors} == {"0o700"}


def test_the_container_has_what_it_was_meant_to_have(run: Run) -> None:
    """The same searcher, where the secrets do belong: were they never there, all would be well."""
    variables = run.world.variables("web")
    assert variables[b"PASSWORD"].decode() == run.values.password
    assert variables[b"FROM"].decode() == run.values.whole_address
    assert run.world.inside("web", "cat", "/run/tls.key").decode() == run.values.key
    assert run.canaries.found_in(run.world.grant_file.read_bytes())


def test_a_token_of_openbao_would_be_recognised(run: Run) -> None:
    made = run.world.openbao.api("POST", "auth/token/create", {"ttl": "1m"})
    assert OPENBAO_TOKEN.fullmatch(made["auth"]["client_token"].encode())


def test_a_crash_leaves_no_core(run: Run) -> None:
    places: Sequence[Path] = (Path.cwd(), run.world.base, run.world.state)
    assert [path for place in places for path in place.glob("core*")] == []
