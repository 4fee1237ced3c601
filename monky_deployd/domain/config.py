"""The configuration as a model: each field's meaning, unit, default and limits.

`config.example.yaml` documents the same fields; a test holds the two together. Reading the
file is `host.config_file`'s work.
"""

import difflib
import re
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo

from monky_deployd.errors import ConfigError

TENANCY_INTERCEPT_PORT = 443

HostPort = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$")]
AbsolutePath = Annotated[str, Field(pattern=r"^/[^\x00]*$")]
# Segments of letters, digits, `_`, `-` and inner dots, so that none is `.` or `..`.
_SEGMENT = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
MountPath = Annotated[str, Field(pattern=f"^{_SEGMENT}(/{_SEGMENT})*$")]
Seconds = Annotated[float, Field(gt=0, le=86400)]

_LOOPBACK = re.compile(r"^(localhost|127(\.\d{1,3}){3}|\[?::1\]?)$")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class TenancyCfg(_Section):
    """How tenancy is reached: always the overlay's intercept, never the in-pod listener."""

    host: Annotated[str, Field(min_length=1, pattern=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)$")]
    port: Annotated[int, Field(ge=1, le=65535)] = TENANCY_INTERCEPT_PORT
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

    url: Annotated[str, Field(pattern=r"^https?://[^/?#@\s]+/?$")]
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

    binary: str = "docker"
    path: str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    socket: AbsolutePath = "/var/run/docker.sock"
    compose_files: tuple[AbsolutePath, ...] = ()
    config_timeout: Seconds = 60
    pull_timeout: Seconds = 1800
    settle_time: Annotated[float, Field(ge=0, le=600)] = 5


class ReportsCfg(_Section):
    """The outbox of reports and the sign of life (seconds)."""

    heartbeat_interval: Seconds = 300
    outbox_limit: Annotated[int, Field(ge=10, le=100_000)] = 1000


class LogCfg(_Section):
    """What is logged; where to is decided by where the process runs (journald or stderr)."""

    level: Literal["debug", "info", "warning", "error"] = "info"


class Config(_Section):
    """The whole configuration of one agent: one environment on one host."""

    environment: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?$")]
    tenancy: TenancyCfg
    openbao: OpenBaoCfg
    overlay: OverlayCfg = OverlayCfg()
    docker: DockerCfg = DockerCfg()
    reports: ReportsCfg = ReportsCfg()
    log: LogCfg = LogCfg()
    state_dir: AbsolutePath = "/var/lib/monky-deployd"
    grant_file: AbsolutePath = "/etc/monky-deployd/grant"
    allow_older_generation: bool = False

    @field_validator("state_dir", "grant_file")
    @classmethod
    def _no_root(cls, path: str) -> str:
        if path.rstrip("/") == "":
            raise ValueError("must not be the root directory")
        return path.rstrip("/")


def is_loopback(host: str) -> bool:
    """Whether `host` can only mean this machine: localhost, 127.0.0.0/8 or ::1."""
    return bool(_LOOPBACK.match(host))


def parse_config(text: str, *, source: str) -> Config:
    """The configuration in `text` (YAML). `source` is the file's name, for messages.

    Raises ConfigError that names the file, each key path, what is wrong and what is allowed.
    """
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        problem = getattr(error, "problem", None) or "unreadable"
        raise ConfigError(f"{source}: not valid YAML{where}: {problem}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{source}: a mapping of settings is expected")
    try:
        return Config.model_validate(document)
    except ValidationError as error:
        problems = [
            _explain(item["loc"], item["type"], item["msg"])
            for item in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        raise ConfigError(f"{source}: " + "; ".join(problems)) from None


def _explain(location: tuple[int | str, ...], kind: str, message: str) -> str:
    path = ".".join(str(part) for part in location)
    if kind == "extra_forbidden":
        known = _known_keys(location[:-1])
        close = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"
        return f"{path}: unknown setting; {hint}"
    if kind == "missing":
        return f"{path}: this setting is required"
    return f"{path}: {message.removeprefix('Value error, ')}"


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
