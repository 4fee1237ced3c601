"""The matrix of faults: one run for all its tests, and its table at the end."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from monky_deployd.demo.engine import Engine
from monky_deployd.demo.grants import GrantIssuer
from monky_deployd.demo.registry import Registry
from tests.real.faults.bench import Parts
from tests.real.faults.matrix import Matrix, Result, table
from tests.real.faults.soak import SUMMARIES

if TYPE_CHECKING:
    from monky_deployd.demo.openbao import OpenBao

RESULTS: list[Result] = []


@pytest.fixture(scope="session")
def parts(
    engine: Engine,
    registry: Registry,
    openbao: "OpenBao",
    issuer: GrantIssuer,
    image: Callable[..., str],
) -> Parts:
    """What the benches share."""
    return Parts(engine, registry, openbao, issuer, image)


@pytest.fixture(scope="session")
def matrix(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, parts: Parts
) -> Iterator[Matrix]:
    """The cases that were asked for, under way."""
    from tests.real.faults.test_matrix import GROUPS

    calls = [getattr(item, "callspec", None) for item in request.session.items]
    names = {call.params["name"] for call in calls if call and "name" in call.params}
    played = Matrix(tmp_path_factory.mktemp("matrix"), parts, GROUPS, names)
    try:
        yield played
    finally:
        played.close()
        RESULTS.extend(played.results.values())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of the matrix, and what the soak came to."""
    if RESULTS:
        terminalreporter.section(f"fault matrix: {len(RESULTS)} combinations")
        for line in table(RESULTS):
            terminalreporter.write_line(line)
    if SUMMARIES:
        terminalreporter.section("soak")
        for line in SUMMARIES:
            terminalreporter.write_line(line)
