"""From a manifest to the files of a release: its id, its files, and what makes a container new."""

import base64
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from monky_deployd.domain.manifest import ComposeFile, Manifest, parse_manifest
from monky_deployd.domain.rendering import (
    FILES_LABEL,
    METADATA_FILE,
    Release,
    RenderedFile,
    Rendering,
    Resolved,
    files_override,
    host_compose_files,
    parse_release,
    pin_images,
    render,
)
from monky_deployd.domain.secret import Secret
from monky_deployd.errors import EntryError, ManifestError

ENV = "env-dev-01"
CANARY = "c4n4ry-value"
KEY = b"k" * 32
RELEASE_DIR = "/var/lib/monky-deployd/releases/7-0123456789abcdef"

LEVEL = {"name": "LEVEL", "value": "info"}
PASSWORD = {"name": "DB_PASSWORD", "path": "a/db", "key": "password"}
TLS_KEY = {"name": "tls-key", "path": "a/tls", "use": "file", "target": "tls/key.pem"}
CONF = {"name": "conf", "value": "x", "use": "file", "target": "./conf/app.conf", "mode": "0640"}
ROBOT = {
    "name": "harbor",
    "path": "a/harbor",
    "use": "registry-auth",
    "registry_host": "harbor.example",
}
SECRETS = {
    "DB_PASSWORD": CANARY,
    "tls-key": f"{CANARY}\n",
    "harbor": f"robot$shop+reader:{CANARY}",
}
ENTRIES = [LEVEL, PASSWORD, TLS_KEY, CONF, ROBOT]


def manifest(**changes: Any) -> Manifest:
    document = {
        "schema": 1,
        "environment": ENV,
        "generation": 7,
        "project": "shop",
        "compose": {"files": [{"name": "./compose.yaml", "content": "services: {}"}]},
        "entries": ENTRIES,
        **changes,
    }
    return parse_manifest(json.dumps(document), environment=ENV)


def rendered(
    parsed: Manifest | None = None,
    host: tuple[ComposeFile, ...] = (),
    key: bytes = KEY,
    secrets: dict[str, str] | None = None,
) -> Rendering:
    parsed = parsed or manifest()
    values = {**SECRETS, **(secrets or {})}
    resolved = [
        Resolved(entry, Secret(entry.value if entry.value is not None else values[entry.name]))
        for entry in parsed.entries
    ]
    return render(parsed, resolved, host, key)


def release_id(*args: Any, **kwargs: Any) -> str:
    return rendered(*args, **kwargs).release.release_id


# Files


def test_each_entry_goes_where_its_use_says_and_nowhere_else() -> None:
    rendering = rendered()
    assert {path: (file.content, file.mode) for path, file in rendering.files.items()} == {
        "compose.yaml": (b"services: {}", 0o600),
        ".env": (f'LEVEL="info"\nDB_PASSWORD="{CANARY}"\n'.encode(), 0o600),
        "tls/key.pem": (f"{CANARY}\n".encode(), 0o444),
        "conf/app.conf": (b"x", 0o640),
        METADATA_FILE: (rendering.release.as_json(), 0o600),
    }
    assert {name: value.reveal() for name, value in rendering.env.items()} == {
        "LEVEL": "info",
        "DB_PASSWORD": CANARY,
    }
    auth = base64.b64encode(SECRETS["harbor"].encode()).decode()
    logins = {"auths": {"harbor.example": {"auth": auth}}}
    assert json.loads(rendering.logins.docker_config) == logins
    assert rendering.logins.hosts == {"harbor.example"}
    assert {secret.reveal() for secret in rendering.logins.secrets} == {CANARY, auth}
    for file in rendering.files.values():
        assert b"robot$" not in file.content
        assert auth.encode() not in file.content


def test_without_entries_there_is_an_empty_env_and_no_credential() -> None:
    rendering = rendered(manifest(entries=[]))
    assert rendering.files[".env"].content == b""
    assert json.loads(rendering.logins.docker_config) == {"auths": {}}


def test_nothing_secret_stands_in_the_metadata_or_in_a_repr() -> None:
    rendering = rendered()
    assert CANARY.encode() not in rendering.files[METADATA_FILE].content
    for thing in (rendering, rendering.release, *rendering.files.values()):
        assert CANARY not in repr(thing)


