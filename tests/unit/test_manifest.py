"""The manifest: what is taken, what is refused, and that a refusal names places and no values."""

import json
import traceback
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monky_deployd.domain.manifest import (
    Deploy,
    Entry,
    Manifest,
    OnFailure,
    PullPolicy,
    Use,
    parse_manifest,
)
from monky_deployd.errors import EntryError, ManifestError, Reason

ENV = "env-dev-01"
CANARY = "c4n4ry-value"

FILE = {"name": "tls-key", "value": CANARY, "use": "file", "target": "tls/key.pem"}
ROBOT = {
    "name": "harbor",
    "path": "env-dev-01/harbor",
    "use": "registry-auth",
    "registry_host": "harbor.example",
}


def document(**changes: Any) -> dict[str, Any]:
    """A small manifest; a change to None leaves that field out."""
    whole = {"schema": 1, "environment": ENV, "generation": 7, "project": "shop", **changes}
    return {name: value for name, value in whole.items() if value is not None}


def parse(**changes: Any) -> Manifest:
    return parse_manifest(json.dumps(document(**changes)), environment=ENV)


def parse_entry(**fields: Any) -> Entry:
    [entry] = parse(entries=[fields]).entries
    return entry


def compose(*names: str) -> dict[str, Any]:
    return {"files": [{"name": name, "content": CANARY} for name in names]}


def refusal(text: str | bytes | None = None, **changes: Any) -> ManifestError:
    """The refusal, which says nothing of any value."""
    text = json.dumps(document(**changes)) if text is None else text
    with pytest.raises(ManifestError) as caught:
        parse_manifest(text, environment=ENV)
    error = caught.value
    said = "".join([str(error), repr(error), error.remedy, *traceback.format_exception(error)])
    assert CANARY not in said
    assert not error.retryable
    # An EntryError is about a value and tried again; another value does not mend a manifest.
    assert not isinstance(error, EntryError)
    return error


def entry_refusal(*entries: Any) -> str:
    error = refusal(entries=list(entries))
    assert error.reason is Reason.ENTRY_REFUSED
    return str(error)


# What is taken


def test_a_small_manifest_has_the_documented_defaults() -> None:
    manifest = parse()
    assert (manifest.generation, manifest.project, manifest.entries) == (7, "shop", ())
    assert manifest.compose is None
    assert manifest.deploy == Deploy(
        pull=PullPolicy.ALWAYS,
        wait_timeout=120,
        on_failure=OnFailure.ROLLBACK,
        remove_orphans=True,
        keep_releases=3,
    )


def test_a_whole_manifest_is_read() -> None:
    manifest = parse(
        compose=compose("compose.yaml", "./parts/more.yaml"),
        entries=[
            {"name": "LOG_LEVEL", "value": ""},
            {"name": "DB_PASSWORD", "path": "a/db", "key": "password"},
            {**FILE, "mode": "0400"},
            ROBOT,
        ],
        deploy={
            "pull": "missing",
            "wait_timeout": 5,
            "on_failure": "stop",
            "remove_orphans": False,
            "keep_releases": 1,
        },
    )
    assert manifest.compose is not None
    assert [f.name for f in manifest.compose.files] == ["compose.yaml", "./parts/more.yaml"]
    assert [(e.name, e.use) for e in manifest.entries] == [
        ("LOG_LEVEL", Use.ENV),
        ("DB_PASSWORD", Use.ENV),
        ("tls-key", Use.FILE),
        ("harbor", Use.REGISTRY_AUTH),
    ]
    plain, secret, file, robot = manifest.entries
    assert (plain.value, plain.path) == ("", None)
    assert (secret.value, secret.path, secret.key) == (None, "a/db", "password")
    assert (file.target, file.mode) == ("tls/key.pem", 0o400)
    assert robot.registry_host == "harbor.example"
    assert manifest.deploy.model_dump() == {
        "pull": "missing",
        "wait_timeout": 5,
        "on_failure": "stop",
        "remove_orphans": False,
        "keep_releases": 1,
    }


def test_unknown_fields_are_ignored_everywhere() -> None:
    new = {"since": "2.0", "nested": [{}]}
    manifest = parse(
        **new,
        compose={**new, "files": [{**new, "name": "compose.yaml", "content": ""}]},
        entries=[{**new, "name": "A", "value": "1"}],
        deploy=new,
    )
    assert manifest == parse(
        compose={"files": [{"name": "compose.yaml", "content": ""}]},
        entries=[{"name": "A", "value": "1"}],
    )


