"""The Ansible role's variables: defaults, argument_specs and README.md say the same."""

import re
from pathlib import Path
from typing import Any

import yaml

ROLE = Path(__file__).parents[2] / "packaging/ansible/roles/monky_deployd"
DEFAULTS: dict[str, Any] = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
OPTIONS: dict[str, Any] = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())[
    "argument_specs"
]["main"]["options"]


def test_the_documented_defaults_are_the_roles() -> None:
    documented = {
        name: option["default"] for name, option in OPTIONS.items() if "default" in option
    }
    assert documented == DEFAULTS


def test_what_has_no_default_is_required() -> None:
    required = {name for name, option in OPTIONS.items() if option.get("required")}
    assert required == set(OPTIONS) - set(DEFAULTS)


def test_the_readme_lists_every_variable_with_its_default() -> None:
    readme = (ROLE / "README.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|(.*?)\|", readme, re.MULTILINE)
    assert {name: yaml.safe_load(value.strip(" `")) for name, value in rows} == {
        name: option.get("default") for name, option in OPTIONS.items()
    }
