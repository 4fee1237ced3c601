"""A site for each Compose that the agent supports, shared by the cases: they only read it."""

from pathlib import Path

import pytest

from monky_deployd.demo.engine import Engine
from tests.real.policy.cases import Site


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> Site:
    """With the host's own Compose."""
    return Site.make(tmp_path_factory.mktemp("site"), engine.socket, None)


@pytest.fixture(scope="session")
def old_site(tmp_path_factory: pytest.TempPathFactory, engine: Engine, compose_226: Path) -> Site:
    """With the oldest Compose that is supported."""
    return Site.make(tmp_path_factory.mktemp("site"), engine.socket, compose_226)
