"""The configuration as a model: each field's meaning, unit, default and limits.

`config.example.yaml` documents the same fields; a test holds the two together. Reading the
file is `host.config_file`'s work.
"""

import difflib
import ipaddress
import re
from collections.abc import Hashable
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from monky_deployd.domain.policy_rules import FIXED, Rule
from monky_deployd.errors import ConfigError

TENANCY_INTERCEPT_PORT = 443

_REMEDY = "correct it, and check it with `monky-deployd config check`"
_MAX_PORT = 65535
_HOST = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)"
# Segments of letters, digits, `_`, `-` and inner dots, so that none is `.` or `..`.
_SEGMENT = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|\[?::1\]?")


def _matching(pattern: str, expected: str) -> AfterValidator:
    """A check for the whole text; its error says what is expected, not the pattern."""
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(f"must be {expected}")
        return text

    return AfterValidator(check)


def _check_port(address: str) -> str:
    if not 1 <= int(address.rpartition(":")[2]) <= _MAX_PORT:
        raise ValueError(f"the port must be 1 to {_MAX_PORT}")
    return address


def _check_absolute(path: str) -> str:
    if not path.startswith("/") or not path.isprintable() or {".", ".."} & set(path.split("/")):
        raise ValueError("must be an absolute path without . and .. in it")
    return path


def _check_subnet(subnet: str) -> str:
    try:
        ipaddress.ip_network(subnet)
    except ValueError:
        raise ValueError("must be a subnet such as 172.16.0.0/12") from None
    return subnet


def _no_root(path: str) -> str:
    if path.rstrip("/") == "":
        raise ValueError("must not be the root directory")
    return path.rstrip("/")


def _can_be_allowed(rule: Rule) -> Rule:
    if rule in FIXED:
        raise ValueError(f"{rule.value} can't be allowed")
    return rule


Port = Annotated[int, Field(ge=1, le=_MAX_PORT)]
Host = Annotated[str, _matching(_HOST, "a host name, or an address (IPv6 in brackets)")]
HostPort = Annotated[
    str,
    _matching(f"{_HOST}:[0-9]{{1,5}}", "host:port, such as tenancy.example:443"),
    AfterValidator(_check_port),
]
AbsolutePath = Annotated[str, AfterValidator(_check_absolute)]
MountPath = Annotated[
    str,
    _matching(f"{_SEGMENT}(/{_SEGMENT})*", "letters, digits and _ - . in parts joined by /"),
]
Url = Annotated[
    str,
    _matching(r"https?://[^/?#@\s]+/?", "http:// or https:// with a host, perhaps :port, only"),
]
Slug = Annotated[
    str,
    _matching(
        r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?",
        "1 to 64 lower-case letters, digits and inner hyphens",
    ),
]
Seconds = Annotated[float, Field(gt=0, le=86400)]


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        # YAML has types: `port: yes` is a mistake, not 1.
        strict=True,
        allow_inf_nan=False,
    )


class TenancyCfg(_Section):
    """How tenancy is reached: always the overlay's intercept, never the in-pod listener."""

    host: Host
    port: Port = TENANCY_INTERCEPT_PORT
    scheme: Literal["https", "http"] = "https"
    allow_plain_http: bool = False
    ca_file: AbsolutePath | None = None
    wait: Annotated[int, Field(ge=0, le=600)] = 55
    poll_interval: Seconds = 60
    request_timeout: Seconds = 30

    @model_validator(mode="after")
    def _grant_stays_private(self) -> "TenancyCfg":
        if self.scheme == "http" and not self.allow_plain_http and not is_loopback(self.host):
            raise ValueError(
                "plain http would show the grant to the network; use scheme https, "
                "or set allow_plain_http: true if something else encrypts the way"
            )
        return self

    @property
    def base_url(self) -> str:
        """Scheme, host and port, without a path."""
        return f"{self.scheme}://{self.host}:{self.port}"


class OverlayCfg(_Section):
    """Where a tunneler in proxy mode stands in for an intercept: `host:port` to `host:port`."""

    proxy: dict[HostPort, HostPort] = Field(default_factory=dict)


class OpenBaoCfg(_Section):
    """How OpenBao is reached and logged in to."""

    url: Url
    mount: MountPath = "jwt-tenancy"
    role: Annotated[str, Field(min_length=1)] = "see_env"
    kv_mount: MountPath = "secret"
    namespace: MountPath | None = None
    allow_plain_http: bool = False
    ca_file: AbsolutePath | None = None
    request_timeout: Seconds = 30

    @model_validator(mode="after")
    def _grant_stays_private(self) -> "OpenBaoCfg":
        host = re.sub(r":\d+$", "", self.url.split("//", 1)[1].rstrip("/"))
        if self.url.startswith("http:") and not self.allow_plain_http and not is_loopback(host):
            raise ValueError(
                "plain http would show the grant to the network; use https, "
                "or set allow_plain_http: true if something else encrypts the way"
            )
        return self


class DockerCfg(_Section):
    """The docker CLI, the Engine's socket, and how long each step may take (seconds)."""

    binary: Annotated[str, Field(min_length=1)] = "docker"
    path: Annotated[str, Field(min_length=1)] = (
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    )
    socket: AbsolutePath = "/var/run/docker.sock"
    compose_files: Annotated[tuple[AbsolutePath, ...], Field(strict=False)] = ()
    config_timeout: Seconds = 60
    pull_timeout: Seconds = 1800
    settle_time: Annotated[float, Field(ge=0, le=600)] = 5


