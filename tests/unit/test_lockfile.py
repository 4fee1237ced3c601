"""packaging/requirements.lock: it is what pyproject.toml asks for, pinned and hashed."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "packaging/requirements.lock").read_text()
WANTED = [
    Requirement(line)
    for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
]
REMEDY = "run packaging/lock.sh"


def test_every_dependency_is_locked_within_its_bounds() -> None:
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", LOCK, re.MULTILINE))
    versions = {canonicalize_name(name): version for name, version in locked.items()}
    assert WANTED
    for wanted in WANTED:
        version = versions.get(canonicalize_name(wanted.name))
        assert version is not None, f"{wanted.name} is not locked: {REMEDY}"
        assert wanted.specifier.contains(version), f"{wanted} is locked as {version}: {REMEDY}"


def test_it_holds_versions_with_their_hashes_and_nothing_else_such_as_an_index() -> None:
    for pin in LOCK.replace("\\\n", " ").splitlines():
        assert re.fullmatch(r"[\w.-]+==[\w.]+(\s+--hash=sha256:[0-9a-f]{64})+", pin), pin