def test_the_hosts_own_compose_files_are_copied_in_order() -> None:
    host = host_compose_files([("/etc/shop/compose.yaml", "a: 1"), ("/srv/b/compose.yaml", "b: 2")])
    rendering = rendered(manifest(compose=None), host)
    assert rendering.release.compose_files == ("host-0-compose.yaml", "host-1-compose.yaml")
    assert rendering.files["host-1-compose.yaml"].content == b"b: 2"


def test_the_manifests_compose_files_win_over_the_hosts() -> None:
    host = host_compose_files([("/etc/shop/compose.yaml", "a: 1")])
    assert rendered(manifest(), host).release.compose_files == ("compose.yaml",)


def test_without_any_compose_file_the_manifest_is_refused() -> None:
    with pytest.raises(ManifestError, match=r"set docker\.compose_files"):
        rendered(manifest(compose=None))


@pytest.mark.parametrize("target", ["host-0-compose.yaml", "host-0-compose.yaml/x"])
def test_an_entry_can_not_take_the_place_of_a_host_compose_file(target: str) -> None:
    host = host_compose_files([("/etc/shop/compose.yaml", "a: 1")])
    parsed = manifest(compose=None, entries=[{**CONF, "target": target}])
    with pytest.raises(EntryError, match=r"'conf'.*collides with compose file 'host-0-compose"):
        rendered(parsed, host)


def test_a_host_compose_file_with_an_unusable_name_is_refused() -> None:
    host = host_compose_files([("/etc/shop/a\nb.yaml", "a: 1")])
    with pytest.raises(ManifestError, match=r"compose file 'host-0-a\\nb.yaml' holds"):
        rendered(manifest(compose=None), host)


@pytest.mark.parametrize("value", ["\ud800", f"{CANARY}\udfff"])
def test_a_value_that_no_file_can_hold_is_refused_by_name(value: str) -> None:
    with pytest.raises(EntryError, match="entry 'tls-key': the value is not valid") as caught:
        rendered(secrets={"tls-key": value})
    assert CANARY not in str(caught.value)


def test_a_file_holds_any_bytes_that_are_text() -> None:
    value = "\0\r\n\ufeff$x \\ \U0001f6f8"
    assert rendered(secrets={"tls-key": value}).files["tls/key.pem"].content == value.encode()


# The release's id and metadata


def test_the_same_inputs_give_the_same_release() -> None:
    assert rendered() == rendered()
    assert re.fullmatch(r"7-[0-9a-f]{16}", release_id())


def changed_entry(entry: dict[str, Any], **fields: Any) -> Manifest:
    return manifest(entries=[{**e, **fields} if e is entry else e for e in ENTRIES])


def with_files(*files: tuple[str, str]) -> Manifest:
    return manifest(compose={"files": [{"name": n, "content": c} for n, c in files]})


OTHER_RELEASES: dict[str, Callable[[], str]] = {
    "generation": lambda: release_id(manifest(generation=8)),
    "project": lambda: release_id(manifest(project="shop2")),
    "compose-content": lambda: release_id(with_files(("compose.yaml", "services: {a: {}}"))),
    "compose-name": lambda: release_id(with_files(("other.yaml", "services: {}"))),
    "one-more-compose-file": lambda: release_id(
        with_files(("compose.yaml", "services: {}"), ("b.yaml", ""))
    ),
    "plain-value": lambda: release_id(changed_entry(LEVEL, value="debug")),
    "secret-value": lambda: release_id(secrets={"DB_PASSWORD": "other"}),
    "variable-name": lambda: release_id(changed_entry(LEVEL, name="LEVELS")),
    "no-variable": lambda: release_id(manifest(entries=ENTRIES[1:])),
    "file-content": lambda: release_id(secrets={"tls-key": "other"}),
    "file-name": lambda: release_id(changed_entry(TLS_KEY, target="tls/other.pem")),
    "file-mode": lambda: release_id(changed_entry(TLS_KEY, mode="0400")),
    "pull": lambda: release_id(manifest(deploy={"pull": "missing"})),
    "wait-timeout": lambda: release_id(manifest(deploy={"wait_timeout": 121})),
    "on-failure": lambda: release_id(manifest(deploy={"on_failure": "keep"})),
    "remove-orphans": lambda: release_id(manifest(deploy={"remove_orphans": False})),
    "key": lambda: release_id(key=b"K" * 32),
}


