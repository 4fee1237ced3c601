"""The `.env` that is written and what the host's own Compose makes of it, in both ways."""

import json
import random
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from monky_deployd.domain.dotenv import check_readback, readback_probe, render_dotenv
from monky_deployd.domain.secret import Secret
from monky_deployd.errors import EntryError

pytestmark = pytest.mark.real

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "env_vectors.json").read_text())
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent"}


def compose_config(release: Path, values: Mapping[str, Secret]) -> dict[str, Any]:
    """What Compose prints for the probe in `release`, parsed."""
    argv = ["docker", "compose", "-p", "probe", "--project-directory", str(release)]
    done = subprocess.run(
        [*argv, "-f", "-", "config", "--format", "json"],
        input=readback_probe(values).encode(),
        env=ENVIRONMENT,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    model: dict[str, Any] = json.loads(done.stdout)
    return model


def read_back(release: Path, values: Mapping[str, Secret]) -> None:
    (release / ".env").write_bytes(render_dotenv(values))
    check_readback(compose_config(release, values), values)


def random_text(source: random.Random) -> str:
    """Up to 80 characters of all of Unicode but NUL and surrogates, rich in the special ones."""
    kinds = (
        lambda: source.choice("\\\"$'`\n\r\t#={}: "),
        lambda: chr(source.randrange(1, 0x80)),
        lambda: chr(
            source.choice((source.randrange(1, 0xD800), source.randrange(0xE000, 1 << 16)))
        ),
        lambda: chr(source.randrange(1 << 16, 0x110000)),
    )
    return "".join(source.choice(kinds)() for _ in range(source.randrange(80)))


def test_the_measured_values_come_back_byte_for_byte(tmp_path: Path) -> None:
    read_back(tmp_path, {f"V{n}": Secret(vector["value"]) for n, vector in enumerate(VECTORS)})


def test_random_values_come_back_byte_for_byte(tmp_path: Path) -> None:
    source = random.Random(20_403)
    read_back(tmp_path, {f"R{n}": Secret(random_text(source)) for n in range(500)})


def test_the_longest_values_come_back_byte_for_byte(tmp_path: Path) -> None:
    read_back(
        tmp_path, {f"L{n}": Secret(character * 32_000) for n, character in enumerate("$\\é\n")}
    )


def test_keys_that_only_env_file_can_carry_come_back(tmp_path: Path) -> None:
    keys = [
        "discovery.type",
        "my-key",
        "A[0]",
        "1ABC",
        "ÜX",
        "日本",
        "½",
        "export",
        "null",
        "-",
        "[",
    ]
    read_back(tmp_path, {key: Secret("a$b") for key in keys})


def test_an_empty_file_reads_as_no_variables(tmp_path: Path) -> None:
    read_back(tmp_path, {})


@pytest.mark.parametrize("key", ["A B", "a/b", "a+b", "a@b", "K\u0301", "a,b"])
def test_a_key_that_is_refused_would_have_failed_the_whole_file(tmp_path: Path, key: str) -> None:
    with pytest.raises(EntryError):
        render_dotenv({key: Secret("v")})
    (tmp_path / ".env").write_text(f'GOOD="v"\n{key}="v"\n')
    with pytest.raises(AssertionError, match="failed to read"):
        compose_config(tmp_path, {"GOOD": Secret("v")})


def test_a_value_that_the_process_environment_overrides_is_found(tmp_path: Path) -> None:
    with pytest.raises(EntryError, match=r"'HOME' through \$\{HOME\}") as caught:
        read_back(tmp_path, {"HOME": Secret("c4n4ry-home"), "GOOD": Secret("v")})
    assert "env_file" not in caught.value.cause
    assert "c4n4ry-home" not in str(caught.value)


def test_a_file_that_was_not_written_by_the_rule_is_found(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A=pa$word\nB=right\n")
    values = {"A": Secret("pa$word"), "B": Secret("right")}
    with pytest.raises(EntryError, match="'A' through env_file; 'A' through") as caught:
        check_readback(compose_config(tmp_path, values), values)
    assert "'B'" not in caught.value.cause
