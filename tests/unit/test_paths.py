"""Which paths out of a manifest may name a file, and which get in each other's way."""

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monky_deployd.domain.paths import Claims, safe_relative_path

GOOD = ["a", "tls/key.pem", "a b/c", ".hidden", "..a", "a..", "...", "ünï/日本", "a:b", "x" * 200]

TRICKS = [
    ("", "is empty"),
    ("./", "is empty"),
    ("/", "is absolute"),
    ("/etc/passwd", "is absolute"),
    (".//etc/passwd", "is absolute"),
    ("..", "'..' part"),
    ("../up", "'..' part"),
    ("a/../../up", "'..' part"),
    ("a/..", "'..' part"),
    ("./../up", "'..' part"),
    (".", "'.' or"),
    ("././a", "'.' or"),
    ("a/./b", "'.' or"),
    ("a//b", "empty"),
    ("a/", "empty"),
    ("a\\b", "backslash"),
    ("..\\up", "backslash"),
    ("a\0b", "control"),
    ("a\nb", "control"),
    ("a\x1b[31m", "control"),
    ("a\x7f", "control"),
    ("a\x85", "control"),
    ("a\u200b", "invisible"),
    ("a\u202eb", "invisible"),
    ("a\u2028b", "invisible"),
    ("\ufeffa", "invisible"),
    ("a\u00adb", "invisible"),
    ("a\ud800", "invisible"),
    ("e\u0301", "NFC"),
    ("\u212b", "NFC"),
    ("x" * 513, "longer than 512"),
    ("x" * 201, "longer than 200 bytes"),
    ("日" * 67, "longer than 200 bytes"),
]


@pytest.mark.parametrize("path", GOOD)
def test_an_honest_path_is_taken_as_it_stands(path: str) -> None:
    assert safe_relative_path(path) == path
    assert safe_relative_path(f"./{path}") == path


@pytest.mark.parametrize(("path", "phrase"), TRICKS, ids=[ascii(path)[:24] for path, _ in TRICKS])
def test_a_trick_is_refused_with_its_phrase(path: str, phrase: str) -> None:
    with pytest.raises(ValueError, match=phrase):
        safe_relative_path(path)


@given(st.text(st.sampled_from("./\\ab\0"), max_size=12) | st.text(max_size=12))
def test_whatever_is_taken_stays_below_its_directory(path: str) -> None:
    try:
        clean = safe_relative_path(path)
    except ValueError:
        return
    assert posixpath.normpath(f"/release/{clean}") == f"/release/{clean}"
    assert safe_relative_path(clean) == clean


@pytest.mark.parametrize(
    ("first", "second"),
    [("a", "a"), ("a", "./a"), ("a", "a/b/c"), ("a/b/c", "a"), ("a/b/c", "a/b")],
)
def test_two_files_that_can_not_both_be_there_collide(first: str, second: str) -> None:
    claims = Claims()
    claims.take(first, "the first")
    with pytest.raises(ValueError, match="collides with the first"):
        claims.take(second, "the second")


def test_files_side_by_side_do_not_collide() -> None:
    claims = Claims()
    for path in ["a/b", "a/c", "ab", "a.b", "A", "b/a"]:
        assert claims.take(path, "someone") == path


def test_a_path_that_is_not_safe_can_not_be_taken() -> None:
    with pytest.raises(ValueError, match="is absolute"):
        Claims().take("/etc/passwd", "someone")
