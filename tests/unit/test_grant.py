"""The grant: who may own its file, what it must be, and noticing a new one."""

import base64
import contextlib
import errno
import json
import os
import socket
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monky_deployd.domain.grant import check_times, parse_grant
from monky_deployd.errors import ExitCode, GrantError, Reason
from monky_deployd.host.grant import GrantFile, Identity, check_permissions, read_grant
from tests.unit.dying import fails_with

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
        ('[{"grant": "x"}]', "JSON document"),
        ("abc", "three parts"),
        (f"e30.e30.{CANARY}.e30.e30", "three parts"),
        (f"Bearer e30.e30.{CANARY}", "white space stands inside"),
        (f"e30.e30.\r\n{CANARY}", "white space stands inside"),
        ("e30.e30.", "not base64url"),
        (f"e30.e30=.{CANARY}", "not base64url"),
        (f"e30.a+b/.{CANARY}", "not base64url"),
        (f"e30.e.{CANARY}", "base64url of JSON"),
        (f"W10.e30.{CANARY}", "not an object"),
        (f"a.b.{CANARY}", "base64url"),
        (f"e30.bm90IGpzb24.{CANARY}", "base64url of JSON"),
        (f"e30.W10.{CANARY}", "not an object"),
        (jwt(exp="soon"), "claim exp is not a time"),
        (jwt(nbf=True), "claim nbf is not a time"),
        (jwt(iat=10**30), "claim iat is not a time"),
        (jwt(exp=float("nan")), "base64url of JSON"),
        (jwt(exp=NOW.timestamp() * 1000), "claim exp is not a time"),
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
        (
            {"nbf": 61},
            Reason.GRANT_NOT_YET_VALID,
            "valid from 2026-12-01 12:01:01Z on, and this host's clock says 2026-12-01 12:00:00Z; "
            "check this host's clock",
        ),
        # OpenBao 2.7.2 refuses this one in the words that it has for nbf.
        ({"nbf": 0, "iat": 61}, Reason.GRANT_NOT_YET_VALID, "check this host's clock"),
        ({"exp": -59, "nbf": 59, "iat": 59}, None, ""),
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


def status(uid: int, gid: int, mode: int) -> os.stat_result:
    return os.stat_result((mode, 1, 1, 1, uid, gid, 1, 0, 0, 0))


@pytest.mark.parametrize(
    ("uid", "gid", "mode", "remedy"),
    [
        (ME, OTHER, 0o600, None),
        (ME, OTHER, 0o400, None),
        (ME, MY_GROUP, 0o640, "has mode 0640; chmod 0600 PATH"),
        (ME, OTHER, 0o604, "has mode 0604; chmod 0600 PATH"),
        (ME, OTHER, 0o700, "has mode 0700; chmod 0600 PATH"),
        (ME, OTHER, 0o4600, "has mode 4600; chmod 0600 PATH"),
        (0, MY_GROUP, 0o640, None),
        (0, MY_GROUP, 0o644, "has mode 0644; chmod 0640 PATH"),
        (0, MY_GROUP, 0o660, "has mode 0660; chmod 0640 PATH"),
        (0, MY_GROUP, 0o600, "has mode 0600; chmod 0640 PATH"),
        (
            0,
            OTHER,
            0o640,
            f"belongs to root:{OTHER} with mode 0640; "
            f"chown root:{MY_GROUP} PATH && chmod 0640 PATH",
        ),
        (
            OTHER,
            MY_GROUP,
            0o640,
            f"belongs to {OTHER}:{MY_GROUP} with mode 0640; chown {ME} PATH && chmod 0600 PATH",
        ),
        (
            OTHER,
            OTHER,
            0o600,
            f"belongs to {OTHER}:{OTHER} with mode 0600; chown {ME} PATH && chmod 0600 PATH",
        ),
    ],
)
def test_only_a_file_that_this_agent_alone_can_read_is_taken(
    uid: int, gid: int, mode: int, remedy: str | None
) -> None:
    path, me = Path("/etc/the grant"), Identity(ME, frozenset({MY_GROUP}))
    judged = status(uid, gid, stat.S_IFREG | mode)
    if remedy is None:
        check_permissions(path, judged, me)
        return
    with pytest.raises(GrantError) as caught:
        check_permissions(path, judged, me)
    words = remedy.replace("PATH", "'/etc/the grant'")
    assert str(caught.value) == f"the grant file /etc/the grant {words}"
    assert caught.value.reason is Reason.GRANT_UNSAFE
    assert caught.value.exit_code is ExitCode.CONFIGURATION


