"""The command line: what it takes, what it prints where, and what it exits with."""

import io
import json
import os
import stat
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from monky_deployd import __version__, cli
from monky_deployd.demo.grants import GrantIssuer
from monky_deployd.domain.report import Fault, Trouble
from monky_deployd.errors import Reason
from monky_deployd.host.lock import StateLock
from monky_deployd.host.store import Store
from monky_deployd.ops import enrol
from tests.unit.agent_fakes import ENV, NOW, config, outcome

COMMANDS = ["run", "once", "status", "doctor", "config", "grant"]


@pytest.fixture(autouse=True)
def no_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logging, and what happens to uncaught errors, stay the tests' own."""
    monkeypatch.setattr(cli, "setup_logging", lambda *args, **kwargs: None)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config(tmp_path).model_dump(mode="json")))
    return path


@pytest.fixture
def run(config_file: Path) -> Callable[..., int]:
    """`run("status", "--json")`: one command with the config; its exit code."""
    return lambda *args: cli.main(["--config", str(config_file), *args])


@pytest.fixture(scope="module")
def issuer() -> GrantIssuer:
    return GrantIssuer()


@pytest.fixture
def kit(tmp_path: Path, issuer: GrantIssuer) -> Path:
    """A file with a grant in it, as somebody copied it from a kit."""
    path = tmp_path / "kit.txt"
    path.write_text(f"  {issuer.issue(ENV, jti='the-jti')}\n\n")
    return path


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    return tmp_path / "grant"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- usage


@pytest.mark.parametrize("command", [[], *([command] for command in COMMANDS)])
def test_every_command_has_its_help(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*command, "--help"])
    assert ended.value.code == 0
    assert "usage: monky-deployd" in capsys.readouterr().out


def test_the_help_names_every_command_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    text = capsys.readouterr().out
    assert all(f"    {command} " in text for command in COMMANDS)
    assert all(f"  {code}  " in text for code in range(5))


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"monky-deployd {__version__}\n"


@pytest.mark.parametrize(
    "argv", [[], ["nonsense"], ["config"], ["grant"], ["grant", "install"], ["status", "--yaml"]]
)
def test_wrong_usage_ends_with_2_and_says_what_is_right(
    capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 2
    assert "usage: monky-deployd" in capsys.readouterr().err


def test_an_interrupt_ends_with_the_shells_code_for_it(
    run: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "read_status", interrupt)
    assert run("status") == 130


# --- errors


def test_an_expected_failure_is_one_sentence_on_stderr(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("status") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        f"monky-deployd: there is no state database at {tmp_path}/state/state.db; "
        "check state_dir in the configuration; the agent may not have run here yet\n"
    )


@pytest.mark.parametrize(
    ("command", "code", "reason"),
    [
        (["status", "--json"], 2, "state-unusable"),
        (["grant", "show", "--json"], 2, "grant-missing"),
        (["once", "--json"], 2, "grant-missing"),
    ],
)
def test_with_json_an_error_is_json_on_stdout_too(
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    code: int,
    reason: str,
) -> None:
    assert run(*command) == code
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert document["outcome"] == reason
    assert said.err == f"monky-deployd: {document['message']}\n"


def test_once_ends_with_3_where_tenancy_does_not_answer(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], kit: Path
) -> None:
    assert run("grant", "install", str(kit)) == 0
    capsys.readouterr()
    assert run("once", "--json") == 3
    assert json.loads(capsys.readouterr().out)["outcome"] == "tenancy-unreachable"
    assert run("status") == 3, "and status says so afterwards"


def test_a_state_directory_in_use_is_named(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    with StateLock(tmp_path / "state"):
        assert run("once", "--json") == 2
    assert json.loads(capsys.readouterr().out)["outcome"] == "state-locked"


# --- config


def test_config_check_names_what_the_config_is_for(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], config_file: Path
) -> None:
    assert run("config", "check") == 0
    assert capsys.readouterr().out == (
        f"{config_file} is valid: environment {ENV}, tenancy http://127.0.0.1:1\n"
    )


