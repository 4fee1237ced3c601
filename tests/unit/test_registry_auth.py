"""Registry credentials: each accepted shape, each refusal, and the `config.json` made of them."""

import base64
import json
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monky_deployd.domain.registry_auth import (
    HUB_KEY,
    Credential,
    docker_config,
    normalise_host,
    parse_credentials,
    registry_of_image,
)
from monky_deployd.domain.secret import Secret
from monky_deployd.errors import EntryError, Reason

CANARY = "c4n4ry-word"
HOST = "harbor.example.org"
SHAPES = {
    shape["id"]: shape["in"]
    for shape in json.loads(
        (Path(__file__).parents[1] / "data" / "credential_shapes.json").read_text()
    )
}


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def parse(value: object, host: str | None = HOST) -> tuple[Credential, ...]:
    """What entry `robot` gives for `value`: text, or a document that is made JSON."""
    text = value if isinstance(value, str) else json.dumps(value)
    return parse_credentials("robot", Secret(text), host)


def logins(credentials: tuple[Credential, ...]) -> list[tuple[str, str, str]]:
    return [(c.host, c.username, c.password.reveal()) for c in credentials]


def refusal(value: object, host: str | None = HOST) -> EntryError:
    with pytest.raises(EntryError) as caught:
        parse(value, host)
    return caught.value


def everything_said(error: BaseException) -> str:
    """Every text of the error and of all errors behind it, shown or not."""
    said = []
    behind: BaseException | None = error
    while behind is not None:
        said += [str(behind), repr(vars(behind)), *traceback.format_exception(behind)]
        behind = behind.__context__
    return "".join(said)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("S1", (HOST, "robot$proj+ci", "p:w$x")),
        ("S2", (HOST, "robot$proj+ci", "p:w$x")),
        ("S6", (HOST, "u", "p")),
        ("S7", (HOST, "robot$proj+ci", "AbC")),
    ],
)
def test_a_login_without_host_is_for_the_entrys_host(
    shape: str, expected: tuple[str, str, str]
) -> None:
    assert logins(parse(SHAPES[shape])) == [expected]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("S3", ("reg.example.org", "u", "p")),
        ("S4", ("reg.example.org", "u", "p")),
        ("S5", ("reg.example.org", "u", "p")),
        ("S14", ("a", "u", "p")),
    ],
)
def test_a_document_with_hosts_needs_none_from_the_entry(
    shape: str, expected: tuple[str, str, str]
) -> None:
    assert logins(parse(SHAPES[shape], None)) == [expected]


@pytest.mark.parametrize("shape", ["S10", "S11", "S13"])
def test_what_would_make_docker_send_nothing_is_refused(shape: str) -> None:
    assert "'robot'" in refusal(SHAPES[shape], None if shape == "S13" else HOST).cause


@pytest.mark.parametrize(
    "document",
    [
        {"username": "u", "password": "p"},
        {"name": "u", "secret": "p"},
        {"name": "u", "token": "p", "id": 3},
        {"auth": b64("u:p")},
        {"auth": b64("u:p"), "username": "u", "password": "p", "email": "u@example.org"},
        {"username": "u", "password": "p", "name": "the shared robot", "identitytoken": ""},
    ],
)
def test_json_may_bring_its_own_host(document: dict[str, str]) -> None:
    document = document | {"registry_host": f"https://{HOST.upper()}/v2/"}
    assert logins(parse(document, None)) == [(HOST, "u", "p")]
    assert logins(parse(document, HOST)) == [(HOST, "u", "p")]


def test_an_auths_document_keeps_all_its_hosts_and_nothing_else() -> None:
    document = {
        "auths": {
            "https://index.docker.io/v1/": {"auth": b64("hub:one")},
            f"https://{HOST}": {"username": "robot$a+b", "password": "two"},
            f"{HOST}:8443": {"auth": b64("third:th:ree")},
        },
        "credsStore": "desktop",
        "credHelpers": {"x": "y"},
        "HttpHeaders": {"A": "b"},
        "name": "the shared robot",
    }
    assert logins(parse(document, HOST)) == [
        (HUB_KEY, "hub", "one"),
        (HOST, "robot$a+b", "two"),
        (f"{HOST}:8443", "third", "th:ree"),
    ]


def test_one_host_twice_with_the_same_login_is_one_credential() -> None:
    auth = {"auth": b64("u:p")}
    assert logins(parse({"auths": {HOST: auth, f"https://{HOST}/": auth}})) == [(HOST, "u", "p")]


