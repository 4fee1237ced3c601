"""The grant in use: the warnings before its end."""

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from monky_deployd.agent import grants as module
from monky_deployd.agent.grants import GrantKeeper
from monky_deployd.demo.grants import GrantIssuer
from monky_deployd.domain.grant import Grant, expiry_warning, last_days, parse_grant
from monky_deployd.domain.secret import Scrubber
from monky_deployd.host.grant import GrantFile
from tests.unit.agent_fakes import ENV

ISSUER = GrantIssuer()
NOW = datetime(2026, 12, 1, 3, 0, tzinfo=UTC)


def grant(left: timedelta) -> Grant:
    """A grant that ends in `left`, by NOW."""
    return parse_grant(ISSUER.issue(ENV, not_before=NOW - timedelta(days=1), lifetime=left + ONE))


ONE = timedelta(days=1)


@pytest.mark.parametrize(
    ("left", "days", "words"),
    [
        (timedelta(days=14, hours=1), None, ""),
        (timedelta(days=14), 14, "in 14 days, on 2026-12-15 03:00Z"),
        (timedelta(days=7, hours=1), 14, "in 7 days"),
        (timedelta(days=7), 7, "in 7 days"),
        (timedelta(days=3), 3, "in 3 days"),
        (timedelta(days=1, hours=1), 3, "in 25 hours"),
        (timedelta(days=1), 1, "in 24 hours"),
        (timedelta(minutes=5), 1, "in 0 hours"),
        (timedelta(seconds=-1), None, ""),
    ],
)
def test_a_grant_is_warned_of_in_its_last_days(
    left: timedelta, days: int | None, words: str
) -> None:
    assert last_days(grant(left), NOW) == days
    warning = expiry_warning(grant(left), NOW)
    assert words in warning
    assert bool(warning) is bool(words)
    assert not warning or "`monky-deployd grant install`" in warning


class Days:
    """Stands for `datetime`: the day is what the test says."""

    def __init__(self) -> None:
        self.moment = NOW

    def now(self, zone: object) -> datetime:
        return self.moment


def put(path: Path, left: timedelta) -> None:
    """Install a grant that ends in `left`, as an operator does: a new file with its name."""
    fresh = path.with_suffix(".new")
    fresh.touch(mode=0o600)
    fresh.write_text(ISSUER.issue(ENV, not_before=NOW - ONE, lifetime=left + ONE))
    fresh.replace(path)


def test_each_warning_is_logged_once_and_told_in_every_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    days = Days()
    monkeypatch.setattr(module, "datetime", days)
    caplog.set_level(logging.WARNING)
    keeper = GrantKeeper(GrantFile(tmp_path / "grant"), ENV, Scrubber())
    assert keeper.notes() == (), "no grant was read yet"
    put(tmp_path / "grant", timedelta(days=20))
    keeper.current()

    told = []
    for day in range(22):
        days.moment = NOW + timedelta(days=day)
        told.append(len(keeper.notes()))
        assert keeper.notes() == keeper.notes()
    assert told == [0] * 6 + [1] * 15 + [0]
    lefts = [record.getMessage().split(" in ")[1].split(",")[0] for record in caplog.records]
    assert lefts == ["14 days", "7 days", "3 days", "24 hours"]


def test_a_new_grant_is_warned_of_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "datetime", Days())
    caplog.set_level(logging.WARNING)
    keeper = GrantKeeper(GrantFile(tmp_path / "grant"), ENV, Scrubber())
    for left in (timedelta(days=2), timedelta(days=2), timedelta(days=30)):
        put(tmp_path / "grant", left)
        keeper.current()
        keeper.notes()
    assert len(caplog.records) == 2
    assert keeper.notes() == ()