def test_each_input_makes_another_release() -> None:
    ids = {name: make() for name, make in OTHER_RELEASES.items()} | {"same": release_id()}
    assert len(set(ids.values())) == len(ids), ids


def test_the_order_of_compose_files_makes_another_release() -> None:
    first, second = ("a.yaml", "a: 1"), ("b.yaml", "b: 2")
    assert release_id(with_files(first, second)) != release_id(with_files(second, first))


def test_bytes_that_move_from_one_file_to_the_next_make_another_release() -> None:
    ab_c = with_files(("a.yaml", "ab"), ("b.yaml", "c"))
    a_bc = with_files(("a.yaml", "a"), ("b.yaml", "bc"))
    assert release_id(ab_c) != release_id(a_bc)


SAME_RELEASE: dict[str, Callable[[], str]] = {
    "credential": lambda: release_id(secrets={"harbor": "other:login"}),
    "registry-host": lambda: release_id(changed_entry(ROBOT, registry_host="other.example")),
    "where-a-value-comes-from": lambda: release_id(
        changed_entry(PASSWORD, path="a/other", key="pw")
    ),
    "label-of-a-file": lambda: release_id(
        changed_entry(CONF, name="configuration", target="conf/app.conf")
    ),
    "unused-host-file": lambda: release_id(
        manifest(), host_compose_files([("/etc/shop/compose.yaml", "a: 1")])
    ),
}


@pytest.mark.parametrize("make", SAME_RELEASE.values(), ids=SAME_RELEASE)
def test_what_no_container_sees_makes_no_other_release(make: Callable[[], str]) -> None:
    assert make() == release_id()


def test_the_metadata_is_read_back_as_it_was() -> None:
    release = rendered(manifest(deploy={"wait_timeout": 5, "remove_orphans": False})).release
    assert parse_release(release.as_json()) == release
    assert (release.wait_timeout, release.remove_orphans) == (5, False)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"schema": 1}',
        b"\xff",
        rendered().release.as_json()[:-4],
        rendered().release.as_json().replace(b'"schema": 1', b'"schema": 2'),
        rendered().release.as_json().replace(b'"generation": 7', b'"generation": "seven"'),
    ],
)
def test_metadata_that_is_not_whole_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError, match="the release's metadata is not whole"):
        parse_release(content)


# What makes a container new. The model's form is that of Compose 2.26.1 and 2.40.3


def bind(source: str, **fields: Any) -> dict[str, Any]:
    return {
        "volumes": [
            {"type": "bind", "source": source, "target": "/x", "bind": {"create_host_path": True}}
            | fields
        ]
    }


