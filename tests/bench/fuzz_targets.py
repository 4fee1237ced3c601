"""What is fuzzed: each reader of something that comes from outside, and examples of its input."""

import base64
import contextlib
import copy
import json
import random
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monky_deployd.domain.compose_events import (
    fold_pull,
    parse_json_line,
    parse_plain_line,
    up_errors,
)
from monky_deployd.domain.config import PolicyCfg, parse_config
from monky_deployd.domain.dotenv import parse_dotenv, render_dotenv
from monky_deployd.domain.drift import parse_event
from monky_deployd.domain.grant import parse_grant
from monky_deployd.domain.kv import pick_value, secret_place
from monky_deployd.domain.manifest import parse_manifest
from monky_deployd.domain.openbao_answers import kv_secret, read_answer
from monky_deployd.domain.policy import check_model
from monky_deployd.domain.policy_sources import check_sources
from monky_deployd.domain.registry_auth import parse_credentials, registry_of_image
from monky_deployd.domain.secret import Scrubber, Secret
from monky_deployd.errors import MonkyError

DATA = Path(__file__).parents[1] / "data"
CANARY = "c4n4ryPassw0rd"
# What is put into an input by chance, beside what stands in the examples already.
TOKENS = [b"{", b"}", b"[", b"]", b'"', b"\\", b"\\u0000", b"\\ud800", b"null", b"true", b"1e999"]
TOKENS += [b"-1", b"0", b"9" * 400, b"[" * 2000, b"\0", b"\xff", b"\xe2\x80\xae", b":", b",", b"/"]
TOKENS += [b"../", b"${X}", b"$$", b"\n", b"\r\n", b" ", b"&a *a ", b"<<: ", b"!!binary "]
# What is put where a value of a JSON document stands.
VALUES: list[Any] = [None, True, 0, -1, 2**70, 0.5, float("inf"), "", "x", "..", "\ud800", "\0"]
VALUES += ["/", "${X}", "\u202e", "a" * 300, [], {}, [None], [{}], {"": None}, {"x": []}]


@dataclass(frozen=True)
class Target:
    """What is fed, and examples of its input."""

    feed: Callable[[bytes], object]
    examples: tuple[bytes, ...]


