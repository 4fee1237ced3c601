"""Tiny images for the demo and the tests: busybox alone, made and pushed without a Dockerfile."""

import base64
import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from monky_deployd.demo.engine import Engine
from monky_deployd.demo.registry import Registry
from monky_deployd.errors import MonkyError

LABEL = "dev.monky.test"
"""The label's name; its value is the run's id. Clean-up goes by it."""

# As PID 1 a plain `sleep` or `httpd` ignores SIGTERM, and each stop would take ten seconds.
IDLE = ("sh", "-c", "trap 'exit 0' TERM; sleep 2147483647 & wait")
"""A command that runs until it is told to stop."""
SERVE = ("sh", "-c", "trap 'exit 0' TERM; httpd -f -p 80 -h /www & wait")
"""A command that serves the image's /www on port 80 until it is told to stop."""

_BUSYBOX = Path("/bin/busybox")
_COMPOSE_PROJECT = "com.docker.compose.project"

_DOCKER_TYPE = "application/vnd.docker"
_CONFIG_TYPE = f"{_DOCKER_TYPE}.container.image.v1+json"
_LAYER_TYPE = f"{_DOCKER_TYPE}.image.rootfs.diff.tar"
_MANIFEST_TYPE = f"{_DOCKER_TYPE}.distribution.manifest.v2+json"
_LIST_TYPE = f"{_DOCKER_TYPE}.distribution.manifest.list.v2+json"


def make_image(
    engine: Engine,
    registry: Registry,
    repository: str,
    tag: str,
    *,
    label: str,
    files: Mapping[str, bytes] | None = None,
    cmd: Sequence[str] = IDLE,
) -> str:
    """Push a busybox image and remove it from the engine, so that it must be pulled.

    `files` maps paths inside the image ("www/index.html") to their content, `label` is
    "name=value". Returns the image's reference. MonkyError if the engine or registry refuses.
    """
    name = f"{registry.host}/{repository}"
    _import(engine, name, tag, _busybox_root(files or {}), label=label, cmd=cmd)
    try:
        _push(engine, registry, name, tag)
    finally:
        engine.request("DELETE", f"/images/{name}:{tag}", params={"force": "true"})
    return f"{name}:{tag}"


def foreign_platform_image(registry: Registry, repository: str, tag: str) -> str:
    """Push a manifest list that has an image for arm64 only, and return its reference.

    The formats are Docker's Image Manifest V2, Schema 2. MonkyError if the registry refuses.
    """
    layer = _tar({})
    config = {
        "architecture": "arm64",
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    with _registry_client(registry, repository) as client:
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST_TYPE,
            "config": _upload(client, _CONFIG_TYPE, _json(config)),
            "layers": [_upload(client, _LAYER_TYPE, layer)],
        }
        entry = _put_manifest(client, _MANIFEST_TYPE, manifest, reference=_digest(_json(manifest)))
        platform = {"architecture": "arm64", "os": "linux"}
        index = {
            "schemaVersion": 2,
            "mediaType": _LIST_TYPE,
            "manifests": [{**entry, "platform": platform}],
        }
        _put_manifest(client, _LIST_TYPE, index, reference=tag)
    return f"{registry.host}/{repository}:{tag}"


def cleanup(engine: Engine, label: str) -> None:
    """Remove every container, network, volume and image that carries `label` ("name=value").

    Containers inherit their image's label; the networks and volumes of a Compose project with
    such a container are removed too. MonkyError if the engine refuses one.
    """
    containers = _labelled(engine, "/containers/json", label, {"all": "true"})
    projects = {found["Labels"].get(_COMPOSE_PROJECT) for found in containers} - {None}
    for container in containers:
        _remove(engine, f"/containers/{container['Id']}", {"force": "true", "v": "true"})
    for owner in (label, *(f"{_COMPOSE_PROJECT}={project}" for project in sorted(projects))):
        for network in _labelled(engine, "/networks", owner):
            _remove(engine, f"/networks/{network['Id']}")
        for volume in _labelled(engine, "/volumes", owner):
            _remove(engine, f"/volumes/{volume['Name']}")
    for image in _labelled(engine, "/images/json", label):
        _remove(engine, f"/images/{image['Id']}", {"force": "true"})