# How each form reaches the container: the service, what the rest of the model defines for it.
DEFINITIONS: dict[str, Any] = {
    "configs": {
        "by-file": {"name": "shop_by-file", "file": f"{RELEASE_DIR}/tls/key.pem"},
        "by-text": {"name": "shop_by-text", "content": "hello"},
        "by-variable": {"name": "shop_by-variable", "environment": "DB_PASSWORD"},
    },
    "secrets": {
        "by-file": {"name": "shop_by-file", "file": f"{RELEASE_DIR}/tls/key.pem"},
        "by-variable": {"name": "shop_by-variable", "environment": "DB_PASSWORD"},
        "by-others-variable": {"name": "shop_by-others-variable", "environment": "PATH"},
        "outside": {"name": "outside", "external": True},
    },
    "volumes": {
        "named": {"name": "shop_named"},
        "bound": {
            "name": "shop_bound",
            "driver": "local",
            "driver_opts": {"device": f"{RELEASE_DIR}/tls", "o": "bind", "type": "none"},
        },
    },
}
OF_THE_KEY_FILE = {
    "bind": bind(f"{RELEASE_DIR}/tls/key.pem", read_only=True),
    "bind-without-options": {
        "volumes": [{"type": "bind", "source": f"{RELEASE_DIR}/tls/key.pem", "target": "/x"}]
    },
    "config": {"configs": [{"source": "by-file"}]},
    "secret": {"secrets": [{"source": "by-file", "target": "/run/secrets/by-file"}]},
}
OF_A_DIRECTORY = {
    "directory": bind(f"{RELEASE_DIR}/tls"),
    "directory-with-slash": bind(f"{RELEASE_DIR}/tls/"),
    "whole-release": bind(RELEASE_DIR, read_only=True),
    "volume-of-a-directory": {"volumes": [{"type": "volume", "source": "bound", "target": "/x"}]},
}
OF_A_VARIABLE = {
    "config": {"configs": [{"source": "by-variable", "target": "/c"}]},
    "secret": {"secrets": [{"source": "by-variable"}]},
}
OF_NOTHING = {
    "plain": {},
    "nulls": {"volumes": None, "configs": None, "secrets": None},
    "host-directory": bind("/srv/data"),
    "neighbour": bind(f"{RELEASE_DIR}-other/tls/key.pem"),
    "directory-above": bind("/var/lib/monky-deployd/releases"),
    "named-volume": {"volumes": [{"type": "volume", "source": "named", "target": "/x"}]},
    "anonymous-volume": {"volumes": [{"type": "volume", "target": "/x", "volume": {}}]},
    "tmpfs": {"volumes": [{"type": "tmpfs", "target": "/x"}]},
    "external-secret": {"secrets": [{"source": "outside"}]},
    "variable-of-the-agents": {"secrets": [{"source": "by-others-variable"}]},
}


def override(
    service: dict[str, Any], rendering: Rendering | None = None, **model: Any
) -> dict[str, Any]:
    """The override's services, where the model has this one, named web."""
    directory = model.pop("directory", RELEASE_DIR)
    key = model.pop("key", KEY)
    whole = {"name": "shop", "services": {"web": service}, **DEFINITIONS, **model}
    moved = json.loads(json.dumps(whole).replace(RELEASE_DIR, directory))
    content = files_override(moved, directory, rendering or rendered(), key)
    assert CANARY.encode() not in content
    document: dict[str, Any] = json.loads(content)
    assert document.keys() == {"services"}
    services: dict[str, Any] = document["services"]
    return services


def label(service: dict[str, Any], rendering: Rendering | None = None, **model: Any) -> str:
    found: str = override(service, rendering, **model)["web"]["labels"][FILES_LABEL]
    return found


@pytest.mark.parametrize("service", OF_NOTHING.values(), ids=OF_NOTHING)
def test_a_service_that_gets_nothing_of_the_release_has_no_label(service: dict[str, Any]) -> None:
    assert override(service) == {}


@pytest.mark.parametrize("service", OF_THE_KEY_FILE.values(), ids=OF_THE_KEY_FILE)
def test_the_label_follows_the_file_that_is_mounted_and_no_other(service: dict[str, Any]) -> None:
    before = label(service)
    assert label(service, rendered(secrets={"tls-key": "other"})) != before
    assert label(service, rendered(changed_entry(TLS_KEY, mode="0400"))) != before
    assert label(service, rendered(secrets={"DB_PASSWORD": "other"})) == before
    assert label(service, rendered(changed_entry(CONF, value="other"))) == before
    # Another release with the same file: nothing for this container to notice.
    assert label(service, rendered(manifest(generation=8)), directory="/other/8-x") == before


@pytest.mark.parametrize("service", OF_A_DIRECTORY.values(), ids=OF_A_DIRECTORY)
def test_a_service_that_mounts_a_directory_is_made_again_for_each_release(
    service: dict[str, Any],
) -> None:
    assert label(service) == label(service)
    assert label(service, directory="/var/lib/monky-deployd/releases/8-x") != label(service)


@pytest.mark.parametrize("service", OF_A_VARIABLE.values(), ids=OF_A_VARIABLE)
def test_the_label_follows_the_variable_that_a_secret_is_made_of(service: dict[str, Any]) -> None:
    before = label(service)
    assert label(service, rendered(secrets={"DB_PASSWORD": "other"})) != before
    assert label(service, rendered(changed_entry(LEVEL, value="debug"))) == before


