"""A secret shows itself nowhere, and the scrubber finds it in every spelling."""

import base64
import copy
import dataclasses
import json
import logging
import pickle
import traceback
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monky_deployd.domain.secret import MASK, Scrubber, Secret

CANARY = 'c4n4ry "v&lue"\\ $1/ä\n'
PEM_LINE = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"
PEM = f"-----BEGIN PRIVATE KEY-----\n{PEM_LINE}\nshort==\n-----END PRIVATE KEY-----\n"


@dataclasses.dataclass
class Holder:
    secret: Secret


def scrub(text: str, *secrets: str) -> str:
    return Scrubber(Secret(secret) for secret in secrets).scrub(text)


# The type

SHOWN: dict[str, Callable[[Secret], str]] = {
    "repr": repr,
    "str": str,
    "format": lambda secret: f"{secret}",
    "format-with-a-width": lambda secret: f"{secret:>40}",
    "format-repr": lambda secret: f"{secret!r:5}",
    "in-a-list": lambda secret: str([secret]),
    "in-a-dict": lambda secret: str({"a": secret}),
    "in-a-dataclass": lambda secret: repr(Holder(secret)),
    "json-default-str": lambda secret: json.dumps({"a": secret}, default=str),
    "log": lambda secret: logging.LogRecord(
        "", 10, "", 1, "%s %r", (secret, secret), None
    ).getMessage(),
}


@pytest.mark.parametrize("show", SHOWN.values(), ids=SHOWN)
def test_a_secret_shows_only_its_mask(show: Callable[[Secret], str]) -> None:
    shown = show(Secret(CANARY))
    assert "c4n4ry" not in shown
    assert MASK in shown


@pytest.mark.parametrize(
    "action",
    [
        pickle.dumps,
        copy.copy,
        copy.deepcopy,
        json.dumps,
        hash,
        list,
        len,
        bytes,
        lambda secret: "" + secret,
        lambda secret: "".join([secret]),
        lambda secret: secret < secret,
        lambda secret: dataclasses.asdict(Holder(secret)),
        lambda secret: setattr(secret, "other", 1),
    ],
)
def test_what_would_carry_a_secret_off_fails_without_it(action: Callable[[Any], object]) -> None:
    with pytest.raises((TypeError, AttributeError)) as caught:
        action(Secret(CANARY))
    assert "c4n4ry" not in "".join(traceback.format_exception(caught.value))


def test_reveal_is_the_way_out() -> None:
    assert Secret(CANARY).reveal() == CANARY
    assert Secret("\ud800").reveal() == "\ud800"


def test_secrets_compare_by_value_and_with_nothing_else() -> None:
    assert Secret("ä") == Secret("ä")
    assert Secret("a") != Secret("b")
    assert Secret("a") != Secret("ab")
    assert Secret("\ud800") == Secret("\ud800")
    assert Secret("a") != "a"
    assert Secret("") != None  # noqa: E711
    assert bool(Secret("0")) is True
    assert bool(Secret("")) is False


# The scrubber

SPELLINGS: dict[str, Callable[[str], str]] = {
    "raw": lambda value: value,
    "without-its-last-line-end": lambda value: value.strip(),
    "python-repr": lambda value: repr(value)[1:-1],
    "python-ascii": lambda value: ascii(value)[1:-1],
    "python-json": json.dumps,
    "json-in-utf-8": lambda value: json.dumps(value, ensure_ascii=False),
    "go-json": lambda value: json.dumps(value, ensure_ascii=False).replace("&", "\\u0026"),
    "url": lambda value: quote(value, safe=""),
    "url-path": quote,
    "url-query": quote_plus,
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "base64-without-padding": lambda value: base64.b64encode(value.encode()).decode().rstrip("="),
    "base64-for-urls": lambda value: base64.urlsafe_b64encode(value.encode()).decode(),
    "dotenv": lambda value: (
        value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("\n", "\\n")
    ),
    "compose-config": lambda value: value.replace("$", "$$"),
    "compose-config-in-json": lambda value: json.dumps(value.replace("$", "$$"))[1:-1],
    "compose-config-in-ascii": lambda value: ascii(value.replace("$", "$$"))[1:-1],
    "quoted-in-json": lambda value: json.dumps(json.dumps(value, ensure_ascii=False))[3:-3],
}