def test_a_field_that_is_null_is_as_good_as_left_out() -> None:
    nulls = dict.fromkeys(["path", "key", "target", "mode", "registry_host"])
    assert parse_entry(name="A", value="1", **nulls) == parse_entry(name="A", value="1")


@pytest.mark.parametrize(
    ("mode", "meant"),
    [("0444", 0o444), ("444", 0o444), ("0600", 0o600), ("0755", 0o755), (None, 0o444)],
)
def test_a_mode_is_octal(mode: str | None, meant: int) -> None:
    assert parse_entry(**FILE, mode=mode).mode == meant


def test_one_name_may_stand_under_several_uses_files_and_hosts() -> None:
    entries = [
        {"name": "harbor", "value": "1"},
        {**FILE, "name": "harbor"},
        {**FILE, "name": "harbor", "target": "other"},
        ROBOT,
        {**ROBOT, "registry_host": "mirror.example"},
    ]
    assert len(parse(entries=entries).entries) == 5


def test_neither_values_nor_compose_files_show_in_a_repr() -> None:
    manifest = parse(entries=[FILE], compose=compose("compose.yaml"))
    assert CANARY not in repr(manifest)


def test_a_byte_order_mark_is_borne() -> None:
    text = json.dumps(document()).encode("utf-8-sig")
    assert parse_manifest(text, environment=ENV) == parse()


# What is refused as a whole


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("", "is not JSON"),
        (CANARY, "is not JSON"),
        (b"\xff\xfe" + CANARY.encode(), "is not JSON"),
        (b"\xff" + CANARY.encode(), "is not JSON"),
        ('{"schema": 1, "schema": 1}', "names a field twice"),
        ('{"schema": 1, "entries": [{"value": "a", "value": "b"}]}', "names a field twice"),
        ('{"schema": NaN}', "is not JSON"),
        ('{"schema": 1' + "0" * 5000 + "}", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"a":' * 100_000, "is not JSON"),
        ("[]", "is not a JSON object"),
        ("null", "is not a JSON object"),
        (f'"{CANARY}"', "is not a JSON object"),
    ],
    ids=range(13),
)
def test_what_is_no_document_is_refused(text: str | bytes, phrase: str) -> None:
    assert phrase in str(refusal(text))


@pytest.mark.parametrize(
    ("schema", "phrase"),
    [
        (2, "has schema 2; this agent reads 1; upgrade monky-deployd"),
        (0, "has schema 0"),
        (None, "has no schema"),
        ("1", "not an integer"),
        (1.0, "not an integer"),
        (True, "not an integer"),
        ({"a": CANARY}, "not an integer"),
    ],
)
def test_another_schema_is_refused(schema: Any, phrase: str) -> None:
    assert phrase in str(refusal(schema=schema, entries=CANARY))


def test_the_manifest_of_another_environment_is_refused() -> None:
    error = refusal(environment="env-qa-02", entries=[FILE])
    assert str(error) == "the manifest is for environment 'env-qa-02', not 'env-dev-01'"


NOT_INTEGERS = ["7", 7.0, 7.5, True, [], {}, CANARY]

FIELDS: list[tuple[str, list[Any]]] = [
    ("environment", ["", "Env", "-a", "a-", "a_b", "a" * 65, "env-dev-01\n", CANARY + "/", 1, []]),
    ("generation", [*NOT_INTEGERS, 0, -1, 2**53 + 1, 10**400]),
    ("project", ["", "Shop", "-a", "a b", "a" * 64, "shop\n", "../a", 1]),
    ("compose", [CANARY, [], {}, {"files": []}, {"files": {}}, {"files": [CANARY]}]),
    ("compose", [{"files": [{"name": "a"}]}, {"files": [{"name": "a", "content": 1}]}]),
    ("compose", [{"files": [{"name": "a", "content": f"{CANARY}\ud800"}]}]),
    ("compose", [compose(*(f"f{n}" for n in range(33)))]),
    ("entries", [CANARY, {}, {"a": 1}, 1]),
    ("deploy", [CANARY, [], {"pull": "sometimes"}, {"on_failure": CANARY}, {"pull": 1}]),
    ("deploy", [{"wait_timeout": value} for value in [*NOT_INTEGERS, 0, 3601]]),
    ("deploy", [{"keep_releases": value} for value in [*NOT_INTEGERS, 0, 101]]),
    ("deploy", [{"remove_orphans": value} for value in [0, 1, "true", "yes", []]]),
]


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in FIELDS for value in values]
)
def test_a_field_of_another_kind_is_refused_by_its_place(field: str, value: Any) -> None:
    error = refusal(**{field: value})
    assert str(error).startswith(f"the manifest is invalid: {field}")
    assert error.reason is Reason.MANIFEST_INVALID