def test_the_label_follows_the_text_of_a_config() -> None:
    service = {"configs": [{"source": "by-text"}]}
    other = {**DEFINITIONS["configs"], "by-text": {"content": "goodbye"}}
    assert label(service) != label(service, configs=other)
    assert label(service) == label(service, rendered(manifest(generation=8)), directory="/o/8-x")


def test_every_mount_counts() -> None:
    one = bind(f"{RELEASE_DIR}/tls/key.pem")
    other = bind(f"{RELEASE_DIR}/conf/app.conf")
    both = {"volumes": one["volumes"] + other["volumes"]}
    assert len({label(service) for service in (one, other, both)}) == 3


def test_the_label_is_keyed_and_gives_nothing_away() -> None:
    service = OF_THE_KEY_FILE["bind"]
    assert label(service) != label(service, key=b"K" * 32)
    assert re.fullmatch(r"[0-9a-f]{16}", label(service))


def test_each_service_has_its_own_label() -> None:
    services = {"a": OF_THE_KEY_FILE["bind"], "b": {}, "c": bind(f"{RELEASE_DIR}/conf/app.conf")}
    labels = override({}, services=services)
    assert labels.keys() == {"a", "c"}
    assert labels["a"] != labels["c"]
    assert override({}, services=None) == {}


@pytest.mark.parametrize(
    "service",
    [
        bind(f"{RELEASE_DIR}/data"),
        bind(f"{RELEASE_DIR}/tl"),
        bind(f"{RELEASE_DIR}/tls/key.pem/x"),
        {"configs": [{"source": "missing"}]},
        {"volumes": [{"type": "volume", "source": "missing", "target": "/x"}]},
    ],
)
def test_a_mount_of_what_the_release_does_not_hold_is_refused(service: dict[str, Any]) -> None:
    missing = {"missing": {"file": f"{RELEASE_DIR}/missing"}}
    volumes = {"missing": {"driver_opts": {"device": f"{RELEASE_DIR}/missing"}}}
    with pytest.raises(ManifestError, match=r"service 'web' mounts '.*which the release does not"):
        override(service, configs=missing, volumes=volumes)


# Images


@pytest.mark.parametrize(
    ("recorded", "local", "pinned"),
    [
        ({"web:1": "sha256:a"}, {"web:1": "sha256:b"}, {"web": {"image": "sha256:a"}}),
        ({"web:1": "sha256:a"}, {"web:1": ""}, {"web": {"image": "sha256:a"}}),
        ({"web:1": "sha256:a"}, {}, {"web": {"image": "sha256:a"}}),
        ({"web:1": "sha256:a"}, {"web:1": "sha256:a"}, {}),
        ({}, {"web:1": "sha256:b"}, {}),
        ({"other:1": "sha256:a"}, {"other:1": "sha256:b"}, {}),
    ],
)
def test_an_image_is_pinned_where_its_name_has_moved_since(
    recorded: dict[str, str], local: dict[str, str], pinned: dict[str, Any]
) -> None:
    model = {"services": {"web": {"image": "web:1"}, "built": {"image": None}, "bare": {}}}
    assert json.loads(pin_images(model, recorded, local)) == {"services": pinned}
    assert json.loads(pin_images({"services": None}, recorded, local)) == {"services": {}}


def test_a_release_is_what_its_metadata_says() -> None:
    listed = {"files": ("a.yaml", ".env"), "secret_env": ("TOKEN",), "secret_files": ("key.pem",)}
    release = Release("7-abc", 7, "shop", ("a.yaml", "b.yaml"), 120, True, **listed)
    assert json.loads(release.as_json()) == {
        "schema": 1,
        "release": "7-abc",
        "generation": 7,
        "project": "shop",
        "compose_files": ["a.yaml", "b.yaml"],
        "wait_timeout": 120,
        "remove_orphans": True,
        "files": ["a.yaml", ".env"],
        "secret_env": ["TOKEN"],
        "secret_files": ["key.pem"],
    }
    assert parse_release(release.as_json()) == release
    assert parse_release(replace(release, generation=8).as_json()).generation == 8
    assert RenderedFile(b"").mode == 0o600