def _json(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def _lines(name: str) -> tuple[bytes, ...]:
    return tuple(line for line in (DATA / name).read_bytes().splitlines() if line)


def _credentials(data: bytes) -> object:
    return parse_credentials("robot", Secret(data.decode("utf-8", "surrogateescape")), None)


def _answer(data: bytes) -> object:
    answer = read_answer(200, {"Date": "x", "Retry-After": "x"}, data, scrubber=Scrubber())
    place = secret_place(entry="db", mount="secret", path="env/db")
    secret = kv_secret(answer, place)
    return pick_value(secret, entry="db", path="env/db", key="password", whole_json=False)


def _policy(data: bytes) -> object:
    """Compose gives an object; anything may be in it."""
    try:
        model = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(model, dict):
        return None
    return check_model(
        model, PolicyCfg(), project_directory="/srv/release", real_path=lambda path: path
    )


def _events(data: bytes) -> object:
    text = data.decode("utf-8", "replace").splitlines()
    events = [event for line in text if (event := parse_json_line(line))]
    events += [parse_plain_line(line, ("web", "db")) for line in text]
    return fold_pull(events, ("web", "db")), up_errors(events)


def _dotenv(data: bytes) -> object:
    parse_dotenv(data)
    values = {"KEY": Secret(data.decode("utf-8", "surrogateescape"))}
    assert parse_dotenv(render_dotenv(values)) == values, "not read back as it was written"
    return None


MANIFEST = _json(
    schema=1,
    environment="env-a",
    generation=7,
    project="shop",
    compose={"files": [{"name": "compose.yaml", "content": "services: {}"}]},
    entries=[
        {"name": "A", "value": CANARY},
        {"name": "B", "path": "env-a/db", "key": "password"},
        {"name": "c", "path": "env-a/r", "use": "registry-auth", "registry_host": "reg.example"},
        {"name": "d", "path": "env-a/f", "use": "file", "target": "conf/d", "mode": "0400"},
    ],
    deploy={"pull": "always", "wait_timeout": 120, "on_failure": "rollback"},
)
SERVICE = {
    "image": "reg.example/shop/web:1",
    "ports": [{"mode": "ingress", "target": 80, "published": "8080", "protocol": "tcp"}],
    "volumes": [{"type": "bind", "source": "/srv/data", "target": "/data", "bind": {}}],
    "environment": {"PASSWORD": CANARY},
    "cap_add": ["NET_ADMIN"],
    "privileged": False,
    "networks": {"default": None},
    "deploy": {"replicas": 2},
}
MODEL = _json(
    name="shop",
    services={"web": SERVICE},
    networks={"default": {"name": "shop_default"}},
    volumes={"data": {"driver_opts": {"type": "none", "o": "bind", "device": "/"}}},
)
COMPOSE = b"""x-a: &a {image: web}
services:
  web: {<<: *a, env_file: [.env], extends: {file: base.yaml, service: web}}
include: [more.yaml]
"""
CONFIG = b"""environment: env-a
tenancy: {host: tenancy.example, wait: 55}
openbao: {url: "https://openbao.example:8200", mount: jwt-tenancy}
overlay: {proxy: {"tenancy.example:443": "127.0.0.1:8443"}}
policy: {allow: [], bind_roots: [/srv]}
"""
JWT = b".".join(
    base64.urlsafe_b64encode(part).rstrip(b"=")
    for part in (_json(alg="ES256"), _json(sub="env-a", exp=1, jti="j"), CANARY.encode())
)
SHAPES = tuple(
    json.dumps(shape).encode()
    for shape in json.loads((DATA / "credential_shapes.json").read_text())
)
LOGINS = (
    f"robot:{CANARY}".encode(),
    _json(username="robot$a", password=CANARY, registry_host="reg.example"),
    _json(auths={"reg.example": {"auth": base64.b64encode(f"r:{CANARY}".encode()).decode()}}),
    *SHAPES,
)
EVENT = _json(
    Action="die",
    Actor={"Attributes": {"name": "shop-web-1", "com.docker.compose.project": "shop"}},
    timeNano=1,
)
DISCONNECT = _json(
    Type="network",
    Action="disconnect",
    Actor={"Attributes": {"container": "c1", "name": "shop_default"}},
    timeNano=1,
)
KV_ANSWER = _json(data={"data": {"password": CANARY}, "metadata": {"version": 3}})

TARGETS = {
    "manifest": Target(lambda data: parse_manifest(data, environment="env-a"), (MANIFEST,)),
    "credentials": Target(_credentials, LOGINS),
    "compose-events": Target(
        _events, (*_lines("pull_transcripts.txt"), *_lines("plain_transcripts.txt"))
    ),
    "dotenv": Target(_dotenv, (b'A="1"\nB="\\$x\\n"\n', CANARY.encode(), "ü\u2028".encode())),
    "grant": Target(lambda data: parse_grant(data.decode("utf-8", "replace")), (JWT,)),
    "config": Target(
        lambda data: parse_config(data.decode("utf-8", "replace"), source="config.yaml"),
        (CONFIG,),
    ),
    "openbao": Target(_answer, (KV_ANSWER,)),
    "policy": Target(_policy, (MODEL,)),
    "sources": Target(
        lambda data: check_sources({"compose.yaml": data}, ["compose.yaml"], PolicyCfg()),
        (COMPOSE,),
    ),
    "engine-events": Target(parse_event, (EVENT, DISCONNECT)),
    "images": Target(
        lambda data: registry_of_image(data.decode("utf-8", "replace")),
        (b"reg.example:5000/shop/web:1@sha256:abc", b"nginx"),
    ),
}


def mutated(chance: random.Random, examples: tuple[bytes, ...]) -> bytes:
    """One of the examples, changed: in its bytes, or, where it is JSON, in what it says."""
    data = chance.choice(examples)
    if chance.random() < 0.5:
        with contextlib.suppress(ValueError, RecursionError):
            document = json.loads(data)
            for _ in range(chance.randint(1, 3)):
                document = _other_document(chance, document)
            return json.dumps(document).encode()
    return _other_bytes(chance, data, examples)


def _other_document(chance: random.Random, document: object) -> object:
    """The document with one of its values replaced, moved, wrapped or taken out."""
    places = list(_places(document))
    if not places:
        return chance.choice(VALUES)
    holder, key = chance.choice(places)
    kind = chance.randrange(6)
    if kind == 0:
        del holder[key]
    elif kind == 1:
        holder[key] = [holder[key]]
    elif kind == 2:
        holder[key] = {chance.choice(("x", "", "..", "\0")): holder[key]}
    elif kind == 3:
        other, place = chance.choice(places)
        holder[key] = copy.deepcopy(other[place])
    elif kind == 4 and isinstance(holder[key], str):
        text = holder[key].encode()
        holder[key] = _other_bytes(chance, text, (text,)).decode("utf-8", "replace")
    else:
        holder[key] = copy.deepcopy(chance.choice(VALUES))
    return document


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Each value in the document, as what holds it and where."""
    keys = range(len(document)) if isinstance(document, list) else document
    if isinstance(document, dict | list):
        for key in keys:
            yield document, key
            yield from _places(document[key])


def _other_bytes(chance: random.Random, example: bytes, examples: tuple[bytes, ...]) -> bytes:
    """The example with some of its bytes changed, moved, doubled or cut."""
    data = bytearray(example)
    for _ in range(chance.randint(1, 6)):
        start = chance.randint(0, len(data))
        end = min(len(data), start + chance.choice((1, 2, 8, 64)))
        kind = chance.randrange(6)
        if kind == 0:
            data[start:end] = chance.choice(TOKENS)
        elif kind == 1:
            data[start:start] = chance.choice(TOKENS)
        elif kind == 2:
            del data[start:end]
        elif kind == 3:
            data[start:start] = data[start:end]
        elif kind == 4 and start < len(data):
            data[start] = chance.randrange(256)
        else:
            other = chance.choice(examples)
            cut = chance.randint(0, len(other))
            data[start:end] = other[cut : cut + 32]
    return bytes(data)


def attempt(target: Target, data: bytes) -> tuple[str, str]:
    """How it ended, and a finding or "": an untyped exception, or a secret in a typed one."""
    before = data.count(CANARY.encode())
    try:
        target.feed(data)
    except MonkyError as error:
        text = "".join(traceback.format_exception_only(error)) + repr(error) + str(error)
        # An input that had it twice may have it where a name stands.
        leaked = before == 1 and CANARY in text and not _in_a_name(data)
        return type(error).__name__, f"a secret in: {error}" if leaked else ""
    except Exception as error:  # noqa: BLE001 - to find these is what this is for
        return type(error).__name__, "".join(traceback.format_exception(error)[-3:])
    return "good", ""


def _in_a_name(data: bytes) -> bool:
    """Whether a mutation put the canary where no secret stands in the examples."""
    places = (b'"value": "', b'"password": "', b'"PASSWORD": "', b"robot:", b".")
    return not any(place + CANARY.encode() in data for place in places)