@pytest.mark.parametrize("field", ["environment", "generation", "project"])
def test_a_field_that_is_missing_is_named(field: str) -> None:
    assert f"{field}: Field required" in str(refusal(**{field: None}))


def test_every_fault_is_named_but_not_a_thousand_of_them() -> None:
    error = refusal(generation=0, project="")
    assert "generation: " in str(error)
    assert "project: " in str(error)
    many = entry_refusal(*({"name": f"E{number}"} for number in range(1000)))
    assert "'E0'" in many
    assert "and 990 more" in many
    assert len(many) < 2000


# What is refused of an entry

BAD_ENTRIES = [
    ({"value": None}, "exactly one of value and path"),
    ({"path": "a/b"}, "exactly one of value and path"),
    ({"key": "k"}, "key goes with path"),
    ({"value": 1}, "valid string"),
    ({"value": {"a": CANARY}}, "valid string"),
    ({"value": [CANARY]}, "valid string"),
    ({"value": True}, "valid string"),
    ({"value": f"{CANARY}\ud800"}, "value): is not valid Unicode text"),
    ({"value": None, "path": "a\udfff"}, "path): is not valid Unicode text"),
    ({"target": "a"}, 'target goes with use "file" only'),
    ({"use": "file"}, 'target is needed with use "file"'),
    ({"use": "file", "target": ""}, 'target is needed with use "file"'),
    ({"use": "file", "target": 1}, "valid string"),
    ({"registry_host": "a.example"}, 'registry_host goes with use "registry-auth" only'),
    (
        {"use": "file", "target": "a", "registry_host": "a.example"},
        'registry_host goes with use "registry-auth" only',
    ),
    ({"use": "secret-file"}, "a use that this agent does not know: 'secret-file'"),
    ({"use": "ENV"}, "does not know: 'ENV'"),
    ({"use": "env "}, "does not know: 'env '"),
    ({"use": ""}, "does not know: ''"),
    ({"use": None}, "does not know: not a string"),
    ({"use": 1}, "does not know: not a string"),
    ({"use": ["env"]}, "does not know: not a string"),
    ({"use": {"env": CANARY}}, "does not know: not a string"),
]
BAD_MODES: list[Any] = [
    "4755",
    "04755",
    "2755",
    "1777",
    "0o444",
    "0888",
    "44",
    "",
    " 444",
    "444\n",
    "u=r",
]
BAD_MODES += ["0044", "000", 444, 0o444, 292.0, True, [CANARY]]


@pytest.mark.parametrize(("fields", "phrase"), BAD_ENTRIES, ids=range(len(BAD_ENTRIES)))
def test_an_entry_is_refused_by_its_name(fields: dict[str, Any], phrase: str) -> None:
    said = entry_refusal({"name": "FINE", "value": "1"}, {"name": "BAD", "value": CANARY, **fields})
    assert "'BAD'" in said
    assert "'FINE'" not in said
    assert phrase in said


@pytest.mark.parametrize("mode", BAD_MODES)
def test_a_mode_that_is_not_an_ordinary_octal_one_is_refused(mode: Any) -> None:
    assert "mode must be an octal string" in entry_refusal({**FILE, "mode": mode})


@pytest.mark.parametrize(
    ("entry", "shown"),
    [
        ({}, "entry without a name (entries.0.name)"),
        ({"name": 5, "value": "x"}, "entry without a name (entries.0.name)"),
        (CANARY, "entry without a name (entries.0)"),
        (None, "entry without a name (entries.0)"),
        ([], "entry without a name (entries.0)"),
        ({"name": "", "value": "x"}, "entry '' has an unusable name"),
        ({"name": "a\nb", "value": "x"}, r"entry 'a\nb' has an unusable name"),
        ({"name": "a\u202eb", "value": "x"}, r"entry 'a\u202eb' has an unusable name"),
        ({"name": "n" * 257, "value": "x"}, f"entry '{'n' * 76}... has an unusable name"),
    ],
)
def test_a_name_that_can_not_be_shown_is_refused(entry: Any, shown: str) -> None:
    assert shown in entry_refusal(entry)