def test_an_auth_broken_over_lines_is_read() -> None:
    wrapped = base64.encodebytes(f"user:{'long' * 30}".encode()).decode()
    assert wrapped.count("\n") > 1
    assert logins(parse({"auth": wrapped})) == [(HOST, "user", "long" * 30)]


@pytest.mark.parametrize("password", ["p", " p ", "p:w", "ü€🔑", "$$x${Y}", "\\", '"', "{}"])
def test_a_password_is_taken_as_it_is_in_every_shape(password: str) -> None:
    pair = f"ü:{password}"
    for value in (
        pair,
        {"username": "ü", "password": password},
        {"name": "ü", "secret": password},
        {"auth": b64(pair)},
        {"auths": {HOST: {"auth": b64(pair)}}},
    ):
        assert logins(parse(value)) == [(HOST, "ü", password)]


REFUSED: dict[str, tuple[object, str | None, str]] = {
    "no host, pair": (f"u:{CANARY}", None, "for which registry"),
    "no host, JSON": ({"username": "u", "password": CANARY}, None, "for which registry"),
    "no colon": (CANARY, HOST, "no colon"),
    "empty": ("", HOST, "no colon"),
    "empty user": (f":{CANARY}", HOST, "empty user name"),
    "empty password": (f"{CANARY}:", HOST, "empty password"),
    "empty user, JSON": ({"username": "", "password": CANARY}, HOST, "empty user name"),
    "empty password, JSON": ({"name": CANARY, "secret": ""}, HOST, "empty password"),
    "empty password, auth": ({"auth": b64(f"{CANARY}:")}, HOST, "empty password"),
    "colon in the user": ({"username": f"u:{CANARY}", "password": "p"}, HOST, "with a colon"),
    "line end": (f"u:{CANARY}\n", HOST, "control character"),
    "NUL": ({"username": "u", "password": f"{CANARY}\0"}, HOST, "control character"),
    "escape in the user": ({"username": f"\x1b{CANARY}", "password": "p"}, HOST, "control"),
    "C1 control": (f"u\x85:{CANARY}", HOST, "control character"),
    "surrogate": (f'{{"username":"u","password":"{CANARY}\\ud800"}}', HOST, "invalid Unicode"),
    "BOM": (f"\ufeffu:{CANARY}", HOST, "byte order mark"),
    "BOM before JSON": (f'\ufeff{{"username":"u","password":"{CANARY}"}}', HOST, "byte order"),
    "broken JSON": (f'{{"username":"u","password":"{CANARY}"', HOST, "not valid JSON"),
    "JSON-like pair": (f"{{u:{CANARY}}}", HOST, "not valid JSON"),
    "duplicate field": (
        f'{{"username":"u","password":"a","password":"{CANARY}"}}',
        HOST,
        "names a field twice",
    ),
    "deep JSON": ("[" * 100_000 + CANARY, HOST, "not valid JSON"),
    "JSON list": ([f"u:{CANARY}"], HOST, "not an object"),
    "JSON string": (json.dumps(f"u:{CANARY}"), HOST, "not an object"),
    "empty object": ({}, HOST, "without a user name and a password"),
    "other object": ({CANARY: CANARY}, HOST, "without a user name and a password"),
    "user alone": ({"username": CANARY}, HOST, "without a user name and a password"),
    "a wrapped secret": ({"data": {"username": "u", "password": CANARY}}, HOST, "without a user"),
    "number": ({"username": "u", "password": 12345678}, HOST, "password that is not a string"),
    "null": ({"username": None, "password": CANARY}, HOST, "username that is not a string"),
    "auth list": ({"auth": [CANARY]}, HOST, "auth that is not a string"),
    "not base64": ({"auth": f"!{CANARY}!"}, HOST, "not base64"),
    "junk in base64": ({"auth": f"{b64('u:p')[:2]}!{b64('u:p')[2:]}"}, HOST, "not base64"),
    "unpadded base64": ({"auth": b64("u:pw").rstrip("=")}, HOST, "not base64"),
    "base64 of no text": ({"auth": base64.b64encode(b"u:\xff").decode()}, HOST, "not base64"),
    "auth, no colon": ({"auth": b64(CANARY)}, HOST, "without a colon"),
    "identity token": ({"auth": b64("u:p"), "identitytoken": CANARY}, HOST, "(identitytoken)"),
    "registry token": ({"auths": {HOST: {"registrytoken": CANARY}}}, HOST, "(registrytoken)"),
    "two logins": (
        {"auth": b64(f"u:{CANARY}"), "username": "u", "password": "p"},
        HOST,
        "two logins that differ",
    ),
    "two robots": ({"name": "u", "secret": CANARY, "token": "t"}, HOST, "two logins that differ"),
    "auths and a login": (
        {"auths": {HOST: {"auth": b64("u:p")}}, "username": "u", "password": CANARY},
        HOST,
        "both auths and a single login",
    ),
    "auths list": ({"auths": [CANARY]}, HOST, "auths without any registry host"),
    "no auths": ({"auths": {}}, HOST, "auths without any registry host"),
    "login in a helper": ({"auths": {HOST: {}}, "credsStore": CANARY}, HOST, "(number 1) that is"),
    "auths member": ({"auths": {HOST: CANARY}}, HOST, "(number 1) that is not a JSON object"),
    "second of auths": (
        {"auths": {HOST: {"auth": b64("u:p")}, "b.example": {"auth": CANARY}}},
        HOST,
        "(number 2) that holds an auth that is not base64",
    ),
    "host of auths": ({"auths": {f"{CANARY} x": {"auth": b64("u:p")}}}, HOST, "host in auths"),
    "one host, two logins": (
        {"auths": {HOST: {"auth": b64("u:p")}, f"{HOST}/": {"auth": b64(f"u:{CANARY}")}}},
        HOST,
        "two different credentials for one registry host",
    ),
    "other hosts in auths": (
        {"auths": {f"{CANARY}.example": {"auth": b64("u:p")}}},
        HOST,
        "not among the hosts",
    ),
    "another host of its own": (
        {"username": "u", "password": "p", "registry_host": f"{CANARY}.example"},
        HOST,
        "another in its value",
    ),
    "another port of its own": (
        {"username": "u", "password": CANARY, "registry_host": f"{HOST}:443"},
        HOST,
        "another in its value",
    ),
    "bad host of its own": (
        {"username": "u", "password": "p", "registry_host": f"https://u:{CANARY}@{HOST}"},
        HOST,
        "registry_host that holds a user name",
    ),
    "number as a host": (
        {"username": "u", "password": CANARY, "registry_host": 5},
        HOST,
        "registry_host that is not a string",
    ),
    "empty host": (f"u:{CANARY}", "", "registry_host that is empty"),
    "bad host": (f"u:{CANARY}", "a b", "registry_host that is not a host name"),
}


