"""The configuration: errors that name file, key path and remedy; the example; the port."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from monky_deployd.domain.config import Config, TenancyCfg, parse_config
from monky_deployd.errors import ConfigError, ExitCode
from monky_deployd.host.config_file import DEFAULT_CONFIG_PATH, load_config

ROOT = Path(__file__).parents[2]
EXAMPLE = (ROOT / "config.example.yaml").read_text()
MINIMAL = """
environment: env-dev-01
tenancy: {host: tenancy.example}
openbao: {url: "https://openbao.example:8200"}
"""


def changed(**sections: Any) -> str:
    document = yaml.safe_load(MINIMAL)
    for name, value in sections.items():
        if isinstance(value, dict):
            document.setdefault(name, {}).update(value)
        else:
            document[name] = value
    return yaml.safe_dump(document)


def defaults(model: type[BaseModel]) -> dict[str, Any]:
    """Every setting with a default, by name; sections as mappings of their own."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found[name] = defaults(field.annotation)
        elif not field.is_required():
            value = field.get_default(call_default_factory=True)
            assert value is not PydanticUndefined
            found[name] = list(value) if isinstance(value, tuple) else value
    return found


def all_live(text: str) -> str:
    """The example with every commented setting made live."""
    return re.sub(r"^( *)# ( *[a-z_]+:( .*)?)$", r"\1\2", text, flags=re.MULTILINE)


def commented_settings(text: str) -> dict[str, Any]:
    """The settings that stand in the example with their defaults."""
    document = yaml.safe_load(all_live(text))
    del document["environment"], document["tenancy"]["host"], document["openbao"]["url"]
    return document


def test_the_minimal_configuration_is_valid() -> None:
    assert parse_config(MINIMAL, source="x").environment == "env-dev-01"


def test_the_example_is_valid_as_it_stands() -> None:
    assert parse_config(EXAMPLE, source="config.example.yaml") == parse_config(MINIMAL, source="x")


def test_the_example_shows_every_setting_with_its_default() -> None:
    assert commented_settings(EXAMPLE) == defaults(Config)


def test_the_example_is_valid_with_every_setting_made_live() -> None:
    assert parse_config(all_live(EXAMPLE), source="x") == parse_config(MINIMAL, source="x")


def test_every_default_that_names_tenancys_port_is_the_intercepts() -> None:
    assert TenancyCfg(host="tenancy.example").port == 443
    assert commented_settings(EXAMPLE)["tenancy"]["port"] == 443
    assert re.search(
        r"^  # [^\n]*intercept's port[^\n]*state/overlay/configs\.json\.\n  # port: 443$",
        EXAMPLE,
        re.MULTILINE,
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (changed(tenancy={"prot": 443}), "tenancy.prot: unknown setting; did you mean port?"),
        (changed(openboa={"url": "x"}), "openboa: unknown setting; did you mean openbao?"),
        (changed(docker={"zzzz": 1}), "docker.zzzz: unknown setting; known here: binary,"),
        (changed(tenancy={"port": 70000}), "tenancy.port: must be less than or equal to 65535"),
        (changed(tenancy={"port": "https"}), "tenancy.port: must be a valid integer"),
        (changed(tenancy={"port": True}), "tenancy.port: must be a valid integer"),
        (changed(tenancy={"allow_plain_http": "no"}), "allow_plain_http: must be a valid boolean"),
        (changed(tenancy={"host": "a/b"}), "tenancy.host: must be a host name, or an address"),
        (changed(tenancy={"host": "a.example:443"}), "tenancy.host: must be a host name"),
        (changed(tenancy={"wait": -1}), "tenancy.wait: must be greater than or equal to 0"),
        (changed(docker={"settle_time": float("nan")}), "settle_time: must be a finite number"),
        (changed(reports={"heartbeat_interval": 0}), "heartbeat_interval: must be greater than 0"),
        (changed(environment="Env_1"), "environment: must be 1 to 64 lower-case letters"),
        (changed(environment="env-"), "environment: must be 1 to 64 lower-case letters"),
        (changed(environment=7), "environment: must be a valid string"),
        (
            changed(log={"level": "loud"}),
            "log.level: must be 'debug', 'info', 'warning' or 'error'",
        ),
        (changed(state_dir="relative"), "state_dir: must be an absolute path"),
        (changed(state_dir="/var/lib/../../etc"), "state_dir: must be an absolute path without"),
        (changed(state_dir="/"), "state_dir: must not be the root directory"),
        (changed(docker={"compose_files": ["/a.yaml", "b"]}), "docker.compose_files.1: must be"),
        (changed(openbao={"url": "bao.example:8200"}), "openbao.url: must be http:// or https://"),
        (changed(openbao={"url": "https://b.example/v1"}), "openbao.url: must be http:// or"),
        (changed(openbao={"kv_mount": "a/../b"}), "openbao.kv_mount: must be letters, digits"),
        (changed(openbao={"namespace": "é"}), "openbao.namespace: must be letters, digits"),
        (changed(overlay={"proxy": {"tenancy": "x"}}), "overlay.proxy.tenancy"),
        (
            changed(overlay={"proxy": {"a:443": "127.0.0.1:0"}}),
            "a:443: the port must be 1 to 65535",
        ),
        (changed(overlay={"proxy": {"a:443": "b"}}), "overlay.proxy.a:443: must be host:port"),
        (changed(openbao="https://b.example"), "openbao: must be a mapping of settings"),
        (MINIMAL + "tenancy: {host: b}", "(line 5, column 1): tenancy stands here twice"),
        ("openbao: {url: x, url: y}", "(line 1, column 19): url stands here twice"),
        ("environment: x\n", "tenancy: this setting is required"),
        (MINIMAL.replace("host:", "port:"), "tenancy.host: this setting is required"),
        ("- a\n", "a mapping of settings is expected"),
        ("", "a mapping of settings is expected"),
        ("a: [", "not valid YAML (line"),
        ("a: 2026-99-99", "not valid YAML: month must be in 1..12"),
        ("a: \x07", "not valid YAML: special characters are not allowed"),
        ("a: !!python/object/apply:os.getcwd []", "not valid YAML"),
        ("[" * 5000, "not valid YAML"),
    ],
)
def test_an_error_names_the_file_the_key_and_what_is_allowed(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="/etc/x.yaml")
    assert str(caught.value).startswith("/etc/x.yaml: ")
    assert words in str(caught.value)
    assert str(caught.value).endswith("check it with `monky-deployd config check`")
    assert caught.value.exit_code is ExitCode.CONFIGURATION