def _labelled(
    engine: Engine, path: str, label: str, params: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    filters = json.dumps({"label": [label]})
    answer = engine.request("GET", path, params={**(params or {}), "filters": filters}).json()
    found: list[dict[str, Any]] = answer["Volumes"] if path == "/volumes" else answer
    return found or []


def _remove(engine: Engine, path: str, params: Mapping[str, str] | None = None) -> None:
    engine.request("DELETE", path, params=params)


def _import(
    engine: Engine, name: str, tag: str, root: bytes, *, label: str, cmd: Sequence[str]
) -> None:
    key, _, value = label.partition("=")
    changes = [
        f"CMD {json.dumps(list(cmd))}",
        f"LABEL {json.dumps(key)}={json.dumps(value)}",
    ]
    params = {"fromSrc": "-", "repo": name, "tag": tag, "changes": changes}
    _check(engine.request("POST", "/images/create", params=params, content=root), "import")


def _push(engine: Engine, registry: Registry, name: str, tag: str) -> None:
    credential = {"username": registry.username, "password": registry.password.reveal()}
    header = base64.urlsafe_b64encode(_json(credential)).decode()
    _check(
        engine.request(
            "POST",
            f"/images/{name}/push",
            params={"tag": tag},
            headers={"X-Registry-Auth": header},
        ),
        f"push {name}:{tag}",
    )


def _check(response: httpx.Response, what: str) -> None:
    """The engine answers 200 and then streams progress, in which an error may come."""
    for line in response.text.splitlines():
        if "error" in (event := json.loads(line)):
            raise MonkyError(f"the engine can't {what}: {event['error']}")


def _busybox_root(files: Mapping[str, bytes]) -> bytes:
    """A root file system as a tar archive: busybox, its applets as links, and `files`."""
    applets = subprocess.run(
        [str(_BUSYBOX), "--list"], capture_output=True, text=True, check=True
    ).stdout.split()
    links = [f"bin/{applet}" for applet in applets if applet != "busybox"]
    return _tar({"bin/busybox": _BUSYBOX.read_bytes(), **files}, links=links, target="busybox")


def _tar(files: Mapping[str, bytes], *, links: Sequence[str] = (), target: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member in _directories(files):
            archive.addfile(member)
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.mode = 0o755
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for path in links:
            member = tarfile.TarInfo(path)
            member.type = tarfile.SYMTYPE
            member.linkname = target
            archive.addfile(member)
    return buffer.getvalue()


def _directories(files: Mapping[str, bytes]) -> Iterator[tarfile.TarInfo]:
    parents = {str(parent) for path in files for parent in Path(path).parents} - {"."}
    for path in sorted({*parents, "tmp"}):
        member = tarfile.TarInfo(path)
        member.type = tarfile.DIRTYPE
        member.mode = 0o1777 if path == "tmp" else 0o755
        yield member


def _registry_client(registry: Registry, repository: str) -> httpx.Client:
    return httpx.Client(
        base_url=f"http://{registry.host}/v2/{repository}",
        auth=(registry.username, registry.password.reveal()),
        trust_env=False,
    )


def _upload(client: httpx.Client, media_type: str, content: bytes) -> dict[str, object]:
    """Upload one blob (distribution API) and return its descriptor."""
    digest = _digest(content)
    opened = _accepted(client.post("/blobs/uploads/"))
    _accepted(
        client.put(
            httpx.URL(opened.headers["Location"]).copy_merge_params({"digest": digest}),
            content=content,
        )
    )
    return {"mediaType": media_type, "size": len(content), "digest": digest}


def _put_manifest(
    client: httpx.Client, media_type: str, document: Mapping[str, object], *, reference: str
) -> dict[str, object]:
    content = _json(document)
    headers = {"Content-Type": media_type}
    _accepted(client.put(f"/manifests/{reference}", content=content, headers=headers))
    return {"mediaType": media_type, "size": len(content), "digest": _digest(content)}


def _accepted(response: httpx.Response) -> httpx.Response:
    if response.is_error:
        raise MonkyError(f"the registry refused {response.request.method}: {response.text.strip()}")
    return response


def _json(document: object) -> bytes:
    return json.dumps(document).encode()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