@pytest.mark.parametrize("spell", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("value", [CANARY, "c4n4ry?>~ÿ", "c4n4ry"])
def test_a_secret_is_masked_in_every_spelling(spell: Callable[[str], str], value: str) -> None:
    spelled = spell(value)
    masked = scrub(f"before <{spelled}> after", value)
    inner = f'"{MASK}"' if spelled.startswith('"') else MASK
    assert masked == f"before <{inner}> after"


@pytest.mark.parametrize(
    ("text", "secrets", "masked"),
    [
        ("nothing of it", ["hunter22"], "nothing of it"),
        ("x hunter22 hunter22y", ["hunter22"], "x [secret] [secret]y"),
        ("hunter22hunter22", ["hunter22"], "[secret][secret]"),
        ("hunter2222", ["hunter22", "hunter2222"], "[secret]"),
        ("hunter2222", ["hunter2222", "hunter22"], "[secret]"),
        ("abcdefghi", ["abcdef", "defghi"], "[secret]"),
        ("abcdefghi", ["defghi", "abcdef"], "[secret]"),
        ("abababab.", ["abab"], "[secret]."),
        ("the secret [secret] sec cret]", ["secret"], "the [secret] [secret] sec cret]"),
        ("sec [secret]", ["[sec", "cret]"], "sec [secret]"),
        ("", ["hunter22"], ""),
        ("a b", [], "a b"),
        ("a b", [""], "a b"),
        ("a    b", ["    "], "a[secret]b"),
        ("env-1 is 1", ["1", "env"], "env-1 is 1"),
        ("port 5432!", ["5432"], "port [secret]!"),
        ("\ud800abc \ud800abc", ["\ud800abc"], "[secret] [secret]"),
    ],
)
def test_only_what_is_secret_is_masked(text: str, secrets: list[str], masked: str) -> None:
    assert scrub(text, *secrets) == masked


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (PEM, MASK),
        (f"file: {PEM.strip()}!", f"file: {MASK}!"),
        (PEM.replace("\n", "\r\n"), f"{MASK}\r\n{MASK}\r\nshort==\r\n{MASK}\r\n"),
        (f'unexpected character "/" in "{PEM_LINE}"', f'unexpected character "/" in "{MASK}"'),
        (json.dumps({"key": PEM}), json.dumps({"key": MASK})),
        (json.dumps({"key": f"{PEM_LINE}\nshort"}), json.dumps({"key": f"{MASK}\nshort"})),
    ],
)
def test_a_key_of_many_lines_is_masked_whole_and_line_by_line(text: str, masked: str) -> None:
    assert scrub(text, PEM) == masked


def test_a_line_of_a_document_is_masked_quoted_too() -> None:
    account = '{\n  "password": "hunter22"\n}\n'
    quoted = json.dumps({"line": '"password": "hunter22"'})
    assert scrub(quoted, account) == json.dumps({"line": MASK})


def test_secrets_can_be_added_and_do_not_show_in_a_repr() -> None:
    scrubber = Scrubber([Secret("hunter22")])
    scrubber.add([Secret("hunter33"), Secret("hunter22")])
    assert scrubber.scrub("hunter22 hunter33") == f"{MASK} {MASK}"
    assert "hunter" not in repr(scrubber)


short_text = st.text(st.sampled_from('ab[]secrt"\\$&/\n '), max_size=24)


@given(short_text, st.lists(short_text, max_size=5))
def test_scrubbing_twice_changes_nothing_more(text: str, secrets: list[str]) -> None:
    once = scrub(text, *secrets)
    assert scrub(once, *secrets) == once


@given(
    st.text(max_size=20),
    st.text(min_size=4, max_size=20).filter(lambda secret: not set(secret) & set(MASK)),
    st.text(max_size=20),
    st.lists(st.text(max_size=20), max_size=3),
)
def test_no_secret_survives_among_others(
    before: str, secret: str, after: str, others: list[str]
) -> None:
    assert secret not in scrub(f"{before}{secret}{after}", secret, *others)


