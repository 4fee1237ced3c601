"""The manifest that tenancy publishes (PROTOCOL.md, `schema` 1): parsed, checked, typed.

Unknown fields are ignored, so that tenancy may add some. An unknown `use` of an entry is
refused: an older agent must not put where containers see it what a newer tenancy marks.
"""

import re
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from monky_deployd.domain import strict_json
from monky_deployd.domain.paths import Claims
from monky_deployd.errors import ManifestError, Reason

SCHEMA = 1
ENV_FILE = ".env"
# The agent's own corner of a release; no path of a manifest may lie in it.
PRIVATE_DIR = ".monky"
DEFAULT_FILE_MODE = 0o444

_ENVIRONMENT = r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?"
_PROJECT = r"[a-z0-9][a-z0-9_-]{0,62}"
_ENTRY_NAME_MAX = 256
_SHOWN_PROBLEMS = 10

# JSON's own numbers and booleans: neither "120" nor 1.0 nor true is an integer here.
_Integer = Annotated[int, Field(strict=True)]
_Boolean = Annotated[bool, Field(strict=True)]


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("is not valid Unicode text") from None
    return text


# JSON can escape half a surrogate pair, which no file can hold.
_Text = Annotated[str, AfterValidator(_encodable)]


class Use(StrEnum):
    """Where an entry's value goes."""

    ENV = "env"
    FILE = "file"
    REGISTRY_AUTH = "registry-auth"


class PullPolicy(StrEnum):
    """`deploy.pull`: ask the registry always, only for what is missing, or never."""

    ALWAYS = "always"
    MISSING = "missing"
    NEVER = "never"


class OnFailure(StrEnum):
    """`deploy.on_failure`: what happens when a new release is not good."""

    ROLLBACK = "rollback"
    KEEP = "keep"
    STOP = "stop"


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)


class Entry(_Model):
    """One entry: a plain `value`, or `path` and optional `key` of a KV v2 secret; and its `use`.

    Without `key`, the secret must hold exactly one key, or one named `value`; for
    `registry-auth` a secret without `key` is taken whole, as a JSON document.
    """

    name: _Text
    value: _Text | None = Field(default=None, repr=False)
    path: _Text | None = None
    key: _Text | None = None
    use: Use = Use.ENV
    target: _Text | None = None
    mode: int = DEFAULT_FILE_MODE
    registry_host: _Text | None = None

    @field_validator("mode", mode="before")
    @classmethod
    def _octal(cls, mode: Any) -> Any:
        if mode is None:
            return DEFAULT_FILE_MODE
        # No set-user-ID and its like; and the agent, who owns the file, has to read it again.
        if isinstance(mode, str) and re.fullmatch(r"0?[4-7][0-7]{2}", mode):
            return int(mode, 8)
        raise ValueError('mode must be an octal string such as "0444", and let its owner read')

    @model_validator(mode="after")
    def _fits_together(self) -> "Entry":
        if (self.value is None) == (self.path is None):
            raise ValueError("exactly one of value and path is needed")
        if self.key is not None and self.path is None:
            raise ValueError("key goes with path")
        if self.use is Use.FILE and not self.target:
            raise ValueError('target is needed with use "file"')
        if self.use is not Use.FILE and self.target is not None:
            raise ValueError('target goes with use "file" only')
        if self.use is not Use.REGISTRY_AUTH and self.registry_host is not None:
            # Most likely its use was forgotten, and containers would see the registry's robot.
            raise ValueError('registry_host goes with use "registry-auth" only')
        return self


class ComposeFile(_Model):
    """One inline compose file; `name` is its path below the release directory."""

    name: _Text
    content: _Text = Field(repr=False)


class Compose(_Model):
    """The project's compose files, in the order in which Compose merges them."""

    files: Annotated[tuple[ComposeFile, ...], Field(min_length=1, max_length=32)]


class Deploy(_Model):
    """How to roll the release out. `wait_timeout` is in seconds."""

    pull: PullPolicy = PullPolicy.ALWAYS
    wait_timeout: Annotated[_Integer, Field(ge=1, le=3600)] = 120
    on_failure: OnFailure = OnFailure.ROLLBACK
    remove_orphans: _Boolean = True
    keep_releases: Annotated[_Integer, Field(ge=1, le=100)] = 3


class Manifest(_Model):
    """A whole manifest. `compose` is None where the host's own compose files are meant."""

    schema_: Literal[1] = Field(alias="schema")
    environment: Annotated[str, Field(pattern=f"^{_ENVIRONMENT}$")]
    generation: Annotated[_Integer, Field(ge=1, le=2**53)]
    project: Annotated[str, Field(pattern=f"^{_PROJECT}$")]
    compose: Compose | None = None
    entries: Annotated[tuple[Entry, ...], Field(max_length=2000)] = ()
    deploy: Deploy = Deploy()


