"""The host's policy: what it refuses, what it lets pass, and that nothing makes it stumble."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monky_deployd.domain.config import PolicyCfg
from monky_deployd.domain.policy import check_model, refusal
from monky_deployd.domain.policy_findings import Violation, matches
from monky_deployd.domain.policy_rules import FIXED, SETTINGS, Rule, remedy
from monky_deployd.domain.policy_sources import check_sources
from monky_deployd.errors import ExitCode, Reason
from monky_deployd.host.real_path import real_path

KEYS = json.loads((Path(__file__).parents[1] / "data/compose_keys.json").read_text())
RELEASE = "/state/releases/2-0"


def check(
    model: Any, *, links: Callable[[str], str | None] = lambda path: path, **policy: Any
) -> tuple[Violation, ...]:
    return check_model(
        model,
        PolicyCfg.model_validate(policy),
        project_directory=RELEASE,
        real_path=links,
        own_files=("compose.yaml", ".env", ".monky"),
        private=("/state", "/etc/agent/grant"),
    )


def service(**keys: Any) -> dict[str, Any]:
    return {"name": "shop", "services": {"web": {"image": "web:1", **keys}}}


def bind(source: str, **keys: Any) -> dict[str, Any]:
    return {"type": "bind", "source": source, "target": "/x", **keys}


def rules(violations: tuple[Violation, ...]) -> list[str]:
    return [item.rule.value for item in violations]


def test_a_violation_says_where_what_by_which_rule_and_how_to_allow_it() -> None:
    [violation] = check(service(cap_add=["CHOWN", "SYS_ADMIN"]))
    assert violation == Violation(
        rule=Rule.CAPABILITY,
        service="web",
        path="services.web.cap_add[1]",
        message='services.web.cap_add[1]: capability "SYS_ADMIN" is not a default one '
        "(rule capability)",
        remedy="the host's owner allows it with policy.capabilities in the configuration",
    )


def test_all_violations_are_named_not_the_first_alone() -> None:
    violations = check(service(privileged=True, pid="host", cap_add=["ALL"], uts="host"))
    assert sorted(rules(violations)) == [
        "capability",
        "host-namespace",
        "host-namespace",
        "privileged",
    ]
    error = refusal(violations)
    assert str(error).startswith("the host's policy refuses 4 things: services.web.")
    assert str(error).endswith(" | and 1 more")
    assert len(error.refusals) == 4
    assert (error.reason, error.exit_code) == (Reason.POLICY_REFUSED, ExitCode.POLICY)
    assert not error.retryable


@pytest.mark.parametrize("rule", sorted(set(Rule) - set(FIXED)))
def test_every_rule_but_the_fixed_ones_can_be_allowed_whole(rule: Rule) -> None:
    assert PolicyCfg.model_validate({"allow": [rule.value]}).allow == (rule,)


@pytest.mark.parametrize("rule", [*sorted(FIXED), "no-such-rule"])
def test_nothing_else_can_be_allowed(rule: str) -> None:
    with pytest.raises(ValueError, match=r"can't be allowed|Input should be"):
        PolicyCfg.model_validate({"allow": [rule]})


def test_a_rule_that_is_allowed_refuses_nothing() -> None:
    assert check(service(privileged=True), allow=["privileged"]) == ()
    assert rules(check(service(privileged=True, pid="host"), allow=["privileged"])) == [
        "host-namespace"
    ]


@pytest.mark.parametrize("rule", list(Rule))
def test_every_remedy_names_a_setting_that_exists(rule: Rule) -> None:
    if rule not in FIXED:
        assert f"policy.{SETTINGS.get(rule, 'allow')}" in remedy(rule)
        assert SETTINGS.get(rule, "allow") in PolicyCfg.model_fields


# Every key of the Compose Specification is known, each in its place.

PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "top": lambda key: {key: {}},
    "service": lambda key: service(**{key: False}),
    "network": lambda key: {"networks": {"n": {key: False}}},
    "volume": lambda key: {"volumes": {"v": {key: False}}},
    "secret": lambda key: {"secrets": {"s": {key: False}}},
    "config": lambda key: {"configs": {"c": {key: False}}},
    "mount": lambda key: service(volumes=[{**bind("/x"), key: {}}]),
    "bind": lambda key: service(volumes=[bind("/x", bind={key: ""})]),
    "port": lambda key: service(ports=[{key: ""}]),
    "attachment": lambda key: service(networks={"n": {key: {}}}),
    "deploy": lambda key: service(deploy={key: {}}),
    "logging": lambda key: service(logging={key: {}}),
    "hook": lambda key: service(post_start=[{key: ""}]),
}
# Of no meaning to Compose's `up` (Swarm's), or gone from the resolved model.
UNKNOWN_ON_PURPOSE = {
    ("top", "include"),
    ("service", "extends"),
    ("secret", "driver"),
    ("secret", "driver_opts"),
    ("secret", "template_driver"),
    ("config", "template_driver"),
}


@pytest.mark.parametrize(
    ("place", "key"),
    sorted({(place, key) for keys in KEYS.values() for place in keys for key in keys[place]}),
)
def test_every_key_of_the_specification_is_decided(place: str, key: str) -> None:
    said = [item for item in check(PLACES[place](key)) if "know this key" in item.message]
    assert bool(said) is ((place, key) in UNKNOWN_ON_PURPOSE)


@pytest.mark.parametrize("place", sorted(PLACES))
def test_a_key_that_a_newer_compose_may_bring_is_refused(place: str) -> None:
    found = [item for item in check(PLACES[place]("host_root")) if "know this key" in item.message]
    assert [item.rule for item in found] == [Rule.UNKNOWN_KEY]
    assert check(service(host_root=True), allow=["unknown-key"]) == ()


def test_extensions_are_nobodys_business() -> None:
    assert check({"x-a": 1, **service(**{"x-b": {"privileged": True}})}) == ()


def test_a_service_or_network_may_not_hide_behind_an_extensions_name() -> None:
    assert rules(check({"services": {"x-web": {"privileged": True}}})) == ["privileged"]
    hidden = service(networks={"x-n": {"driver_opts": {"a": "b"}}})
    assert rules(check(hidden)) == ["network-options"]
    assert rules(check({"name": "shop", "volumes": {"x-v": {"name": "other"}}})) == [
        "external-volume"
    ]


@pytest.mark.parametrize(
    "odd",
    [
        {"services": ["web"]},
        {"services": {"web": "privileged"}},
        {"volumes": "all"},
        service(volumes={"a": "b"}),
        service(volumes=["/etc:/etc"]),
        service(volumes=[["/etc"]]),
        service(ports=["80:80"]),
        service(cap_add={"SYS_ADMIN": True}),
        service(deploy=[]),
        service(networks="host"),
        service(privileged="yes"),
        service(oom_score_adj="-1"),
        service(pid=["host"]),
    ],
)
def test_what_has_no_known_form_is_refused(odd: dict[str, Any]) -> None:
    assert check(odd)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)
known = sorted({key for keys in KEYS.values() for key in keys["service"]})
sections = st.sampled_from(["services", "networks", "volumes", "secrets", "configs", "models"])


@given(st.dictionaries(st.text() | sections, json_values, max_size=4))
def test_no_model_makes_it_raise(model: dict[str, Any]) -> None:
    check(model)


@given(st.dictionaries(st.sampled_from(known), json_values, max_size=3))
def test_no_service_makes_it_raise(keys: dict[str, Any]) -> None:
    check(service(**keys))


inner_keys = st.sampled_from(sorted({k for v in KEYS.values() for p in v for k in v[p]}))
inner = st.dictionaries(inner_keys, json_values, max_size=4)


@given(sections, inner, st.sampled_from(["volumes", "ports", "devices", "post_start"]), inner)
def test_no_part_makes_it_raise(
    section: str, part: dict[str, Any], key: str, item: dict[str, Any]
) -> None:
    check({section: {"a": part}})
    check(service(**{key: [item], "deploy": part, "logging": item, "networks": {"n": item}}))


# Paths of the host.


@pytest.mark.parametrize(
    ("path", "real", "refused"),
    [
        (f"{RELEASE}/data", f"{RELEASE}/data", []),
        (f"{RELEASE}/data", "/opt", ["bind-mount"]),
        (f"{RELEASE}-other", f"{RELEASE}-other", ["agent-files"]),
        ("/state/docker", "/state/docker", ["agent-files"]),
        ("/etc/agent", "/etc/agent", ["agent-files"]),
        ("/srv/a", "/srv/a", []),
        ("/srv/a/b", "/srv/a/b", []),
        ("/srv/ab", "/srv/ab", ["bind-mount"]),
        ("/srv", "/srv", ["bind-mount"]),
        ("/srv/a/b", None, ["bind-mount"]),
        ("/srv/a", None, []),
        ("/srv/a/../b", "/srv/b", ["bind-mount"]),
        ("/srv/a/../a/b", "/srv/a/b", ["bind-mount"]),
        ("/srv/a:/b", "/srv/a:/b", ["bind-mount"]),
        ("srv/a", "/srv/a", ["bind-mount"]),
        ("", "/srv/a", ["bind-mount"]),
        ("/srv/a", "/run/docker.sock", ["docker-socket"]),
        ("/srv/a", "/", ["docker-socket"]),
        ("/srv/a/docker.sock", "/srv/a/docker.sock", ["docker-socket"]),
    ],
)
def test_where_a_bind_leads_decides(path: str, real: str | None, refused: list[str]) -> None:
    links = {path: real}
    violations = check(
        service(volumes=[bind(path, read_only=True)]),
        links=lambda asked: links.get(asked, asked),
        bind_roots=["/srv/a"],
    )
    assert rules(violations) == refused


def test_a_root_that_is_a_link_is_where_it_leads() -> None:
    def links(path: str) -> str:
        return path.replace("/srv/a", "/mnt/disk")

    for path in ("/srv/a/b", "/mnt/disk/b"):
        assert check(service(volumes=[bind(path)]), links=links, bind_roots=["/srv/a"]) == ()


def test_an_allowed_socket_still_lets_nothing_else_in() -> None:
    allowed = ["docker-socket"]
    assert check(service(volumes=[bind("/var/run/docker.sock")]), allow=allowed) == ()
    assert rules(check(service(volumes=[bind("/var/run")]), allow=allowed)) == ["bind-mount"]


@pytest.mark.parametrize(
    ("outer", "writable", "refused"),
    [("data", True, ["bind-nested"]), ("data", False, []), ("data/sub", True, []), ("a", True, [])],
)
def test_what_a_container_can_replace_is_not_mounted(
    outer: str, writable: bool, refused: list[str]
) -> None:
    model = service(volumes=[bind(f"{RELEASE}/data/sub", read_only=True)])
    model["services"]["db"] = {"volumes": [bind(f"{RELEASE}/{outer}", read_only=not writable)]}
    assert rules(check(model)) == refused


@pytest.mark.parametrize("path", ["", "/compose.yaml", "/.env", "/.monky", "/.monky/release.json"])
def test_what_the_agent_reads_again_is_mounted_read_only(path: str) -> None:
    mount = bind(RELEASE + path)
    assert rules(check(service(volumes=[mount]))) == ["agent-files"]
    assert check(service(volumes=[{**mount, "read_only": True}])) == ()


@pytest.mark.parametrize("root", ["/", "//", "srv", "/srv/../etc"])
def test_a_bind_root_is_a_directory_by_its_plain_path(root: str) -> None:
    with pytest.raises(ValueError, match="must"):
        PolicyCfg.model_validate({"bind_roots": [root]})


# Lists of the configuration.


@pytest.mark.parametrize(
    ("patterns", "image", "good"),
    [
        (["harbor.example"], "harbor.example/shop/web:1", True),
        (["harbor.example"], "harbor.example:5000/shop/web:1", False),
        (["harbor.example:*"], "harbor.example:5000/shop/web:1", True),
        (["*.example"], "harbor.example/web", True),
        (["*.example"], "example/web", False),
        (["harbor.example/shop/*"], "harbor.example/shop/web@sha256:ab", True),
        (["harbor.example/shop/*"], "harbor.example/other/shop/web", False),
        (["docker.io"], "postgres:16", True),
        (["docker.io"], "index.docker.io/library/postgres", True),
        (["docker.io/library/*"], "evil/postgres", False),
        (["harbor.example"], "postgres", False),
        (["docker.io"], "localhost/postgres", False),
        ([], "postgres", False),
    ],
)
def test_registries(patterns: list[str], image: str, good: bool) -> None:
    assert (check(service(image=image), registries=patterns) == ()) is good


@pytest.mark.parametrize(
    ("port", "policy", "refused"),
    [
        ({"published": "80"}, {}, []),
        ({"published": "80"}, {"lowest_port": 1024}, ["port"]),
        ({"published": "1024"}, {"lowest_port": 1024}, []),
        ({"published": "80-2000"}, {"lowest_port": 1024}, ["port"]),
        ({"published": "0"}, {"lowest_port": 1024}, []),
        ({"published": "0-5"}, {}, ["port"]),
        ({"published": "http"}, {}, ["port"]),
        ({}, {"port_addresses": ["127.0.0.1"]}, ["port-address"]),
        ({"host_ip": "127.0.0.1"}, {"port_addresses": ["127.0.0.1"]}, []),
        ({"host_ip": "::"}, {"port_addresses": ["127.0.0.1"]}, ["port-address"]),
        ({"host_ip": "::ffff:10.0.0.1"}, {"port_addresses": ["10.0.0.1"]}, []),
        ({"host_ip": "0:0::1"}, {"port_addresses": ["::1"]}, []),
        ({}, {"port_addresses": ["0.0.0.0"]}, []),
    ],
)
def test_ports(port: dict[str, str], policy: dict[str, Any], refused: list[str]) -> None:
    assert rules(check(service(ports=[port]), **policy)) == refused


@pytest.mark.parametrize(
    ("options", "policy", "refused"),
    [
        ({"type": "tmpfs", "device": "tmpfs", "o": "size=1g, uid=5"}, {}, []),
        ({"size": "10G"}, {}, []),
        ({}, {}, []),
        ({"type": "tmpfs", "o": "bind", "device": "/srv/a"}, {"bind_roots": ["/srv"]}, []),
        ({"type": "none", "o": "BIND", "device": "/opt"}, {}, ["bind-mount"]),
        ({"o": "bind,shared", "device": "/srv"}, {"bind_roots": ["/srv"]}, ["bind-propagation"]),
        ({"TYPE": "nfs", "o": "addr=a"}, {}, ["volume-driver"]),
        ({"type": "nfs", "o": "addr=a"}, {"volume_drivers": ["local:nfs"]}, []),
        ({"type": "nfs", "o": "bind", "device": "/x"}, {"volume_drivers": ["*"]}, ["bind-mount"]),
        ({"device": "/etc"}, {"volume_drivers": ["*"]}, ["volume-driver"]),
        ({"o": "bind"}, {}, ["bind-mount"]),
    ],
)
def test_local_volumes(options: dict[str, str], policy: dict[str, Any], refused: list[str]) -> None:
    model = {"name": "shop", "volumes": {"v": {"name": "shop_v", "driver_opts": options}}}
    assert rules(check(model, **policy)) == refused


@pytest.mark.parametrize(
    ("patterns", "text", "good"),
    [
        (["*"], "", True),
        (["a*c"], "abbc", True),
        (["a*c"], "ac", True),
        (["a.c"], "abc", False),
        (["a"], "a\n", False),
        ([], "", False),
    ],
)
def test_patterns(patterns: list[str], text: str, good: bool) -> None:
    assert matches(patterns, text) is good


# Compose files before Compose reads them.


def sources(content: str | bytes, **files: str) -> tuple[Violation, ...]:
    first = content.encode() if isinstance(content, str) else content
    others = {name.replace("__", "/"): text.encode() for name, text in files.items()}
    return check_sources(
        {"compose.yaml": first, **others}, ["compose.yaml"], PolicyCfg()
    ).violations


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe", "compose.yaml: is not UTF-8"),
        (b"a: [", "compose.yaml: is not YAML as this agent reads it (line "),
        (b"# " + b"x" * 1024 * 1024, "compose.yaml: is larger than 1 MiB"),
        (b"[" * 200 + b"]" * 200, "compose.yaml: is nested deeper than 64 levels"),
        (b"[" * 100_000, "compose.yaml: is"),
        (b"a: &a [*a]", "compose.yaml: is nested deeper than 64 levels, or holds itself"),
        (b"<<: &a {<<: *a}", "compose.yaml: is nested deeper than 64 levels, or holds itself"),
        (b"? [a]\n: b", "compose.yaml: has a key that is not text (line 1)"),
        (b"a: !!binary aaaa", 'compose.yaml: has the YAML tag "tag:yaml.org,2002:binary" (line 1)'),
        (b"%TAG ! tag:yaml.org,2002:\n---\n!binary YQ==: 1", 'compose.yaml: has the YAML tag "tag'),
        (b"a: !include /etc/x", 'compose.yaml: has the YAML tag "!include"'),
    ],
)
def test_a_file_that_is_not_plain_yaml_is_refused(content: bytes, said: str) -> None:
    [violation] = sources(content)
    assert violation.rule is Rule.UNREADABLE_SOURCE
    assert violation.message.startswith(said)


def test_a_reference_is_named_by_file_place_and_service() -> None:
    [violation] = sources("services: {web: {env_file: [.env, {path: /etc/environment}]}}")
    assert violation.service == "web"
    assert violation.message == (
        'compose.yaml: services.web.env_file.path: "/etc/environment" may lie outside of the '
        "release (rule outside-file)"
    )


def test_what_is_pulled_in_is_checked_wherever_it_may_lie() -> None:
    found = sources("include: [parts/a.yaml]", parts__a__yaml="", sub__parts__a__yaml="")
    assert rules(found) == ["outside-file"]
    content = "include: [oci://x/y]"
    files = {"compose.yaml": b"include: [parts/a.yaml]", "sub/parts/a.yaml": content.encode()}
    checked = check_sources(files, ["compose.yaml"], PolicyCfg())
    assert rules(checked.violations) == ["remote-source"]
    assert checked.names == {"compose.yaml", "sub/parts/a.yaml"}


def test_files_that_include_each_other_end() -> None:
    files = {"a.yaml": b"include: [b.yaml]", "b.yaml": b"include: [./a.yaml]"}
    assert check_sources(files, ["a.yaml"], PolicyCfg()).violations == ()


def test_a_release_file_that_looks_like_a_repository_is_still_remote() -> None:
    files = {"compose.yaml": b"include: [github.com/a/b]", "github.com/a/b": b"{}"}
    [violation] = check_sources(files, ["compose.yaml"], PolicyCfg()).violations
    assert violation.rule is Rule.REMOTE_SOURCE


@given(st.binary() | st.text().map(str.encode))
def test_no_file_makes_it_raise(content: bytes) -> None:
    sources(content)


# Where a path leads.


def test_the_real_path_goes_through_every_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "nothing").symlink_to(tmp_path / "absent")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    here = str(tmp_path.resolve())
    assert real_path(f"{here}/link") == f"{here}/real"
    assert real_path(f"{here}/link/new/dir") == f"{here}/real/new/dir"
    assert real_path(f"{here}/new/") == f"{here}/new"
    assert real_path(f"{here}/nothing") is None
    assert real_path(f"{here}/nothing/below") is None
    assert real_path(f"{here}/loop") is None
    assert real_path(f"{here}/file/below") is None
    assert real_path(f"{here}/a\0b") is None
    assert real_path("/") == "/"
