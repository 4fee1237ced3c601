"""packaging/install.sh where it needs no host: its help, its refusals, and what it has from the
agent. The rest is tested on booted hosts."""

import subprocess
from pathlib import Path

import pytest

from monky_deployd.agent.contact import Contact
from monky_deployd.host.config_file import DEFAULT_CONFIG_PATH

SCRIPT = Path(__file__).parents[2] / "packaging/install.sh"
OPTIONS = (
    *("--from", "--offline", "--config", "--grant", "--no-start", "--wait", "--dry-run"),
    *("--uninstall", "--purge", "--rollback", "--help"),
)


def install_sh(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", str(SCRIPT), *options], capture_output=True, text=True)


def test_it_waits_for_the_words_that_the_agents_status_has() -> None:
    assert f'*"{Contact().sentence}"*' in SCRIPT.read_text()


def test_it_puts_the_config_where_the_agent_looks_for_it() -> None:
    assert f"etc={DEFAULT_CONFIG_PATH.parent}\n" in SCRIPT.read_text()
    assert f"config=$etc/{DEFAULT_CONFIG_PATH.name}\n" in SCRIPT.read_text()


def test_its_help_names_every_option_and_needs_no_root() -> None:
    shown = install_sh("--help")
    assert shown.returncode == 0
    assert all(option in shown.stdout for option in OPTIONS)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--sideways"], "unknown option --sideways; see --help"),
        (["--config"], "--config needs a value; see --help"),
        (["--purge"], "--purge goes with --uninstall"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(options: list[str], sentence: str) -> None:
    done = install_sh(*options)
    assert (done.returncode, done.stderr) == (1, f"install.sh: {sentence}\n")
