"""The grant: who may own its file, what it must be, and noticing a new one."""

import base64
import contextlib
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monky_deployd.domain.grant import check_times, parse_grant
from monky_deployd.errors import ExitCode, GrantError, Reason
from monky_deployd.host.grant import GrantFile, Identity, read_grant

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
ME, MY_GROUP, OTHER = 4001, 4002, 4003
CANARY = "canary-signature"


def jwt(**claims: Any) -> str:
    def part(document: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")

    return f"{part({'alg': 'ES256'})}.{part(claims)}.{CANARY}"


GRANT = jwt(environment="env-1", jti="j1", exp=NOW.timestamp() + 60, nbf=NOW.timestamp() - 60)


def test_the_claims_are_read_without_verifying() -> None:
    grant = parse_grant(f"\ufeff {GRANT}\r\n")
    assert grant.token.reveal() == GRANT
    assert (grant.environment, grant.jti, grant.identity) == ("env-1", "j1", "j1")
    assert grant.expires_at == NOW + timedelta(seconds=60)
    assert CANARY not in repr(grant)


def test_the_subject_stands_in_for_a_missing_environment() -> None:
    assert parse_grant(jwt(sub="env-2")).environment == "env-2"


def test_a_grant_without_jti_is_named_by_a_short_hash() -> None:
    assert len(parse_grant(jwt()).identity) == 12


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ('{"grant": "x"}', "JSON document, not a grant; install only the kit's grant value"),
        ("abc", "three parts"),
        (f"a.b.{CANARY}", "base64url"),
        (f"e30.bm90IGpzb24.{CANARY}", "base64url of JSON"),
        (f"e30.W10.{CANARY}", "not an object"),
        (jwt(exp="soon"), "claim exp is not a time"),
        (jwt(nbf=True), "claim nbf is not a time"),
        (jwt(iat=10**30), "claim iat is not a time"),
    ],
)
def test_what_is_no_grant_is_refused_without_quoting_it(text: str, words: str) -> None:
    with pytest.raises(GrantError, match=words) as caught:
        parse_grant(text)
    assert caught.value.reason is Reason.GRANT_MALFORMED
    assert CANARY not in str(caught.value)


@given(st.text())
def test_no_text_raises_anything_but_a_grant_error(text: str) -> None:
    with contextlib.suppress(GrantError):
        parse_grant(text)


@pytest.mark.parametrize(
    ("claims", "reason", "words"),
    [
        ({"exp": -61}, Reason.GRANT_EXPIRED, "expired on 2026-12-01 11:58Z"),
        ({"nbf": 61}, Reason.GRANT_NOT_YET_VALID, "check this host's clock"),
        ({"exp": -59, "nbf": 59}, None, ""),
        ({}, None, ""),
    ],
)
def test_the_times_are_judged_with_a_minute_of_leeway(
    claims: dict[str, int], reason: Reason | None, words: str
) -> None:
    grant = parse_grant(jwt(**{k: NOW.timestamp() + v for k, v in claims.items()}))
    if reason is None:
        check_times(grant, NOW)
        return
    with pytest.raises(GrantError, match=words) as caught:
        check_times(grant, NOW)
    assert caught.value.reason is reason


@pytest.mark.parametrize(
    ("uid", "gid", "mode", "remedy"),
    [
        (ME, OTHER, 0o600, None),
        (ME, OTHER, 0o400, None),
        (ME, OTHER, 0o640, "chmod 0600"),
        (ME, OTHER, 0o604, "chmod 0600"),
        (0, MY_GROUP, 0o640, None),
        (0, OTHER, 0o640, "chgrp monky-deployd"),
        (0, MY_GROUP, 0o644, "chmod 0640"),
        (0, MY_GROUP, 0o660, "chmod 0640"),
        (0, MY_GROUP, 0o600, "chmod 0640"),
        (OTHER, MY_GROUP, 0o640, f"chown {ME}"),
    ],
)
def test_only_a_file_that_this_agent_alone_can_read_is_taken(
    tmp_path: Path, uid: int, gid: int, mode: int, remedy: str | None
) -> None:
    path = tmp_path / "grant"
    path.write_text(GRANT)
    os.chown(path, uid, gid)
    path.chmod(mode)
    me = Identity(ME, frozenset({MY_GROUP}))
    if remedy is None:
        assert read_grant(path, me).jti == "j1"
        return
    with pytest.raises(GrantError, match=remedy) as caught:
        read_grant(path, me)
    assert caught.value.reason is Reason.GRANT_UNSAFE
    assert caught.value.exit_code is ExitCode.CONFIGURATION


def test_a_symlink_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").write_text(GRANT)
    (tmp_path / "grant").symlink_to("real")
    with pytest.raises(GrantError, match="not a regular file"):
        read_grant(tmp_path / "grant", Identity.current())


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(GrantError, match="grant install") as caught:
        read_grant(tmp_path / "grant", Identity.current())
    assert caught.value.reason is Reason.GRANT_MISSING


def test_a_new_file_a_mended_mode_and_a_file_that_appears_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "grant"
    file = GrantFile(path)
    with pytest.raises(GrantError):
        file.load()
    assert not file.changed()

    path.write_text(GRANT)
    path.chmod(0o644)
    assert file.changed()
    with pytest.raises(GrantError, match="chmod"):
        file.load()
    assert not file.changed()

    path.chmod(0o600)
    assert file.changed()
    assert file.load().jti == "j1"
    assert not file.changed()

    fresh = tmp_path / "fresh"
    fresh.write_text(jwt(jti="j2"))
    fresh.chmod(0o600)
    fresh.replace(path)
    assert file.changed()
    assert file.load().jti == "j2"


def test_a_systemd_credential_is_taken_before_the_file(tmp_path: Path) -> None:
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "grant").write_text(GRANT)
    (credentials / "grant").chmod(0o440)
    assert GrantFile(tmp_path / "grant", credentials).load().jti == "j1"


def test_without_such_a_credential_the_file_is_used(tmp_path: Path) -> None:
    (tmp_path / "grant").write_text(GRANT)
    (tmp_path / "grant").chmod(0o600)
    assert GrantFile(tmp_path / "grant", tmp_path / "credentials").load().jti == "j1"