@pytest.mark.parametrize(
    "entries",
    [
        [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}],
        [{"name": "A", "value": "1"}, {"name": "A", "path": "a/b"}],
        [{**ROBOT, "name": "A"}, {**ROBOT, "name": "A", "path": "other"}],
        [{**FILE, "name": "A"}, {**FILE, "name": "A"}],
    ],
)
def test_the_same_entry_twice_is_refused(entries: list[dict[str, Any]]) -> None:
    assert "entry 'A' stands in the manifest twice" in entry_refusal(*entries)


# Paths: tests/unit/test_paths.py has every trick


@pytest.mark.parametrize(
    ("target", "phrase"),
    [
        ("../up", "'..' part"),
        ("/etc/passwd", "is absolute"),
        ("a\nb", "control"),
        (".env", "collides with the agent's own .env"),
        ("./.env", "collides with the agent's own .env"),
        (".env/a", "collides with the agent's own .env"),
        (".monky", "collides with the agent's own .monky"),
        (".monky/release.json", "collides with the agent's own .monky"),
        ("./.monky/a/b", "collides with the agent's own .monky"),
        ("compose.yaml", "collides with compose file 'compose.yaml'"),
        ("compose.yaml/a", "collides with compose file 'compose.yaml'"),
        ("parts", "collides with compose file 'parts/more.yaml'"),
        ("first", "collides with entry 'first'"),
        ("first/a", "collides with entry 'first'"),
    ],
)
def test_a_target_that_is_not_free_is_refused_by_the_entrys_name(target: str, phrase: str) -> None:
    error = refusal(
        compose=compose("compose.yaml", "parts/more.yaml"),
        entries=[{**FILE, "name": "first", "target": "first"}, {**FILE, "target": target}],
    )
    assert error.reason is Reason.ENTRY_REFUSED
    assert str(error).startswith("entry 'tls-key': target ")
    assert phrase in str(error)


@pytest.mark.parametrize(
    ("names", "phrase"),
    [
        (["../compose.yaml"], "compose file '../compose.yaml' holds an empty, '.' or '..' part"),
        (["/compose.yaml"], "compose file '/compose.yaml' is absolute"),
        ([""], "compose file '' is empty"),
        ([".env"], "compose file '.env' collides with the agent's own .env"),
        ([".monky/a"], "compose file '.monky/a' collides with the agent's own .monky"),
        (["a", "./a"], "compose file './a' collides with compose file 'a'"),
        (["a", "a/b"], "compose file 'a/b' collides with compose file 'a'"),
    ],
)
def test_a_compose_file_whose_name_is_not_free_is_refused(names: list[str], phrase: str) -> None:
    error = refusal(compose=compose(*names))
    assert phrase in str(error)
    assert error.reason is Reason.MANIFEST_INVALID


def test_neighbours_of_the_agents_own_paths_are_free() -> None:
    targets = [".env.local", ".monkyx/a", "a/.env", "a/.monky/b", ".ENV"]
    entries = [{**FILE, "name": f"f{n}", "target": t} for n, t in enumerate(targets)]
    assert [entry.target for entry in parse(entries=entries).entries] == targets


def test_there_may_be_two_thousand_entries() -> None:
    entries = [{**FILE, "name": f"f{n}", "target": f"d/{n}/f"} for n in range(2000)]
    assert len(parse(entries=entries).entries) == 2000
    assert "at most 2000" in str(refusal(entries=[*entries, {**FILE, "target": "x"}]))


# Anything at all

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(CANARY),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
words = st.sampled_from(
    ["env", "file", "registry-auth", "a/b", "../a", ".env", "0444", "harbor.example", ENV, "shop"]
)
field_values = words | json_values
entries_like = st.dictionaries(st.sampled_from(list(Entry.model_fields)), field_values)
manifests_like = st.fixed_dictionaries(
    {"schema": st.just(1) | json_values},
    optional={
        "environment": st.just(ENV) | json_values,
        "generation": st.just(7) | json_values,
        "project": st.just("shop") | json_values,
        "compose": st.just(compose("compose.yaml")) | json_values,
        "entries": st.lists(entries_like | json_values, max_size=3) | json_values,
        "deploy": st.dictionaries(st.sampled_from(list(Deploy.model_fields)), field_values),
    },
)


@given(json_values | manifests_like)
def test_arbitrary_json_is_a_manifest_or_a_manifest_error(value: Any) -> None:
    try:
        parse_manifest(json.dumps(value), environment=ENV)
    except ManifestError as error:
        assert str(error)


@given(st.binary() | st.text())
def test_arbitrary_bytes_are_a_manifest_error(text: str | bytes) -> None:
    refusal(text)