# Parts of secrets


def scrub_fragments(text: str, *secrets: str) -> str:
    return Scrubber(Secret(secret) for secret in secrets).scrub_fragments(text)


@pytest.mark.parametrize(
    ("text", "secret", "masked"),
    [
        ("invalid IP address: abc", "abc:x", f"invalid IP address: {MASK}"),
        ("undefined volume hunter2", "hunter2:/data", f"undefined volume {MASK}"),
        ('parsing "pa55:hunter2": no', "pa55:hunter2x", f'parsing "{MASK}": no'),
        ("invalid proto: t0ps3cr3t", "80/T0pS3cr3t", f"invalid proto: {MASK}"),
        ("no host db.internal:5432", "postgres://app:pw@db.internal:5432/shop", f"no host {MASK}"),
        ("invalid user: ab", "ab:cde", f"invalid user: {MASK}"),
        ('parsing \\"ab\\\\\\"cdefg\\"', 'ab"cdefg"hi', f'parsing \\"{MASK}'),
        ("line one\\nhunter and more", "hunter:2", f"line one\\n{MASK} and more"),
        ("İ hunter2", "hunter2:x", f"İ {MASK}"),
        ("is 80 a port of x?", "xy80:is-this-long", "is 80 a port of x?"),
        ("container web is healthy", "pa55:hunter2x", "container web is healthy"),
        ("whole hunter2", "hunter2", f"whole {MASK}"),
        ("no dev", "dev", "no dev"),
    ],
)
def test_what_was_cut_out_of_a_secret_is_masked(text: str, secret: str, masked: str) -> None:
    assert scrub_fragments(text, secret) == masked


def test_a_word_of_a_long_secret_is_masked_and_a_chance_likeness_is_not() -> None:
    document = json.dumps({"user": "shop", "password": "qzx7", "note": "x" * 80})
    assert scrub_fragments("invalid: qzx7", document) == f"invalid: {MASK}"
    assert scrub_fragments("qzx7abc", document) == "qzx7abc"


def test_a_part_is_not_masked_in_a_registrys_words() -> None:
    assert scrub("no such host: shop", "postgres://app@db/shop") == "no such host: shop"


@given(
    st.text(min_size=4, max_size=64).filter(lambda secret: not set(secret.lower()) & set(MASK)),
    st.data(),
    st.sampled_from(["", "x", ": ", '"', "\\n"]),
)
def test_no_four_characters_of_a_secret_survive_wherever_it_is_cut(
    secret: str, data: st.DataObject, around: str
) -> None:
    start = data.draw(st.integers(0, len(secret) - 4))
    end = data.draw(st.integers(start + 4, len(secret)))
    masked = scrub_fragments(f"before {around}{secret[start:end]}{around} after", secret)
    left = masked.removeprefix("before ").removesuffix(" after")
    assert not any(
        secret[position : position + 4] in left for position in range(start, len(secret) - 3)
    )


@given(short_text, st.lists(short_text, max_size=5))
def test_scrubbing_fragments_twice_changes_nothing_more(text: str, secrets: list[str]) -> None:
    once = scrub_fragments(text, *secrets)
    assert scrub_fragments(once, *secrets) == once


def test_long_texts_and_long_secrets_take_no_time_to_speak_of() -> None:
    secrets = [f"secret-number-{number:05}/{'x' * 40}" for number in range(500)]
    text = "y" * 65_530 + "secret-number-00499" + "z" * 900_000
    masked = scrub_fragments(text, *secrets, "w" * 131_000)
    assert masked == "y" * 65_530 + MASK + "z" * 900_000


def test_hundreds_of_secrets_are_found_in_a_long_text() -> None:
    secrets = [f"secret-number-{number:05}/{'x' * 40}" for number in range(500)]
    text = "\n".join(f"line {number} {secret}" for number, secret in enumerate(secrets))
    masked = scrub(text, *secrets, PEM)
    assert masked == "\n".join(f"line {number} {MASK}" for number in range(500))
