"""The manifest that tenancy publishes (PROTOCOL.md, `schema` 1): parsed, checked, typed.

Unknown fields are ignored, so that tenancy may add some. An unknown `use` of an entry is
refused: an older agent must not put where containers see it what a newer tenancy marks.
"""

import re
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from monky_deployd.domain import strict_json
from monky_deployd.domain.paths import safe_relative_path
from monky_deployd.errors import EntryError, ManifestError

SCHEMA = 1
ENV_FILE = ".env"
# The agent's own corner of a release; no path of a manifest may lie in it.
PRIVATE_DIR = ".monky"
DEFAULT_FILE_MODE = 0o444

_ENVIRONMENT = r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?"
_PROJECT = r"[a-z0-9][a-z0-9_-]{0,62}"
_ENTRY_NAME_MAX = 256


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

    name: str
    value: str | None = Field(default=None, repr=False)
    path: str | None = None
    key: str | None = None
    use: Use = Use.ENV
    target: str | None = None
    mode: int = DEFAULT_FILE_MODE
    registry_host: str | None = None

    @field_validator("mode", mode="before")
    @classmethod
    def _octal(cls, mode: Any) -> Any:
        if mode is None:
            return DEFAULT_FILE_MODE
        if isinstance(mode, str) and re.fullmatch(r"0?[0-7]{3}", mode):
            return int(mode, 8)
        raise ValueError('mode must be an octal string such as "0444"')

    @model_validator(mode="after")
    def _one_source(self) -> "Entry":
        if (self.value is None) == (self.path is None):
            raise ValueError("exactly one of value and path is needed")
        if self.key is not None and self.path is None:
            raise ValueError("key goes with path")
        if self.use is Use.FILE and not self.target:
            raise ValueError('target is needed with use "file"')
        if self.use is not Use.FILE and self.target is not None:
            raise ValueError('target goes with use "file" only')
        return self


class ComposeFile(_Model):
    """One inline compose file; `name` is its path below the release directory."""

    name: str
    content: str = Field(repr=False)


class Compose(_Model):
    """The project's compose files, in the order in which Compose merges them."""

    files: Annotated[tuple[ComposeFile, ...], Field(min_length=1, max_length=32)]


class Deploy(_Model):
    """How to roll the release out. `wait_timeout` is in seconds."""

    pull: PullPolicy = PullPolicy.ALWAYS
    wait_timeout: Annotated[int, Field(ge=1, le=3600)] = 120
    on_failure: OnFailure = OnFailure.ROLLBACK
    remove_orphans: bool = True
    keep_releases: Annotated[int, Field(ge=1, le=100)] = 3


class Manifest(_Model):
    """A whole manifest. `compose` is None where the host's own compose files are meant."""

    schema_: Literal[1] = Field(alias="schema")
    environment: Annotated[str, Field(pattern=f"^{_ENVIRONMENT}$")]
    generation: Annotated[int, Field(ge=1, le=2**53, strict=True)]
    project: Annotated[str, Field(pattern=f"^{_PROJECT}$")]
    compose: Compose | None = None
    entries: Annotated[tuple[Entry, ...], Field(max_length=2000)] = ()
    deploy: Deploy = Deploy()


def parse_manifest(text: str | bytes, *, environment: str) -> Manifest:
    """The manifest in `text` (JSON), which must be for `environment`.

    Raises ManifestError (EntryError where one entry is at fault) with every fault that was
    found, each by its place and never with a value.
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


def _load(text: str | bytes) -> dict[str, Any]:
    try:
        document = strict_json.loads(text)
    except ValueError:
        raise ManifestError("the manifest is not JSON, or names a field twice") from None
    if not isinstance(document, dict):
        raise ManifestError("the manifest is not a JSON object")
    return document


def _check_schema(document: dict[str, Any]) -> None:
    if document.get("schema") != SCHEMA:
        raise ManifestError(
            f"the manifest has schema {document.get('schema')!r}; this agent reads {SCHEMA}",
            remedy="upgrade monky-deployd",
        )


def _check_uses(document: dict[str, Any]) -> None:
    """Before the model: an unknown `use` deserves better words than a validator's."""
    entries = document.get("entries")
    for entry in entries if isinstance(entries, list) else []:
        use = entry.get("use", Use.ENV) if isinstance(entry, dict) else Use.ENV
        if use not in list(Use):
            raise EntryError(
                f"entry {_shown(entry.get('name'))} has use {_shown(use)}, which this agent "
                f"does not know (it knows {', '.join(Use)})",
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
    kind = EntryError if in_entry else ManifestError
    return kind("the manifest is invalid: " + "; ".join(problems))


def _check_names(manifest: Manifest) -> None:
    seen: set[tuple[str, str]] = set()
    for entry in manifest.entries:
        if not entry.name or len(entry.name) > _ENTRY_NAME_MAX or not entry.name.isprintable():
            raise EntryError(f"entry {_shown(entry.name)} has an unusable name")
        # Two registry-auth entries of one name are told apart by their host, later.
        where = (entry.use, entry.name)
        if where in seen:
            raise EntryError(f"entry {_shown(entry.name)} stands in the manifest twice")
        seen.add(where)


def _check_paths(manifest: Manifest) -> None:
    taken: dict[str, str] = {ENV_FILE: "the agent's own .env"}
    for file in manifest.compose.files if manifest.compose else ():
        _claim(taken, file.name, f"compose file {_shown(file.name)}")
    for entry in manifest.entries:
        if entry.target is not None:
            _claim(taken, entry.target, f"entry {_shown(entry.name)}")


def _claim(taken: dict[str, str], path: str, owner: str) -> None:
    try:
        clean = safe_relative_path(path)
    except ValueError as error:
        raise EntryError(f"{owner}: target {_shown(path)} {error}") from None
    if clean.split("/")[0] == PRIVATE_DIR:
        raise EntryError(f"{owner}: target {_shown(path)} lies in the agent's own {PRIVATE_DIR}/")
    for other, whose in taken.items():
        if clean == other or clean.startswith(f"{other}/") or other.startswith(f"{clean}/"):
            raise EntryError(f"{owner}: target {_shown(path)} collides with {whose}")
    taken[clean] = owner


def _shown(text: object) -> str:
    """A name out of a manifest for a message: quoted, escaped, not too long."""
    shown = ascii(text) if isinstance(text, str) else "without a name"
    return shown if len(shown) <= 80 else shown[:77] + "..."
