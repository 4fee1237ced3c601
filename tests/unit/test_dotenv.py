"""The `.env` that Compose reads back byte for byte, what it can't carry, and the read-back."""

import json
import re
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monky_deployd.domain.dotenv import (
    MAX_TOTAL_BYTES,
    MAX_VARIABLE_BYTES,
    check_readback,
    is_interpolatable,
    parse_dotenv,
    readback_probe,
    render_dotenv,
)
from monky_deployd.domain.secret import Secret
from monky_deployd.errors import EntryError, Reason

CANARY = "c4n4ry-value"
VECTORS = json.loads((Path(__file__).parents[1] / "data" / "env_vectors.json").read_text())

# Every character that a UTF-8 file can carry and the kernel can take.
carried_text = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]))


def decode(dotenv: bytes) -> dict[str, str]:
    """A reader of the quoting rule, written apart from the writer."""
    plain = {"n": "\n", "r": "\r"}
    values = {}
    for line in dotenv.decode().split("\n")[:-1]:
        match = re.fullmatch(r'([^="]+)="((?:[^"\\$\r]|\\.)*)"', line, re.DOTALL)
        assert match, "a line outside the rule"
        values[match[1]] = re.sub(
            r"\\(.)", lambda escape: plain.get(escape[1], escape[1]), match[2], flags=re.DOTALL
        )
    return values


def refusal(values: dict[str, str]) -> EntryError:
    with pytest.raises(EntryError) as caught:
        render_dotenv({key: Secret(value) for key, value in values.items()})
    return caught.value


def everything_said(error: EntryError) -> str:
    return "".join([str(error), repr(error), error.remedy, *traceback.format_exception(error)])


@pytest.mark.parametrize("vector", VECTORS, ids=range(len(VECTORS)))
def test_each_measured_value_has_its_measured_line(vector: dict[str, str]) -> None:
    assert render_dotenv({"K": Secret(vector["value"])}) == f"{vector['env_line']}\n".encode()


@given(carried_text)
def test_any_text_survives_the_quoting(value: str) -> None:
    assert decode(render_dotenv({"K": Secret(value)})) == {"K": value}


@given(st.dictionaries(st.from_regex(r"[A-Za-z0-9_.\[\]-]+", fullmatch=True), carried_text))
def test_no_value_spills_into_the_next_variable(values: dict[str, str]) -> None:
    values = {k: v for k, v in values.items() if not k.startswith("COMPOSE_")}
    secrets = {key: Secret(value) for key, value in values.items()}
    assert list(decode(render_dotenv(secrets)).items()) == list(values.items())


@given(st.dictionaries(st.from_regex(r"[A-Za-z_.\-]{1,8}", fullmatch=True), carried_text))
def test_what_was_written_is_read_back(values: dict[str, str]) -> None:
    secrets = {name: Secret(value) for name, value in values.items() if "COMPOSE_" not in name}
    assert parse_dotenv(render_dotenv(secrets)) == secrets


def test_lines_that_the_agent_did_not_write_are_left_out() -> None:
    assert parse_dotenv(b'A="1"\n# a remark\nB=2\n\xff="3"\n') == {
        "A": Secret("1"),
        "\N{REPLACEMENT CHARACTER}": Secret("3"),
    }


def test_no_values_give_an_empty_file() -> None:
    assert render_dotenv({}) == b""


@pytest.mark.parametrize(
    "key", ["discovery.type", "my-key", "A[0]", "1ABC", "ÜX", "日本", "½", "export", "DOCKER_HOST"]
)
def test_a_key_that_compose_reads_is_written(key: str) -> None:
    assert render_dotenv({key: Secret("v")}) == f'{key}="v"\n'.encode()


@pytest.mark.parametrize(
    "key",
    [
        *("", "A B", " A", "A\t", "a/b", "a+b", "a@b", "A:B", "A=B", "#A", "A$", 'A"', "A\nB"),
        *("A\0", "K\u0301", "a\u200db", "\ufeffA", "A\u00a0B", "\ud800"),
    ],
)
def test_a_key_that_breaks_the_file_is_refused_by_name(key: str) -> None:
    error = refusal({key: CANARY})
    assert repr(key) in error.cause
    assert CANARY not in everything_said(error)


@pytest.mark.parametrize("key", ["COMPOSE_FILE", "COMPOSE_", "DOCKER_DEFAULT_PLATFORM"])
def test_a_key_that_steers_compose_is_refused(key: str) -> None:
    error = refusal({key: CANARY})
    assert f"{key!r} is a name that steers Compose itself" in error.cause


@pytest.mark.parametrize("key", ["COMPOSE", "MY_COMPOSE_FILE", "DOCKER_INFLUXDB_INIT_MODE"])
def test_a_key_that_only_looks_like_one_of_those_is_carried(key: str) -> None:
    assert decode(render_dotenv({key: Secret("v")})) == {key: "v"}


@pytest.mark.parametrize(
    ("value", "phrase"),
    [
        (f"{CANARY}\0", "holds a NUL character"),
        (f"{CANARY}\ud800", "is not valid Unicode text"),
        (f"{CANARY}\udcff", "is not valid Unicode text"),
        (CANARY * 20_000, "is longer"),
    ],
)
def test_a_value_that_cannot_be_carried_is_refused_by_its_key(value: str, phrase: str) -> None:
    error = refusal({"GOOD": "v", "TOKEN": value})
    assert f"'TOKEN' {phrase}" in error.cause
    assert "GOOD" not in error.cause
    assert CANARY not in everything_said(error)
    assert error.reason is Reason.ENTRY_REFUSED


