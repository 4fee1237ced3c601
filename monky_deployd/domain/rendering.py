"""From a manifest and its resolved values to the files of a release. Pure.

A release is a directory: the compose files, `.env`, the `file` entries, and the agent's own
`.monky/` with what a later rollback has to know.
"""

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monky_deployd.domain.dotenv import render_dotenv
from monky_deployd.domain.manifest import (
    ENV_FILE,
    PRIVATE_DIR,
    ComposeFile,
    Entry,
    Manifest,
    Use,
    own_claims,
)
from monky_deployd.domain.registry_auth import Credential, docker_config, parse_credentials
from monky_deployd.domain.secret import Secret
from monky_deployd.errors import EntryError, ManifestError

METADATA_FILE = f"{PRIVATE_DIR}/release.json"
OVERRIDE_FILE = f"{PRIVATE_DIR}/override.yaml"
IMAGES_FILE = f"{PRIVATE_DIR}/images.json"
PULLED_FILE = f"{PRIVATE_DIR}/pulled.json"
PIN_FILE = f"{PRIVATE_DIR}/pin.yaml"
FILES_LABEL = "dev.monky.files"
_METADATA_SCHEMA = 1
_HASH_LENGTH = 16


@dataclass(frozen=True)
class RenderedFile:
    """One file of a release: its bytes and its exact mode."""

    content: bytes = field(repr=False)
    mode: int = 0o600


@dataclass(frozen=True)
class Resolved:
    """One entry with its value, wherever that came from."""

    entry: Entry
    value: Secret


@dataclass(frozen=True)
class Release:
    """What the agent has to know of a release to run it again: kept in `.monky/release.json`.

    `files` are all that were rendered into it, `secret_env` the names in `.env` and
    `secret_files` the files whose content came from OpenBao.
    """

    release_id: str
    generation: int
    project: str
    compose_files: tuple[str, ...]
    wait_timeout: int
    remove_orphans: bool
    files: tuple[str, ...] = ()
    secret_env: tuple[str, ...] = ()
    secret_files: tuple[str, ...] = ()

    def as_json(self) -> bytes:
        """The metadata file's content."""
        document = {
            "schema": _METADATA_SCHEMA,
            "release": self.release_id,
            "generation": self.generation,
            "project": self.project,
            "compose_files": list(self.compose_files),
            "wait_timeout": self.wait_timeout,
            "remove_orphans": self.remove_orphans,
            "files": list(self.files),
            "secret_env": list(self.secret_env),
            "secret_files": list(self.secret_files),
        }
        return (json.dumps(document, indent=1) + "\n").encode()


@dataclass(frozen=True)
class Logins:
    """The registry credentials of a manifest: `config.json` for the docker CLI, and of what is
    in it the secrets, and the registry hosts."""

    docker_config: bytes = field(repr=False)
    secrets: tuple[Secret, ...]
    hosts: frozenset[str]


@dataclass(frozen=True)
class Rendering:
    """All that a manifest asks for, as bytes: nothing of it has been written yet."""

    release: Release
    files: Mapping[str, RenderedFile] = field(repr=False)
    env: Mapping[str, Secret] = field(repr=False)
    logins: Logins


def render(
    manifest: Manifest,
    resolved: Sequence[Resolved],
    host_compose: Sequence[ComposeFile],
    key: bytes,
) -> Rendering:
    """The release of `manifest`, with the values in `resolved`.

    `host_compose` are the host's own compose files, used where the manifest carries none. `key`
    keys the release's hash, so that no name on this host gives a secret away to guessing.
    Raises EntryError or ManifestError; the message names entries, never values.
    """
    compose = manifest.compose.files if manifest.compose else tuple(host_compose)
    if not compose:
        raise ManifestError(
            "the manifest carries no compose files and the host has none of its own",
            remedy="publish compose files or set docker.compose_files in the configuration",
        )
    env = {item.entry.name: item.value for item in resolved if item.entry.use is Use.ENV}
    compose_files, entry_files = _release_files(compose, resolved)
    files = {**compose_files, ENV_FILE: RenderedFile(render_dotenv(env)), **entry_files}
    secret = [item.entry for item in resolved if item.entry.path is not None]
    release = Release(
        release_id=_release_id(manifest, list(compose_files), files, key),
        generation=manifest.generation,
        project=manifest.project,
        compose_files=tuple(compose_files),
        wait_timeout=manifest.deploy.wait_timeout,
        remove_orphans=manifest.deploy.remove_orphans,
        files=tuple(files),
        secret_env=tuple(entry.name for entry in secret if entry.use is Use.ENV),
        secret_files=tuple(entry.target for entry in secret if entry.target is not None),
    )
    files[METADATA_FILE] = RenderedFile(release.as_json())
    return Rendering(release, files, env, render_logins(resolved))