Patterns = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)]
Roots = Annotated[
    tuple[Annotated[AbsolutePath, AfterValidator(_no_root)], ...], Field(strict=False)
]
Subnets = Annotated[tuple[Annotated[str, AfterValidator(_check_subnet)], ...], Field(strict=False)]
Rules = Annotated[
    tuple[Annotated[Rule, Field(strict=False), AfterValidator(_can_be_allowed)], ...],
    Field(strict=False),
]


class PolicyCfg(_Section):
    """What a manifest may ask of this host. In `Patterns`, `*` stands for any characters."""

    allow: Rules = ()
    projects: Patterns = ("*",)
    registries: Patterns = ("*",)
    require_digests: bool = False
    bind_roots: Roots = ()
    capabilities: Patterns = ()
    devices: Patterns = ()
    security_opt: Patterns = ()
    sysctls: Patterns = ("net.*",)
    log_drivers: Patterns = ("json-file", "local", "journald", "none")
    lowest_port: Port = 1
    port_addresses: Patterns = ("*",)
    subnets: Subnets = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fd00::/8")
    network_drivers: Patterns = ("bridge",)
    external_networks: Patterns = ()
    external_volumes: Patterns = ()
    volume_drivers: Patterns = ()


class ReportsCfg(_Section):
    """The outbox of reports and the sign of life (seconds)."""

    heartbeat_interval: Seconds = 300
    outbox_limit: Annotated[int, Field(ge=10, le=100_000)] = 1000


class SecretsCfg(_Section):
    """How often OpenBao is asked whether the secrets in use have changed (seconds)."""

    refresh_interval: Seconds = 300


class LogCfg(_Section):
    """What is logged; where to is decided by where the process runs (journald or stderr)."""

    level: Literal["debug", "info", "warning", "error"] = "info"


class Config(_Section):
    """The whole configuration of one agent: one environment on one host."""

    environment: Slug
    tenancy: TenancyCfg
    openbao: OpenBaoCfg
    overlay: OverlayCfg = OverlayCfg()
    docker: DockerCfg = DockerCfg()
    policy: PolicyCfg = PolicyCfg()
    secrets: SecretsCfg = SecretsCfg()
    reports: ReportsCfg = ReportsCfg()
    log: LogCfg = LogCfg()
    state_dir: AbsolutePath = "/var/lib/monky-deployd"
    grant_file: AbsolutePath = "/etc/monky-deployd/grant"
    allow_older_generation: bool = False

    @model_validator(mode="before")
    @classmethod
    def _empty_sections(cls, document: Any) -> Any:
        """A section whose settings are all commented out is one of defaults, not null."""
        if not isinstance(document, dict):
            return document
        return {
            name: {} if value is None and _known_keys((name,)) else value
            for name, value in document.items()
        }

    @field_validator("state_dir", "grant_file")
    @classmethod
    def _not_root(cls, path: str) -> str:
        return _no_root(path)


def is_loopback(host: str) -> bool:
    """Whether `host` can only mean this machine: localhost, 127.0.0.0/8 or ::1."""
    return bool(_LOOPBACK.fullmatch(host))


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a setting that stands twice, where YAML's habit is to let the last one win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value} stands here twice", key.start_mark
                )
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return super().construct_mapping(node, deep)


def parse_config(text: str, *, source: str) -> Config:
    """The configuration in `text` (YAML). `source` is the file's name, for messages.

    Raises ConfigError that names the file, each key path, what is wrong and what is allowed.
    """
    document = _load_yaml(text, source)
    if not isinstance(document, dict):
        raise ConfigError(f"{source}: a mapping of settings is expected", remedy=_REMEDY)
    try:
        return Config.model_validate(document)
    except ValidationError as error:
        problems = [
            _explain(item["loc"], item["type"], item["msg"])
            for item in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        raise ConfigError(f"{source}: " + "; ".join(problems), remedy=_REMEDY) from None


def _load_yaml(text: str, source: str) -> Any:
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader)
    # ValueError: a scalar that looks like a date or number and is none, such as 2026-99-99.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        raise ConfigError(f"{source}: not valid YAML{where}: {problem}", remedy=_REMEDY) from None


def _explain(location: tuple[int | str, ...], kind: str, message: str) -> str:
    path = ".".join(str(part) for part in location)
    if kind == "extra_forbidden":
        known = _known_keys(location[:-1])
        close = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"
        return f"{path}: unknown setting; {hint}"
    if kind == "missing":
        return f"{path}: this setting is required"
    if kind == "model_type":
        return f"{path}: must be a mapping of settings"
    return f"{path}: {message.removeprefix('Value error, ').replace('Input should be', 'must be')}"


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    model: Any = Config
    for part in location:
        field = _fields(model).get(str(part))
        model = field.annotation if field else None
    return sorted(_fields(model))


def _fields(model: Any) -> dict[str, FieldInfo]:
    if isinstance(model, type) and issubclass(model, BaseModel):
        return model.model_fields
    return {}
