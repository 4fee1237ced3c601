"""What the tests of whole passes share: a host to make them on, and an OpenBao beside it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.deploy_host import Bao, Host, host_in, serving_openbao


@pytest.fixture(scope="module")
def bao() -> Iterator[Bao]:
    """An OpenBao for all tests of a module: each writes to paths of its own."""
    with serving_openbao() as served:
        yield served


@pytest.fixture
def host(tmp_path: Path, bao: Bao) -> Iterator[Host]:
    """A host on which nothing was deployed yet."""
    with host_in(tmp_path, bao) as made:
        yield made