def test_every_refusal_stands_in_the_one_error() -> None:
    error = refusal({"A B": CANARY, "C": f"{CANARY}\0", "COMPOSE_FILE": f"{CANARY}\ud800"})
    assert error.cause.count("'COMPOSE_FILE'") == 2
    assert "'A B'" in error.cause
    assert "'C'" in error.cause
    assert CANARY not in everything_said(error)


@pytest.mark.parametrize("character", ["x", "é", "🔑"])
def test_the_longest_variable_is_counted_in_bytes(character: str) -> None:
    room = MAX_VARIABLE_BYTES - len("K0=\0")
    longest = character * (room // len(character.encode())) + "x" * (room % len(character.encode()))
    assert decode(render_dotenv({"K0": Secret(longest)})) == {"K0": longest}
    assert "'K0' is longer" in refusal({"K0": longest + "x"}).cause


def test_more_than_a_container_can_start_with_is_refused_naming_the_largest() -> None:
    sizes = dict.fromkeys((f"K{number}" for number in range(20)), 98_000)
    most = MAX_TOTAL_BYTES - sum(len(key) + size + 10 for key, size in sizes.items())
    values = {key: "x" * size for key, size in sizes.items()}
    fitting = values | {"LAST": "x" * (most - len("LAST") - 10)}
    assert len(render_dotenv({key: Secret(value) for key, value in fitting.items()})) > most

    error = refusal(fitting | {"K7": "x" * 98_001})
    assert f"longer than the {MAX_TOTAL_BYTES} bytes" in error.cause
    assert "(largest: 'K7', " in error.cause
    assert "'LAST'" not in error.cause


@pytest.mark.parametrize("key", ["A", "_", "a1_B", "COMPOSE"])
def test_an_identifier_can_be_interpolated(key: str) -> None:
    assert is_interpolatable(key)


@pytest.mark.parametrize("key", ["", "1A", "a.b", "a-b", "A[0]", "ÜX", "A\n", "\u212a", "A١"])
def test_any_other_key_cannot_be_interpolated(key: str) -> None:
    assert not is_interpolatable(key)


def answer(from_file: dict[str, object], interpolated: dict[str, object]) -> dict[str, object]:
    """What Compose would print for the probe."""
    services = json.loads(readback_probe([]))["services"]
    first, second = services
    return {"services": {first: {"environment": from_file}, second: {"environment": interpolated}}}


def readback_refusal(model: dict[str, object], values: dict[str, str]) -> EntryError:
    with pytest.raises(EntryError) as caught:
        check_readback(model, {key: Secret(value) for key, value in values.items()})
    return caught.value


def test_the_probe_asks_for_each_key_in_each_way_that_it_can_be_read() -> None:
    by_file, by_name = json.loads(readback_probe(["A", "discovery.type"]))["services"].values()
    assert by_file["env_file"] == [".env"]
    assert by_name["environment"] == {"A": "${A}"}


def test_a_readback_with_doubled_dollars_agrees() -> None:
    values = {"A": Secret("$$a${B}"), "b.c": Secret("$")}
    check_readback(answer({"A": "$$$$a$${B}", "b.c": "$$"}, {"A": "$$$$a$${B}"}), values)


@pytest.mark.parametrize("model", [{"services": {"from-file": {}}}, {"services": None}, {}])
def test_a_readback_without_any_environment_agrees_with_no_values(model: dict[str, object]) -> None:
    check_readback(model, {})


@pytest.mark.parametrize("wrong", ["", CANARY[:-1], CANARY + " ", None, 1, "x"])
def test_a_value_that_differs_is_named_with_the_way_it_took(wrong: object) -> None:
    values = {"A": CANARY, "OK": "v"}
    good = {"A": CANARY, "OK": "v"}
    through_file = readback_refusal(answer({"A": wrong, "OK": "v"}, dict(good)), values)
    assert "'A' through env_file" in through_file.cause
    through_name = readback_refusal(answer(dict(good), {"A": wrong, "OK": "v"}), values)
    assert "'A' through ${A}" in through_name.cause
    for error in (through_file, through_name):
        assert "'OK'" not in error.cause
        assert CANARY not in everything_said(error)


@pytest.mark.parametrize("model", [{}, {"services": []}, {"services": {"from-file": None}}])
def test_a_readback_that_lacks_the_services_names_every_key(model: dict[str, object]) -> None:
    error = readback_refusal(model, {"A": CANARY, "b.c": CANARY})
    assert "'A' through env_file" in error.cause
    assert "'A' through ${A}" in error.cause
    assert "'b.c' through env_file" in error.cause
    assert "${b.c}" not in error.cause


def test_a_variable_too_many_is_reported_without_its_name() -> None:
    error = readback_refusal(answer({"A": "v", CANARY: "v"}, {"A": "v"}), {"A": "v"})
    assert "a variable that no entry names" in error.cause
    assert CANARY not in everything_said(error)