def test_config_check_names_every_fault(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], config_file: Path
) -> None:
    config_file.write_text("environment: X!\ntenancy: {hots: a}\nopenbao: {url: http://b}\n")
    assert run("config", "check") == 2
    said = capsys.readouterr()
    assert said.out == ""
    for words in (str(config_file), "environment:", "did you mean host?", "openbao"):
        assert words in said.err


def test_a_missing_config_says_where_it_was_looked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["--config", str(tmp_path / "none.yaml"), "config", "check"]) == 2
    assert str(tmp_path / "none.yaml") in capsys.readouterr().err


def test_config_show_prints_what_is_a_config_again_with_every_default(
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    config_file: Path,
    tmp_path: Path,
) -> None:
    expected = config(tmp_path).model_dump(mode="json")
    assert run("config", "show") == 0
    shown = capsys.readouterr().out
    assert yaml.safe_load(shown) == expected
    assert run("config", "show", "--json") == 0
    assert json.loads(capsys.readouterr().out) == expected

    config_file.write_text(shown)
    assert run("config", "check") == 0


# --- grant


@pytest.mark.parametrize("from_stdin", [True, False])
def test_a_grant_is_installed_from_a_file_or_stdin_and_never_printed(
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kit: Path,
    installed: Path,
    tmp_path: Path,
    from_stdin: bool,
) -> None:
    monkeypatch.setattr(enrol, "_service_group", lambda: None)
    monkeypatch.setattr(sys, "stdin", io.StringIO(kit.read_text()))
    token = kit.read_text().strip()
    old = os.umask(0)
    try:
        assert run("grant", "install", "-" if from_stdin else str(kit)) == 0
    finally:
        os.umask(old)

    assert installed.read_text() == f"{token}\n"
    assert mode(installed) == 0o600
    assert run("grant", "show") == 0
    said = capsys.readouterr()
    assert f"grant the-jti for {ENV}, until " in said.out
    assert f"is installed at {installed}" in said.out
    for part in token.split("."):
        assert part not in said.out + said.err


def test_as_root_the_grant_is_made_readable_for_the_services_group(
    run: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    kit: Path,
    installed: Path,
) -> None:
    group = os.getgroups()[0] if os.getgroups() else os.getgid()
    monkeypatch.setattr(enrol, "_service_group", lambda: group)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert run("grant", "install", str(kit)) == 0
    assert mode(installed) == 0o640
    assert installed.stat().st_gid == group


def test_a_grant_that_is_there_already_is_replaced(
    run: Callable[..., int], kit: Path, installed: Path, issuer: GrantIssuer
) -> None:
    assert run("grant", "install", str(kit)) == 0
    newer = issuer.issue(ENV)
    kit.write_text(newer)
    assert run("grant", "install", str(kit)) == 0
    assert installed.read_text().strip() == newer


def test_with_check_nothing_is_installed(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], kit: Path, installed: Path
) -> None:
    assert run("grant", "install", "--check", str(kit)) == 0
    assert "can be installed" in capsys.readouterr().out
    assert not installed.exists()


def test_grant_show_as_json_has_the_claims_and_nothing_else(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], kit: Path, installed: Path
) -> None:
    assert run("grant", "install", str(kit)) == 0
    capsys.readouterr()
    assert run("grant", "show", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["environment"], shown["jti"]) == (ENV, "the-jti")
    assert shown["path"] == str(installed)
    assert shown.keys() == {"path", "environment", "jti", "not_before", "expires_at"}
    assert datetime.fromisoformat(shown["expires_at"]) > datetime.now(UTC)


def expired(issuer: GrantIssuer) -> str:
    return issuer.issue(ENV, lifetime=-timedelta(hours=1))