@pytest.mark.parametrize(("value", "host", "phrase"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refusal_names_the_entry_and_nothing_of_its_value(
    value: object, host: str | None, phrase: str
) -> None:
    error = refusal(value, host)
    assert error.cause.startswith("entry 'robot' ")
    assert phrase in error.cause
    assert error.remedy
    assert error.reason is Reason.ENTRY_REFUSED
    said = everything_said(error)
    for secret in (CANARY, b64(CANARY).rstrip("=")[:-1], "12345678"):
        assert secret not in said


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "auths",
                    "auth",
                    "username",
                    "password",
                    "name",
                    "secret",
                    "token",
                    "registry_host",
                ]
            )
            | st.text(),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.text() | json_values.map(json.dumps), st.none() | st.just(HOST) | st.text())
def test_any_value_gives_usable_credentials_or_an_entry_error(text: str, host: str | None) -> None:
    try:
        credentials = parse_credentials("robot", Secret(text), host)
    except EntryError:
        return
    for credential in credentials:
        assert normalise_host(credential.host) == credential.host
        user, _, password = (
            base64.b64decode(credential.auth.reveal(), validate=True).decode().partition(":")
        )
        assert (user, password) == (credential.username, credential.password.reveal())
        assert user
        assert password


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("harbor.example.org", "harbor.example.org"),
        ("https://harbor.example.org", "harbor.example.org"),
        ("HTTP://harbor.example.org:8080/v2/", "harbor.example.org:8080"),
        ("harbor.example.org/project/app", "harbor.example.org"),
        ("  Harbor.Example.ORG/ \n", "harbor.example.org"),
        ("harbor.example.org:443", "harbor.example.org:443"),
        ("https://harbor.example.org:443/", "harbor.example.org:443"),
        ("localhost:5000", "localhost:5000"),
        ("127.0.0.1:5000", "127.0.0.1:5000"),
        ("[2001:DB8::1]:5000", "[2001:db8::1]:5000"),
        ("xn--mller-kva.example", "xn--mller-kva.example"),
        ("notdocker.io", "notdocker.io"),
        ("docker.io:443", "docker.io:443"),
        *(
            (f"{scheme}{alias}{path}", HUB_KEY)
            for alias in (
                *("docker.io", "index.docker.io", "registry-1.docker.io"),
                *("registry.hub.docker.com", "hub.docker.com", "Docker.IO"),
            )
            for scheme, path in (("", ""), ("https://", ""), ("", "/v1/"), ("https://", "/v1"))
        ),
        (HUB_KEY, HUB_KEY),
    ],
)
def test_a_host_becomes_the_key_that_docker_looks_up(text: str, host: str) -> None:
    assert normalise_host(text) == host


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "https://", "/", "https:///x", "//harbor.example.org", "u:p@harbor.example.org"),
        *("https://u@harbor.example.org/x", "harbor example.org", "harbor.example.org :443"),
        *("harbor.example.org:", "harbor.example.org:0", "harbor.example.org:65536"),
        *("harbor.example.org:x", "harbor.example.org:443:1", "a\tb", "a\0b", "a?x=1", "a#b"),
        *("-a.example", "a-.example", "a..example", "a.example.", ".example", "my_registry:5000"),
        *("::1", "[::1", "ftp://a.example", "müller.example", "\u212aelvin.example", "*.example"),
    ],
)
def test_what_no_image_can_name_is_no_host(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(is|has|holds) ") as caught:
        normalise_host(text)
    assert "example" not in str(caught.value)


def credential(host: str = HOST, username: str = "u", password: str = "p") -> Credential:
    return Credential(host, username, Secret(password))


def test_the_document_holds_auths_and_nothing_else() -> None:
    document = docker_config([("robot", credential(username="robot$a+b", password="p:ü$"))])
    assert (
        document == f'{{"auths": {{"{HOST}": {{"auth": "{b64("robot$a+b:p:ü$")}"}}}}}}\n'.encode()
    )


def test_no_credentials_give_empty_auths() -> None:
    assert docker_config([]) == b'{"auths": {}}\n'


def test_the_order_of_entries_does_not_change_the_document() -> None:
    entries = [(f"e{n}", credential(host=f"{n}.example")) for n in (2, 3, 1)]
    document = docker_config(entries)
    assert document == docker_config(reversed(entries))
    assert list(json.loads(document)["auths"]) == ["1.example", "2.example", "3.example"]


def test_the_same_credential_from_two_entries_is_written_once() -> None:
    assert docker_config([("a", credential()), ("b", credential())]) == docker_config(
        [("a", credential())]
    )


@pytest.mark.parametrize("other", [credential(username=CANARY), credential(password=CANARY)])
def test_two_credentials_for_one_host_are_refused_by_both_names(other: Credential) -> None:
    entries = [("one", credential()), ("fine", credential("b.example")), ("two", other)]
    with pytest.raises(EntryError) as caught:
        docker_config(entries)
    assert f"entries 'one' and 'two' for {HOST}" in caught.value.cause
    assert "fine" not in caught.value.cause
    assert CANARY not in everything_said(caught.value)


def test_every_conflict_stands_in_the_one_error() -> None:
    hosts = ("a.example", "b.example")
    entries = [(f"{p}-{h}", credential(h, password=p)) for p in ("old", "new") for h in hosts]
    with pytest.raises(EntryError, match=r"'old-a.*'new-a.*'old-b.*'new-b"):
        docker_config(entries)


def test_a_credential_never_shows_itself() -> None:
    shown = credential(username=CANARY, password=CANARY)
    assert CANARY not in f"{shown!r} {shown} {shown.auth!r}"
    assert b64(CANARY)[:8] not in f"{shown!r} {shown.auth}"


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("nginx", "docker.io"),
        ("nginx:1.27", "docker.io"),
        ("acme/web:1", "docker.io"),
        ("docker.io/library/nginx", "docker.io"),
        ("index.docker.io/acme/web", "docker.io"),
        ("localhost/web", "localhost"),
        ("localhost:5000/web:1", "localhost:5000"),
        ("registry:5000", "docker.io"),
        ("registry:5000/web", "registry:5000"),
        ("harbor.example.org/team/web:1", "harbor.example.org"),
        ("harbor.example.org/web@sha256:" + "0" * 64, "harbor.example.org"),
        ("web@sha256:" + "0" * 64, "docker.io"),
        ("[::1]:5000/web", "[::1]:5000"),
        ("Registry/web", "Registry"),
        ("", "docker.io"),
    ],
)
def test_an_image_names_its_registry(image: str, registry: str) -> None:
    assert registry_of_image(image) == registry


@pytest.mark.parametrize(
    "image", ["nginx", "acme/web:1", "docker.io/acme/web", "index.docker.io/x"]
)
def test_an_image_of_the_hub_finds_the_hubs_key(image: str) -> None:
    assert normalise_host(registry_of_image(image)) == HUB_KEY