@pytest.mark.parametrize(
    ("gids", "gid", "mode", "remedy"),
    [
        ({0}, 0, 0o600, None),
        ({0}, 0, 0o400, None),
        ({0}, 0, 0o644, "chmod 0600 "),
        # Root, looking on behalf of a service user with this group.
        ({0, MY_GROUP}, MY_GROUP, 0o640, None),
    ],
)
def test_root_takes_its_own_file(gids: set[int], gid: int, mode: int, remedy: str | None) -> None:
    judged, me = status(0, gid, stat.S_IFREG | mode), Identity(0, frozenset(gids))
    if remedy is None:
        check_permissions(Path("/g"), judged, me)
        return
    with pytest.raises(GrantError, match=remedy):
        check_permissions(Path("/g"), judged, me)


def test_a_group_that_others_share_is_not_the_agents_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getgroups", lambda: [os.getegid(), OTHER])
    assert Identity.current() == Identity(os.geteuid(), frozenset({os.getegid()}))


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFDIR])
def test_only_a_regular_file_is_taken(kind: int) -> None:
    with pytest.raises(GrantError, match="not a regular file; remove it") as caught:
        check_permissions(
            Path("/g"), status(ME, MY_GROUP, kind | 0o600), Identity(ME, frozenset({MY_GROUP}))
        )
    assert caught.value.reason is Reason.GRANT_UNSAFE


@pytest.mark.parametrize("kind", ["symlink", "fifo", "socket", "directory"])
def test_what_is_no_regular_file_is_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "grant"
    with contextlib.ExitStack() as stack:
        if kind == "symlink":
            write_grant(tmp_path / "real", GRANT)
            path.symlink_to("real")
        elif kind == "fifo":
            os.mkfifo(path, 0o600)
        elif kind == "socket":
            stack.enter_context(socket.socket(socket.AF_UNIX)).bind(str(path))
        else:
            path.mkdir(mode=0o600)
        with pytest.raises(GrantError, match="grant is not a regular file; remove it"):
            read_grant(path, Identity.current())


def test_the_file_that_is_read_is_the_one_that_was_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "grant"
    write_grant(path, GRANT)
    write_grant(tmp_path / "unsafe", jwt(jti="unsafe"), 0o644)
    real = os.open

    def swap(name: Any, *args: Any, **kwargs: Any) -> int:
        (tmp_path / "unsafe").replace(path)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(os, "open", swap)
    with pytest.raises(GrantError, match="has mode 0644"):
        read_grant(path, Identity.current())


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(GrantError, match=r"there is no grant at .*grant install") as caught:
        read_grant(tmp_path / "grant", Identity.current())
    assert caught.value.reason is Reason.GRANT_MISSING


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "grant: the grant is empty; install"),
        (b'{"grant": "x"}', "grant: this is a JSON document, not a grant; install only"),
        (GRANT.encode("utf-16"), "not UTF-8 text, so it holds no grant; Windows tools"),
        (b"x" * 70_000, "larger than 65536 bytes; install"),
    ],
)
def test_a_file_without_a_grant_is_named_with_the_remedy(
    tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "grant").write_bytes(content)
    (tmp_path / "grant").chmod(0o600)
    with pytest.raises(GrantError, match=words) as caught:
        read_grant(tmp_path / "grant", Identity.current())
    assert caught.value.reason is Reason.GRANT_MALFORMED
    assert str(tmp_path / "grant") in str(caught.value)


def test_a_file_that_the_system_refuses_is_judged_before_its_words_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_grant(tmp_path / "grant", GRANT, 0o644)

    def read_refused(words: str) -> None:
        with pytest.raises(GrantError, match=words) as caught:
            read_grant(tmp_path / "grant", Identity.current())
        assert caught.value.reason is Reason.GRANT_UNSAFE

    fails_with(monkeypatch, "open", errno.EACCES, lambda: read_refused("0644; chmod 0600"))
    (tmp_path / "grant").chmod(0o600)
    fails_with(monkeypatch, "open", errno.EACCES, lambda: read_refused("Permission denied; check"))


def write_grant(path: Path, grant: str, mode: int = 0o600) -> None:
    path.write_text(grant)
    path.chmod(mode)


def test_a_new_file_a_mended_mode_and_a_file_that_appears_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "grant"
    file = GrantFile(path)
    with pytest.raises(GrantError):
        file.load()
    assert not file.changed()

    write_grant(path, GRANT, 0o644)
    assert file.changed()
    with pytest.raises(GrantError, match="chmod"):
        file.load()
    assert not file.changed()

    path.chmod(0o600)
    assert file.changed()
    assert file.load().jti == "j1"
    assert not file.changed()

    fresh = tmp_path / "fresh"
    write_grant(fresh, jwt(jti="j2"))
    fresh.replace(path)
    assert file.changed()
    assert file.load().jti == "j2"


def test_a_systemd_credential_is_taken_before_the_file(tmp_path: Path) -> None:
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    write_grant(credentials / "grant", GRANT, 0o440)
    assert GrantFile(tmp_path / "grant", credentials).load().jti == "j1"


def test_without_such_a_credential_the_file_is_used(tmp_path: Path) -> None:
    write_grant(tmp_path / "grant", GRANT)
    assert GrantFile(tmp_path / "grant", tmp_path / "credentials").load().jti == "j1"