def not_yet_valid(issuer: GrantIssuer) -> str:
    return issuer.issue(ENV, not_before=datetime.now(UTC) + timedelta(hours=1))


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (expired, 3, "the grant expired on"),
        (not_yet_valid, 3, "check this host's clock"),
        (lambda issuer: issuer.issue("env-b"), 3, "the grant is for environment 'env-b'"),
        (lambda issuer: "c4n4ry", 2, "not a JWT"),
        (lambda issuer: "", 2, "the grant is empty"),
    ],
    ids=["expired", "not yet valid", "another environment's", "no JWT", "empty"],
)
def test_what_is_no_good_grant_is_refused_and_the_installed_one_stays(
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    kit: Path,
    installed: Path,
    issuer: GrantIssuer,
    text: Callable[[GrantIssuer], str],
    code: int,
    words: str,
) -> None:
    assert run("grant", "install", str(kit)) == 0
    before = installed.read_bytes()
    refused = text(issuer)
    kit.write_text(refused)
    capsys.readouterr()

    assert run("grant", "install", str(kit)) == code

    said = capsys.readouterr()
    assert words in said.err
    assert said.out == ""
    assert not refused or refused not in said.err
    assert installed.read_bytes() == before


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"], ids=["missing", "not text"])
def test_a_kit_that_cannot_be_read_is_named(
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    content: bytes | None,
) -> None:
    kit = tmp_path / "kit"
    if content is not None:
        kit.write_bytes(content)
    assert run("grant", "install", str(kit)) == 2
    assert str(kit) in capsys.readouterr().err


def test_grant_show_names_what_is_wrong_with_the_file(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], kit: Path, installed: Path
) -> None:
    assert run("grant", "install", str(kit)) == 0
    installed.chmod(0o644)
    capsys.readouterr()
    assert run("grant", "show", "--json") == 2
    assert json.loads(capsys.readouterr().out)["outcome"] == "grant-unsafe"


# --- status


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state of an agent whose last pass failed."""
    directory = tmp_path / "state"
    directory.mkdir(mode=0o700)
    with Store(directory / "state.db") as store:
        good = outcome(generation=6)
        bad = outcome(
            Reason.PULL_FAILED,
            sentence="generation 7 can't be pulled",
            generation=7,
            faults=(Fault("denied", service="web", first_seen=NOW),),
            next_try=NOW,
        )
        store.record(
            good, agent_version="1", next_contact_by=NOW, applied_generation=6, good_release="6-a"
        )
        store.record(bad, agent_version="1", next_contact_by=NOW, failures=2)
    return directory


def test_status_tells_the_last_outcome_and_ends_with_its_code(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], state: Path
) -> None:
    assert run("status") == 1
    text = capsys.readouterr().out
    assert "web: denied" in text
    assert "pull-failed: generation 7 can't be pulled" in text
    assert "reports waiting: 2" in text


def test_status_as_json_is_for_programs(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], state: Path
) -> None:
    assert run("status", "--json") == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["environment"] == ENV
    assert (shown["applied_generation"], shown["good_release"]) == (6, "6-a")
    assert (shown["failures"], shown["held_release"]) == (2, None)
    assert (shown["reports_pending"], shown["reports_dropped"]) == (2, 0)
    assert shown["last_outcome"]["outcome"] == "pull-failed"
    assert shown["last_outcome"]["errors"][0]["message"] == "denied"


def test_status_tells_what_keeps_tenancy_away_and_ends_with_its_code(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], state: Path
) -> None:
    with Store(state / "state.db") as store:
        since = datetime(2026, 12, 1, 3, 0, tzinfo=UTC)
        trouble = Trouble(Reason.GRANT_SUPERSEDED, "a later grant was revealed", since)
        store.update(contact=trouble)
        store.record(outcome(), agent_version="1", next_contact_by=since, failures=0)
    assert run("status") == 3
    said = "no contact with tenancy since 2026-12-01T03:00:00.000Z: a later grant was revealed"
    assert said in capsys.readouterr().out
    assert run("status", "--json") == 3
    assert json.loads(capsys.readouterr().out)["contact"] == {
        "reason": "grant-superseded",
        "message": "a later grant was revealed",
        "since": "2026-12-01T03:00:00.000Z",
    }


def test_status_changes_nothing_and_needs_no_lock(
    run: Callable[..., int], state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(state / "state.db") as agent:
        before = agent.state()
        assert run("status") == 1
        assert agent.state() == before
