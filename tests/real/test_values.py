"""Values go from OpenBao into the container byte for byte, in both ways, or are refused by name.

What a container got is read from its own kernel-side environment block, where NUL parts the
variables: nothing stands between the bytes and the comparison.
"""

import json
import os
import random
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from monky_deployd.domain.dotenv import is_interpolatable
from tests.real.world import World

pytestmark = pytest.mark.real

VECTORS = Path(__file__).parents[1] / "data" / "env_vectors.json"

# Public bug reports of tools of this kind, by what broke there.
REPORTED = {
    "dollar-word": "pa$word",
    "dollar-in-the-middle": "abc$def",
    "dollar-home": "a$HOME",
    "bcrypt": "$2a$08$abc/DEF",
    "htpasswd": "user:$apr1$x$y/",
    "open-brace": "a${b",
    "required": "${TAG?tag not set}",
    "backslash-at-the-end": "C:\\dir\\",
    "backslash-quote": 'it\\\'s \\"quoted\\"',
    "backslash-n": "a\\nb",
    "line-feed": "a\nb",
    "pem-base64": "MIIB/+==",
    "looks-like-a-line": "x\nADMIN=true\n",
    "comment": "a # b #",
    "export": "export A=b",
    "colon": 'A:B="x"',
    "spaces": "  both ends  ",
    "only-spaces": "   ",
    "empty": "",
    "tab": "\ta\t",
    "carriage-return": "a\r\nb\r",
    "quotes": "\"'`",
    "yaml-no": "no",
    "number": "0123",
    "long-number": "12345678901234567890",
    "backspace-and-escape": "\x01\x08\x1b[31m\x7f",
    "c1-and-nel": "\x80\x85\x9f",
    "line-separators": "\u2028\u2029",
    "byte-order-mark": "\ufeffa",
    "not-characters": "\ufffe\uffff\ufffd",
    "astral": "\U0001f6f8\U0010ffff",
    "combining": "e\u0301",
    "right-to-left": "\u202eabc",
}

# `env_file:` carries these too, though no `${…}` can name them.
ODD_NAMES = {"discovery.type": "single-node", "my-key": "1", "A[0]": "2", "1ABC": "3", "ÜX": "ü"}

PLAIN = "P_"


def random_text(source: random.Random) -> str:
    """Up to 60 characters of all of Unicode but NUL and surrogates, rich in the special ones."""
    kinds = (
        lambda: source.choice("\\\"$'`\n\r\t#={}: "),
        lambda: chr(source.randrange(1, 0x80)),
        lambda: chr(
            source.choice((source.randrange(1, 0xD800), source.randrange(0xE000, 1 << 16)))
        ),
        lambda: chr(source.randrange(1 << 16, 0x110000)),
    )
    return "".join(source.choice(kinds)() for _ in range(source.randrange(60)))


def random_values() -> dict[str, str]:
    seed = int(os.environ.get("MONKY_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"MONKY_TEST_SEED={seed}")
    source = random.Random(seed)
    return {f"R{number}": random_text(source) for number in range(500)}


def documents() -> dict[str, str]:
    """What is kept in secrets as a whole: keys, certificates, JSON."""
    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
    account = {"private_key": pem, "note": "a $ b \\ \"c\" 'd'", "nested": {"é": [1, None]}}
    return {
        "PEM": pem,
        "PEM_WITHOUT_END": pem.rstrip("\n"),
        "PEM_CRLF": pem.replace("\n", "\r\n"),
        "JSON": json.dumps(account),
        "JSON_INDENTED": json.dumps(account, indent=2, ensure_ascii=False),
    }


def corpus() -> dict[str, str]:
    vectors = json.loads(VECTORS.read_text())
    return {
        **ODD_NAMES,
        **{f"V{number}": vector["value"] for number, vector in enumerate(vectors)},
        **{f"C_{name.replace('-', '_')}": value for name, value in REPORTED.items()},
        **{f"{PLAIN}{name.replace('-', '_')}": value for name, value in REPORTED.items()},
        **documents(),
        **random_values(),
    }


def batched(names: Iterable[str], size: int) -> Iterator[list[str]]:
    rest = iter(names)
    while batch := list(islice(rest, size)):
        yield batch


def entries_for(world: World, values: Mapping[str, str]) -> list[dict[str, Any]]:
    """The entries of these values: in OpenBao, but for those with the prefix of plain ones."""
    plain = [name for name in values if name.startswith(PLAIN)]
    entries: list[dict[str, Any]] = [{"name": name, "value": values[name]} for name in plain]
    # OpenBao takes some hundred strings in one secret.
    for number, names in enumerate(batched(values.keys() - set(plain), 200)):
        path = world.put(f"values-{number}", {name: values[name] for name in names})
        entries += [{"name": name, "path": path, "key": name} for name in names]
    return entries


def deploy_both_ways(world: World, image: str, values: Mapping[str, str]) -> None:
    interpolated = {name: f"${{{name}}}" for name in values if is_interpolatable(name)}
    services = {
        "from-file": {"image": image, "env_file": ".env"},
        "interpolated": {"image": image, "environment": interpolated},
    }
    world.deploy(1, services, entries=[world.robot_entry(), *entries_for(world, values)])


def differing(world: World, values: Mapping[str, str]) -> list[str]:
    """Which values didn't arrive as they are, and in which service."""
    got = {service: world.variables(service) for service in ("from-file", "interpolated")}
    return [
        f"{name} in {service}"
        for name, value in values.items()
        for service, variables in got.items()
        if service == "from-file" or is_interpolatable(name)
        if variables.get(name.encode()) != value.encode()
    ]


def test_every_value_reaches_the_container_byte_for_byte(
    every_compose: str, world: World, idle: str
) -> None:
    values = corpus()
    deploy_both_ways(world, idle, values)
    assert differing(world, values) == []


def test_the_longest_values_arrive_and_a_byte_more_is_refused_by_name(
    world: World, idle: str
) -> None:
    values = {f"L{number}": "x" * 131_068 for number in range(7)}
    values["L7"] = "$" * 131_068
    deploy_both_ways(world, idle, values)
    assert differing(world, values) == []
    before = world.incarnation("from-file")

    entries = entries_for(world, {**values, "L0": "x" * 131_069})
    world.publish(2, {"from-file": {"image": idle, "env_file": ".env"}}, entries=entries)
    ran = world.once()

    assert (ran.code, ran.json["outcome"]) == (1, "entry-refused")
    assert "'L0' is longer" in ran.json["message"]
    assert "'L1'" not in ran.json["message"]
    assert world.incarnation("from-file") == before


def test_the_agents_own_environment_reaches_no_container(world: World, idle: str) -> None:
    service = {
        "image": idle,
        "environment": {"FROM": "${LEVEL}", "LEVEL": "${LEVEL}", "LEAK": None},
    }
    entries = [world.robot_entry(), {"name": "LEVEL", "value": "from the manifest"}]
    world.publish(1, {"web": service}, entries=entries)

    ran = world.once(LEVEL="from the agent", LEAK="from the agent", COMPOSE_PROJECT_NAME="other")

    assert ran.code == 0, ran.stderr
    got = world.variables("web")
    assert got[b"FROM"] == got[b"LEVEL"] == b"from the manifest"
    assert b"LEAK" not in got