def test_a_section_whose_settings_are_all_commented_out_has_its_defaults() -> None:
    assert parse_config(MINIMAL + "docker:\nlog:\n", source="x") == parse_config(
        MINIMAL, source="x"
    )


def test_a_trailing_slash_is_dropped() -> None:
    assert parse_config(changed(state_dir="/srv/agent/"), source="x").state_dir == "/srv/agent"


def test_all_errors_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(changed(log={"level": "x"}, tenancy={"port": 0}), source="x")
    assert "log.level" in str(caught.value)
    assert "tenancy.port" in str(caught.value)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.10", "[::1]"])
def test_plain_http_is_fine_on_loopback(host: str) -> None:
    config = parse_config(
        changed(tenancy={"host": host, "scheme": "http"}, openbao={"url": f"http://{host}:8200"}),
        source="x",
    )
    assert config.tenancy.base_url == f"http://{host}:443"


@pytest.mark.parametrize("host", ["tenancy.example", "127.0.0.1.evil.example", "10.0.0.1"])
def test_plain_http_to_elsewhere_needs_the_hosts_word(host: str) -> None:
    for section in (
        {"tenancy": {"host": host, "scheme": "http"}},
        {"openbao": {"url": f"http://{host}"}},
    ):
        with pytest.raises(ConfigError, match="plain http would show the grant"):
            parse_config(changed(**section), source="x")
        [name] = section
        section[name]["allow_plain_http"] = True
        parse_config(changed(**section), source="x")


def test_a_file_is_read_through_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "real.yaml").write_text(MINIMAL)
    (tmp_path / "config.yaml").symlink_to("real.yaml")
    assert load_config(tmp_path / "config.yaml").environment == "env-dev-01"


def test_a_missing_file_is_one_clear_sentence_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent.yaml can't be read: No such file.*; write it "):
        load_config(tmp_path / "absent.yaml")


@pytest.mark.parametrize("target", ["nowhere", "config.yaml"], ids=["dangling", "loop"])
def test_a_link_to_no_file_is_named(tmp_path: Path, target: str) -> None:
    (tmp_path / "config.yaml").symlink_to(target)
    with pytest.raises(ConfigError, match=r"config.yaml.* can't be read: ") as caught:
        load_config(tmp_path / "config.yaml")
    assert caught.value.remedy


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(tmp_path / "config.yaml")


def test_a_file_of_unreasonable_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(ConfigError, match="larger than 1048576 bytes"):
        load_config(tmp_path / "config.yaml")


def test_the_default_file_is_where_the_documents_say() -> None:
    assert str(DEFAULT_CONFIG_PATH) == "/etc/monky-deployd/config.yaml"
