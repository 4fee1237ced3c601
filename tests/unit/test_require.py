"""A part that a test needs and the machine lacks."""

import pytest

from tests import parts


@pytest.fixture(autouse=True)
def missing(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An empty list of missing parts, so that this run's own summary stays true."""
    found: dict[str, str] = {}
    monkeypatch.setattr(parts, "MISSING", found)
    return found


def test_a_part_that_is_there_changes_nothing(missing: dict[str, str]) -> None:
    parts.require("dockerd", True, "install it")
    assert missing == {}


def test_a_missing_part_fails_under_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="dockerd is missing: install it"):
        parts.require("dockerd", False, "install it")


def test_a_missing_part_is_skipped_and_noted_elsewhere(
    monkeypatch: pytest.MonkeyPatch, missing: dict[str, str]
) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="dockerd is missing: install it"):
        parts.require("dockerd", False, "install it")
    assert missing == {"dockerd": "install it"}
