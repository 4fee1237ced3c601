"""Where an entry's path leads to, and the text that a secret's data means."""

import json
from typing import Any

import pytest

from monky_deployd.domain.kv import KvSecret, pick_value, secret_place
from monky_deployd.domain.secret import Secret
from monky_deployd.errors import EntryError, OpenBaoError, Reason

CANARY = "canary-4b7e-not-to-be-seen"


def pick(data: dict[str, Any], key: str | None = None, whole_json: bool = False) -> str:
    secret = KvSecret(data, 3)
    value = pick_value(secret, entry="DB", path="env-a/db", key=key, whole_json=whole_json)
    assert isinstance(value, Secret)
    return value.reveal()


def refused(reason: Reason, *arguments: Any, **settings: Any) -> str:
    with pytest.raises(OpenBaoError) as caught:
        pick(*arguments, **settings)
    assert caught.value.reason == reason
    assert caught.value.retryable
    message = str(caught.value)
    assert message.startswith("entry 'DB' (env-a/db, version 3)")
    assert CANARY not in message
    return message


def test_named_key_is_taken() -> None:
    assert pick({"user": "u", "password": "p"}, key="password") == "p"


def test_only_key_is_taken_without_a_name() -> None:
    assert pick({"password": "p"}) == "p"


def test_key_value_is_meant_among_several() -> None:
    assert pick({"note": "n", "value": "v"}) == "v"


def test_empty_string_is_a_value() -> None:
    assert pick({"value": ""}) == ""


def test_missing_key_is_named_beside_those_that_are_there() -> None:
    message = refused(Reason.SECRET_MISSING, {"user": CANARY, "pass": CANARY}, key="password")
    assert "no key 'password'; it has 'pass', 'user'" in message


def test_key_names_are_listed_up_to_ten() -> None:
    message = refused(Reason.SECRET_MISSING, {f"k{n:02}": CANARY for n in range(13)}, key="x")
    assert "'k09' and 3 more" in message
    assert "k10" not in message


def test_several_keys_without_a_name_need_one() -> None:
    message = refused(Reason.SECRET_MISSING, {"user": CANARY, "pass": CANARY})
    assert "which key is meant? The secret has 'pass', 'user'" in message


def test_secret_without_keys_holds_nothing() -> None:
    assert "no keys at all" in refused(Reason.SECRET_MISSING, {})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        ({"b": [1, True, None], "a": "ü<&>"}, '{"b":[1,true,null],"a":"ü<&>"}'),
        ([], "[]"),
        ([0.5, 2**53 - 1], "[0.5,9007199254740991]"),
    ],
)
def test_other_values_have_a_defined_text(value: Any, text: str) -> None:
    assert pick({"value": value}) == text


@pytest.mark.parametrize("value", [0, 5432, 1.5, 12345678901234567000])
def test_numbers_are_refused_by_name(value: Any) -> None:
    message = refused(Reason.ENTRY_REFUSED, {"port": value}, key="port")
    assert "key 'port' is a number" in message
    assert str(value) not in message.replace("version 3", "")


def test_null_is_refused_and_is_not_empty_text() -> None:
    assert "key 'value' is null" in refused(Reason.ENTRY_REFUSED, {"value": None})


@pytest.mark.parametrize("value", [2**53, -(2**53), 1e21, [{"deep": 2**60}]])
def test_rewritten_numbers_inside_an_object_are_refused(value: Any) -> None:
    assert "2^53" in refused(Reason.ENTRY_REFUSED, {"value": {"id": value}})


def test_value_nested_without_measure_is_refused() -> None:
    deep: list[Any] = [CANARY]
    for _ in range(100_000):
        deep = [deep]
    assert "nested too deeply" in refused(Reason.ENTRY_REFUSED, {"value": deep})


def test_registry_credentials_are_taken_whole() -> None:
    data = {"name": "robot$a+b", "secret": 'p"w', "id": 7, "disable": False}
    assert json.loads(pick(data, whole_json=True)) == data


def test_registry_credentials_with_a_key_are_that_key() -> None:
    assert pick({"auth": "u:p", "note": "n"}, key="auth", whole_json=True) == "u:p"


def test_repr_of_a_secret_hides_its_data() -> None:
    assert repr(KvSecret({"k": CANARY}, 3)) == "KvSecret(version=3, keys=1)"


@pytest.mark.parametrize(
    ("path", "api_path"),
    [
        ("env-a/db", "/v1/kv/team/data/env-a/db"),
        ("/env-a/db/", "/v1/kv/team/data/env-a/db"),
        ("env-a/a b+c?#%&;=", "/v1/kv/team/data/env-a/a%20b%2Bc%3F%23%25%26%3B%3D"),
        ("env-a/größe", "/v1/kv/team/data/env-a/gr%C3%B6%C3%9Fe"),
        ("..a/.b/c..", "/v1/kv/team/data/..a/.b/c.."),
    ],
)
def test_path_is_encoded_by_segment_below_the_mount(path: str, api_path: str) -> None:
    assert secret_place(entry="DB", mount="/kv/team/", path=path).api_path == api_path


@pytest.mark.parametrize(
    "path",
    ["", "/", "//", "a//b", "//a", "a//", "..", "a/../b", "./a", "a/.", "a\nb", "a\x00", "\ud800"],
)
def test_path_that_openbao_would_clean_is_refused(path: str) -> None:
    with pytest.raises(EntryError) as caught:
        secret_place(entry="DB", mount="secret", path=path)
    assert "entry 'DB': path " in str(caught.value)
    assert str(caught.value).isprintable()


def test_path_too_long_for_a_url_is_refused() -> None:
    with pytest.raises(EntryError, match="longer than 1024 characters"):
        secret_place(entry="DB", mount="secret", path="ü" * 1025)
    assert secret_place(entry="DB", mount="secret", path="ü" * 1024)
