"""What the documents claim is true of the code."""

import re
from pathlib import Path

import pytest

from monky_deployd import cli
from monky_deployd.clients.compose import OLDEST_TESTED
from monky_deployd.domain.config import Config, OpenBaoCfg, TenancyCfg
from monky_deployd.domain.manifest import DEFAULT_FILE_MODE, Deploy, Use
from monky_deployd.domain.policy_rules import FIXED, SETTINGS, Rule
from monky_deployd.domain.report import ErrorKind, Phase
from monky_deployd.errors import ExitCode, Reason, exit_code

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PROTOCOL = (ROOT / "PROTOCOL.md").read_text()
OPERATIONS = (ROOT / "OPERATIONS.md").read_text()
DOCUMENTS = {"README.md": README, "PROTOCOL.md": PROTOCOL, "OPERATIONS.md": OPERATIONS}


def rows(document: str, heading: str) -> dict[str, list[str]]:
    """The table rows below `heading` whose first cell is one code word: their other cells."""
    found = {}
    section = document.split(f"### {heading}\n")[1].split("\n#")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `") and (word := re.fullmatch(r"`([a-z-]+)`", cells[0])):
            found[word[1]] = cells[1:]
    return found


def commands(document: str) -> list[str]:
    """The arguments of every `monky-deployd …` in code blocks and between backticks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", document, re.MULTILINE | re.DOTALL)
    in_blocks = re.findall(r"^\s*monky-deployd ([^#\n]+)", "\n".join(blocks), re.MULTILINE)
    return in_blocks + re.findall(r"`monky-deployd ([a-z][^`\n]+)`", document)


def test_operations_lists_every_outcome_with_its_exit_code() -> None:
    listed = {name: cells[0] for name, cells in rows(OPERATIONS, "Outcomes").items()}
    assert listed == {reason.value: str(int(exit_code(reason))) for reason in Reason}


def test_operations_lists_every_rule_of_the_policy_and_what_allows_it() -> None:
    listed = {name: cells[1] for name, cells in rows(OPERATIONS, "Rules").items()}
    assert listed.keys() == {rule.value for rule in Rule}
    for rule in Rule:
        if rule in FIXED:
            assert listed[rule] == "nothing"
        else:
            assert f"`{SETTINGS.get(rule, 'allow')}`" in listed[rule]


def test_operations_lists_every_error_kind() -> None:
    assert set(rows(OPERATIONS, "Error kinds")) == {kind.value for kind in ErrorKind}


def test_every_outcome_that_protocol_names_exists() -> None:
    known = {reason.value for reason in Reason}
    prefixes = ("grant-", "tenancy-", "openbao-", "secret-", "manifest-", "entry-")
    words = re.findall(r"`([a-z]+-[a-z-]+)`", PROTOCOL)
    named = {word for word in words if word.startswith(prefixes)}
    assert named
    assert named <= known


def test_protocol_lists_every_use_kind_and_phase() -> None:
    for word in (*Use, *ErrorKind, *Phase):
        assert f"`{word}`" in PROTOCOL, word


@pytest.mark.parametrize("name", ["README.md", "OPERATIONS.md"])
def test_every_command_in_the_documents_exists(name: str) -> None:
    parser = cli.build_parser()
    for command in commands(DOCUMENTS[name]):
        words = command.split()
        # In prose the command is named without its argument.
        parser.parse_args([*words, "-"] if words[-1] == "install" else words)


def test_readme_lists_every_exit_code() -> None:
    line = re.search(r"Exit codes: (.*?)\.\n", README, re.DOTALL)
    assert line is not None
    assert [int(code) for code in re.findall(r"\b\d\b", line[1])] == [int(c) for c in ExitCode]


def test_the_defaults_in_protocol_are_the_codes() -> None:
    tenancy, deploy = TenancyCfg(host="x"), Deploy()
    openbao = OpenBaoCfg(url="https://x")
    reports = Config.model_fields["reports"].default
    assert f"Prefer: wait={tenancy.wait}" in PROTOCOL
    assert f"`tenancy.poll_interval` ({tenancy.poll_interval:g} s)" in PROTOCOL
    assert f"mount `{openbao.mount}`, role `{openbao.role}`" in PROTOCOL
    assert f"KV mount `{openbao.kv_mount}`" in PROTOCOL
    assert f'(default `"{DEFAULT_FILE_MODE:04o}"`)' in PROTOCOL
    assert f"`reports.heartbeat_interval` ({reports.heartbeat_interval:g} s)" in PROTOCOL
    assert f"`reports.outbox_limit` ({reports.outbox_limit})" in PROTOCOL
    assert (
        f'"deploy": {{"pull": "{deploy.pull}", "wait_timeout": {deploy.wait_timeout}, '
        f'"on_failure": "{deploy.on_failure}"'
    ) in PROTOCOL


def test_the_oldest_compose_is_the_same_everywhere() -> None:
    oldest = ".".join(str(number) for number in OLDEST_TESTED)
    assert f"oldest_compose={oldest}" in (ROOT / "packaging/install.sh").read_text()
    assert f"Compose {oldest}" in README
    assert f"Compose {oldest}" in OPERATIONS


def test_every_file_that_a_document_names_exists() -> None:
    for name, document in DOCUMENTS.items():
        for path in re.findall(r"\b((?:packaging|tests|monky_deployd)/[\w./-]+\w)", document):
            assert (ROOT / path).exists(), f"{name} names {path}"