def parse_manifest(text: str | bytes, *, environment: str) -> Manifest:
    """The manifest in `text` (JSON), which must be for `environment`.

    Raises ManifestError, of reason ENTRY_REFUSED where an entry is at fault. It names each
    fault by its place, and never a value.
    """
    document = _load(text)
    _check_schema(document)
    _check_uses(document)
    try:
        manifest = Manifest.model_validate(document)
    except ValidationError as error:
        raise _as_manifest_error(error, document) from None
    if manifest.environment != environment:
        raise ManifestError(
            f"the manifest is for environment {manifest.environment!r}, not {environment!r}"
        )
    _check_names(manifest)
    _check_paths(manifest)
    return manifest


def own_claims() -> Claims:
    """The paths of a release that are the agent's own; others may be taken."""
    claims = Claims()
    for path in (ENV_FILE, PRIVATE_DIR):
        claims.take(path, f"the agent's own {path}")
    return claims


def _load(text: str | bytes) -> dict[str, Any]:
    try:
        document = strict_json.loads(text)
    except ValueError:
        raise ManifestError("the manifest is not JSON, or names a field twice") from None
    if not isinstance(document, dict):
        raise ManifestError("the manifest is not a JSON object")
    return document


def _check_schema(document: dict[str, Any]) -> None:
    schema = document.get("schema")
    if type(schema) is not int:
        raise ManifestError("the manifest has no schema, or one that is not an integer")
    if schema != SCHEMA:
        raise ManifestError(
            f"the manifest has schema {schema}; this agent reads {SCHEMA}",
            remedy="upgrade monky-deployd",
        )


def _check_uses(document: dict[str, Any]) -> None:
    """Before the model: an unknown `use` deserves better words than a validator's."""
    entries = document.get("entries")
    for entry in entries if isinstance(entries, list) else []:
        use = entry.get("use", Use.ENV) if isinstance(entry, dict) else Use.ENV
        if use not in list(Use):
            raise _refused(
                f"entry {_shown(entry.get('name'))} has a use that this agent does not know: "
                f"{_shown(use, 'not a string')} (it knows {', '.join(Use)})",
                remedy="upgrade monky-deployd or correct the manifest",
            )


def _as_manifest_error(error: ValidationError, document: dict[str, Any]) -> ManifestError:
    problems = []
    in_entry = False
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        location = item["loc"]
        place = ".".join(str(part) for part in location)
        if len(location) > 1 and location[0] == "entries" and isinstance(location[1], int):
            in_entry = True
            raw = document["entries"][location[1]]
            name = raw.get("name") if isinstance(raw, dict) else None
            place = f"entry {_shown(name)} ({place})"
        problems.append(f"{place}: {item['msg'].removeprefix('Value error, ')}")
    more = len(problems) - _SHOWN_PROBLEMS
    told = problems[:_SHOWN_PROBLEMS] + ([f"and {more} more"] if more > 0 else [])
    cause = "the manifest is invalid: " + "; ".join(told)
    return _refused(cause) if in_entry else ManifestError(cause)


def _check_names(manifest: Manifest) -> None:
    """Of `env` entries the name is the variable's. The others' is only a label: one secret may
    go to two files, or to two hosts of a registry."""
    seen: set[tuple[str | None, ...]] = set()
    for entry in manifest.entries:
        if not entry.name or len(entry.name) > _ENTRY_NAME_MAX or not entry.name.isprintable():
            raise _refused(f"entry {_shown(entry.name)} has an unusable name")
        where = (entry.use, entry.name, entry.target, entry.registry_host)
        if where in seen:
            raise _refused(f"entry {_shown(entry.name)} stands in the manifest twice")
        seen.add(where)


def _check_paths(manifest: Manifest) -> None:
    claims = own_claims()
    for file in manifest.compose.files if manifest.compose else ():
        try:
            claims.take(file.name, f"compose file {_shown(file.name)}")
        except ValueError as error:
            raise ManifestError(f"compose file {_shown(file.name)} {error}") from None
    for entry in manifest.entries:
        if entry.target is None:
            continue
        owner = f"entry {_shown(entry.name)}"
        try:
            claims.take(entry.target, owner)
        except ValueError as error:
            raise _refused(f"{owner}: target {_shown(entry.target)} {error}") from None


def _refused(cause: str, remedy: str = "") -> ManifestError:
    """An entry as the manifest has it is at fault: only another manifest helps."""
    return ManifestError(cause, remedy=remedy, reason=Reason.ENTRY_REFUSED)


def _shown(text: object, otherwise: str = "without a name") -> str:
    """A word out of a manifest for a message: quoted, escaped, not too long."""
    shown = ascii(text) if isinstance(text, str) else otherwise
    return shown if len(shown) <= 80 else shown[:77] + "..."
