"""The targets of `tests.bench.fuzz` work, and a first handful of inputs finds nothing in any."""

import random

import pytest

from monky_deployd.errors import EntryError
from tests.bench.fuzz_targets import CANARY, TARGETS, Target, attempt, mutated

INPUTS = 200


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs_raise_typed_errors_alone(name: str) -> None:
    chance = random.Random(name)
    target = TARGETS[name]
    for _ in range(INPUTS):
        data = mutated(chance, target.examples)
        _, finding = attempt(target, data)
        assert not finding, data


def test_an_untyped_exception_and_a_quoted_secret_are_findings() -> None:
    def quotes(data: bytes) -> object:
        raise EntryError(f"it holds {data.decode()}")

    secret = f'"password": "{CANARY}"'.encode()
    assert "ZeroDivisionError" in attempt(Target(lambda data: 1 // 0, ()), b"x")[1]
    assert "a secret in" in attempt(Target(quotes, ()), secret)[1]
    assert attempt(Target(quotes, ()), b"x") == ("EntryError", "")


@pytest.mark.parametrize(
    "name", ["manifest", "credentials", "dotenv", "config", "openbao", "grant"]
)
def test_an_example_goes_all_the_way(name: str) -> None:
    """One that is refused at the door would lead the fuzzer nowhere."""
    target = TARGETS[name]
    assert "good" in {attempt(target, example)[0] for example in target.examples}
