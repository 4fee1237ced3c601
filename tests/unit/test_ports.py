"""Tenancy's two ports: the agent dials the intercept's, and never the in-pod listener's."""

import re
import subprocess
from pathlib import Path

import yaml

from monky_deployd.demo.tenancy_server import IN_POD_PORT
from monky_deployd.domain.config import TenancyCfg
from tests.parts import require

ROOT = Path(__file__).parents[2]
INTERCEPT_PORT = 443


def only_match(pattern: str, path: str) -> int:
    (found,) = re.findall(pattern, (ROOT / path).read_text(), re.MULTILINE)
    return int(found)


def test_every_default_that_names_tenancys_port_is_the_intercepts() -> None:
    role = "packaging/ansible/roles/monky_deployd"
    defaults = yaml.safe_load((ROOT / role / "defaults/main.yml").read_text())
    documented = yaml.safe_load((ROOT / role / "meta/argument_specs.yml").read_text())
    options = documented["argument_specs"]["main"]["options"]
    found = {
        "TenancyCfg.port": TenancyCfg(host="tenancy.example").port,
        "config.example.yaml": only_match(r"^  # port: (\d+)$", "config.example.yaml"),
        "packaging/install.sh": only_match(r"^tenancy_port=(\d+)$", "packaging/install.sh"),
        "the role": defaults["monky_deployd_tenancy_port"],
        "the role's documentation": options["monky_deployd_tenancy_port"]["default"],
    }
    assert found == dict.fromkeys(found, INTERCEPT_PORT)


def test_the_in_pod_port_is_named_only_where_it_is_about_the_pod() -> None:
    number = str(80) + str(81)
    assert str(IN_POD_PORT) == number
    # As a word: the lock file's hashes may hold these four digits.
    found = subprocess.run(
        ["git", "grep", "--line-number", "--word-regexp", number],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    require("a git checkout", found.returncode <= 1, "clone the repository")
    hits = [line.split(":", 2) for line in found.stdout.splitlines()]
    assert {path for path, _, _ in hits} == {"PROTOCOL.md", "monky_deployd/demo/tenancy_server.py"}
    assert all("inside its pod" in text or text.startswith("IN_POD_PORT") for _, _, text in hits)
