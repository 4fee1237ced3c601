"""What all layers share: the code under test is this tree's, and missing parts are named."""

from pathlib import Path

import pytest

import monky_deployd
from tests.parts import MISSING

ROOT = Path(__file__).resolve().parent.parent


def pytest_sessionstart() -> None:
    """Refuse to test another copy of the package than the one beside these tests."""
    package = Path(monky_deployd.__file__).resolve().parent
    if package.parent != ROOT:
        pytest.exit(f"the tests of {ROOT} would import {package}; run tests/run.sh", returncode=2)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name every missing part once, at the end, where it is read."""
    if not MISSING:
        return
    terminalreporter.section("MISSING PARTS: not everything was tested", red=True, bold=True)
    for part, remedy in sorted(MISSING.items()):
        terminalreporter.write_line(f"{part}: {remedy}")