def fingerprint(resolved: Iterable[Resolved], key: bytes) -> bytes:
    """A keyed hash of every value, by which it is known again without being kept."""
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for item in resolved:
        content = item.value.reveal().encode("utf-8", "surrogatepass")
        mac.update(f"{item.entry.name!a} {len(content)} ".encode() + content)
    return mac.digest()


def render_logins(resolved: Sequence[Resolved]) -> Logins:
    """The registry credentials among `resolved`. Raises EntryError, which names entries only."""
    credentials = _registry_auth(resolved)
    return Logins(
        docker_config(credentials),
        tuple(s for _, c in credentials for s in (c.password, c.auth)),
        frozenset(credential.host for _, credential in credentials),
    )


def parse_release(content: bytes) -> Release:
    """The metadata of a release, read back. Raises ValueError where it isn't whole."""
    try:
        document = json.loads(content)
        if document["schema"] != _METADATA_SCHEMA:
            raise ValueError("unknown schema")
        return Release(
            release_id=str(document["release"]),
            generation=int(document["generation"]),
            project=str(document["project"]),
            compose_files=_names(document["compose_files"]),
            wait_timeout=int(document["wait_timeout"]),
            remove_orphans=bool(document["remove_orphans"]),
            files=_names(document["files"]),
            secret_env=_names(document["secret_env"]),
            secret_files=_names(document["secret_files"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the release's metadata is not whole: {error!r}") from None


def _names(listed: Iterable[object]) -> tuple[str, ...]:
    return tuple(str(name) for name in listed)


def host_compose_files(sources: Iterable[tuple[str, str]]) -> tuple[ComposeFile, ...]:
    """The host's own compose files as files of a release, named by order and base name.

    `sources` are (absolute path, text).
    """
    return tuple(
        ComposeFile(name=f"host-{number}-{path.rsplit('/', 1)[-1]}", content=text)
        for number, (path, text) in enumerate(sources)
    )


def files_override(
    model: Mapping[str, Any], directory: str, rendering: Rendering, key: bytes
) -> bytes:
    """A compose file that labels each service with a keyed hash of what the release puts into it.

    Compose recreates a container when its labels change, but not when only the content behind a
    mount, a config or a secret does. `model` is the resolved model, `directory` the project
    directory in it.

    Raises ManifestError for a mount of what the release doesn't hold: the engine would make an
    empty directory there, and what the container keeps in it would be gone with the release.
    """
    services = {}
    for name, service in sorted((model.get("services") or {}).items()):
        injected = _injected(model, service, rendering.env)
        for path in _mounted(model, service, directory):
            injected |= _below(path, name, directory, rendering.files)
        if injected:
            services[name] = {"labels": {FILES_LABEL: _digest(injected, key)}}
    return _as_compose_file(services)


def pin_images(
    model: Mapping[str, Any], recorded: Mapping[str, str], local: Mapping[str, str]
) -> bytes:
    """A compose file that names images by id where their reference has moved since.

    `recorded` are the image ids by reference that the release ran with, `local` those of now.
    """
    services = {
        name: {"image": recorded[image]}
        for name, service in sorted((model.get("services") or {}).items())
        if (image := service.get("image")) in recorded and recorded[image] != local.get(image)
    }
    return _as_compose_file(services)


def _as_compose_file(services: Mapping[str, Any]) -> bytes:
    return (json.dumps({"services": services}, indent=1) + "\n").encode()


def _mounted(model: Mapping[str, Any], service: Mapping[str, Any], directory: str) -> list[str]:
    """What `service` mounts of the release, as paths in it: "" is all of it."""
    sources = [definition.get("file") for _, definition in _definitions(model, service)]
    for mount in service.get("volumes") or []:
        if mount.get("type") == "bind":
            sources.append(mount.get("source"))
        elif mount.get("type") == "volume":
            volume = (model.get("volumes") or {}).get(mount.get("source")) or {}
            sources.append((volume.get("driver_opts") or {}).get("device"))
    root = directory.rstrip("/") + "/"
    places = (f"{source}/" for source in sources if source)
    return [place[len(root) :].rstrip("/") for place in places if place.startswith(root)]


def _below(
    path: str, service: str, directory: str, files: Mapping[str, RenderedFile]
) -> dict[str, RenderedFile]:
    """What stands for all that a container sees of the release through a mount of `path`."""
    if path in files:
        return {path: files[path]}
    if path and not any(name.startswith(f"{path}/") for name in files):
        raise ManifestError(
            f"service {service!a} mounts {path!a}, which the release does not hold",
            remedy='deliver it with an entry of use "file", use a named volume, or mount a '
            "directory of the host by its absolute path",
        )
    # A directory is another one in each release, and the old one is emptied some time later.
    return {"\0directory": RenderedFile(directory.encode())}


def _injected(
    model: Mapping[str, Any], service: Mapping[str, Any], env: Mapping[str, Secret]
) -> dict[str, RenderedFile]:
    """The configs and secrets that Compose copies into the container when it makes it."""
    found = {}
    for name, definition in _definitions(model, service):
        value = env.get(definition.get("environment") or "")
        content = value.reveal() if value is not None else definition.get("content")
        if content is not None:
            found[f"\0{name}"] = RenderedFile(content.encode())
    return found


def _definitions(
    model: Mapping[str, Any], service: Mapping[str, Any]
) -> list[tuple[str, Mapping[str, Any]]]:
    """The configs and secrets that `service` uses, each named by kind and source."""
    return [
        (f"{kind}/{use.get('source')}", (model.get(kind) or {}).get(use.get("source")) or {})
        for kind in ("configs", "secrets")
        for use in service.get(kind) or []
    ]


def _release_files(
    compose: Iterable[ComposeFile], resolved: Iterable[Resolved]
) -> tuple[dict[str, RenderedFile], dict[str, RenderedFile]]:
    """The compose files in their order, and the `file` entries, by path."""
    claims = own_claims()
    compose_files, entry_files = {}, {}
    for file in compose:
        try:
            path = claims.take(file.name, f"compose file {file.name!a}")
        except ValueError as error:
            raise ManifestError(f"compose file {file.name!a} {error}") from None
        compose_files[path] = RenderedFile(file.content.encode())
    for item in resolved:
        name, target = item.entry.name, item.entry.target
        if item.entry.use is not Use.FILE or target is None:
            continue
        try:
            path = claims.take(target, f"entry {name!a}")
        except ValueError as error:
            raise EntryError(f"entry {name!a}: target {target!a} {error}") from None
        entry_files[path] = RenderedFile(_file_content(item), item.entry.mode)
    return compose_files, entry_files


def _file_content(item: Resolved) -> bytes:
    try:
        return item.value.reveal().encode()
    except UnicodeEncodeError:
        raise EntryError(f"entry {item.entry.name!r}: the value is not valid Unicode") from None


def _registry_auth(resolved: Iterable[Resolved]) -> list[tuple[str, Credential]]:
    """Each credential with the name of the entry that it came from."""
    return [
        (item.entry.name, credential)
        for item in resolved
        if item.entry.use is Use.REGISTRY_AUTH
        for credential in parse_credentials(item.entry.name, item.value, item.entry.registry_host)
    ]


def _release_id(
    manifest: Manifest, order: Sequence[str], files: Mapping[str, RenderedFile], key: bytes
) -> str:
    settings = json.dumps([manifest.project, list(order), manifest.deploy.model_dump(mode="json")])
    inputs = {**files, "\0settings": RenderedFile(settings.encode())}
    return f"{manifest.generation}-{_digest(inputs, key)}"


def _digest(files: Mapping[str, RenderedFile], key: bytes) -> str:
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for path, file in sorted(files.items()):
        header = json.dumps([path, file.mode, len(file.content)])
        mac.update(header.encode() + b"\0" + file.content)
    return mac.hexdigest()[:_HASH_LENGTH]
