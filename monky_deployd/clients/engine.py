"""The Docker Engine API over its unix socket: what the agent looks at, and the little that Compose
can't do for it.

Format: Docker Engine API 1.41 and later.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from monky_deployd.domain.drift import LISTENED_TO, EngineEvent, parse_event
from monky_deployd.domain.images import LocalImage
from monky_deployd.domain.verify import Container
from monky_deployd.errors import EngineError

_TIMEOUT = 30.0
# 400: what was asked for can't be a name. Who needs the image hears so from its pull.
_NO_SUCH_THING = {httpx.codes.NOT_FOUND, httpx.codes.BAD_REQUEST}
_NOT_PAUSED = {httpx.codes.NOT_FOUND, httpx.codes.CONFLICT}
_STAYS = {httpx.codes.NOT_FOUND, httpx.codes.CONFLICT}
_LABEL_PROJECT = "com.docker.compose.project"
_LABEL_SERVICE = "com.docker.compose.service"
_LABEL_ONEOFF = "com.docker.compose.oneoff"


class EngineClient:
    """Reads containers and images. Every method raises EngineError, with the engine's own words."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=socket),
            base_url="http://engine",
            timeout=_TIMEOUT,
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def version(self) -> str:
        """The engine's version, such as "20.10.24"."""
        document = await self._get("/version", dict)
        return str(document.get("Version", ""))

    async def containers(self, project: str) -> tuple[Container, ...]:
        """Every container of the Compose project, running or not, less one-off runs."""
        filters = json.dumps({"label": [f"{_LABEL_PROJECT}={project}", f"{_LABEL_ONEOFF}=False"]})
        listed = await self._get("/containers/json", list, params={"all": "1", "filters": filters})
        found = await asyncio.gather(*(self._container(str(item["Id"])) for item in listed))
        return tuple(sorted((c for c in found if c is not None), key=lambda c: c.name))

    async def events(self) -> AsyncIterator[EngineEvent | None]:
        """What happens to containers from now on, for ever: to those of all Compose projects, and
        to any that leaves a network, as the engine does not say whose it is.

        First comes None: from then on nothing is missed. Ends, or raises EngineError, when the
        engine goes away: what happened meanwhile is lost.
        """
        # No filter by label: events of networks have none.
        filters = {"type": ["container", "network"], "event": LISTENED_TO}
        try:
            async with self._client.stream(
                "GET",
                "/events",
                params={"filters": json.dumps(filters)},
                timeout=httpx.Timeout(_TIMEOUT, read=None),
            ) as response:
                if response.is_error:
                    await response.aread()
                    raise _refusal(response)
                yield None
                async for line in response.aiter_lines():
                    if event := parse_event(line):
                        yield event
        except httpx.HTTPError as error:
            raise self._away(error) from error

    async def unpause(self, container_id: str) -> None:
        """Let a paused container go on. One that is gone, or not paused any more, is none."""
        try:
            response = await self._client.post(f"/containers/{container_id}/unpause")
        except httpx.HTTPError as error:
            raise self._away(error) from error
        if response.is_error and response.status_code not in _NOT_PAUSED:
            raise _refusal(response)

    async def image_id(self, reference: str) -> str:
        """The local image's id, "" where there is none of that name, or it can't be a name."""
        document = await self._get(f"/images/{quote(reference, safe='/:@')}/json", dict, missing={})
        return str(document.get("Id", ""))

    async def image(self, reference: str) -> LocalImage | None:
        """The local image of this name or id; None where there is none."""
        document = await self._get(f"/images/{quote(reference, safe='/:@')}/json", dict, missing={})
        if not document:
            return None
        tags, digests = document.get("RepoTags") or (), document.get("RepoDigests") or ()
        return LocalImage(str(document.get("Id", "")), tuple(tags), tuple(digests))

    async def images_in_use(self) -> frozenset[str]:
        """The ids of the images of all containers, running or not, whoever made them."""
        listed = await self._get("/containers/json", list, params={"all": "1"})
        return frozenset(str(item.get("ImageID", "")) for item in listed)

    async def remove_image(self, reference: str) -> bool:
        """Take this name from its image, and remove the image with its last one; never by force.

        False where the engine has no such image, or does not want to: it is in use after all.
        """
        path = f"/images/{quote(reference, safe='/:@')}"
        try:
            response = await self._client.delete(path)
        except httpx.HTTPError as error:
            raise self._away(error) from error
        if response.status_code in _STAYS:
            return False
        if response.is_error:
            raise _refusal(response)
        return True

    async def _container(self, container_id: str) -> Container | None:
        document = await self._get(f"/containers/{container_id}/json", dict, missing={})
        return container_from_inspect(document) if document else None

    async def _get(
        self,
        path: str,
        kind: type[dict[str, Any]] | type[list[Any]],
        *,
        params: dict[str, str] | None = None,
        missing: dict[str, Any] | None = None,
    ) -> Any:
        """The document at `path`, of this kind; `missing` where the engine has no such thing."""
        try:
            response = await self._client.get(path, params=params)
        except httpx.HTTPError as error:
            raise self._away(error) from error
        if response.status_code in _NO_SUCH_THING and missing is not None:
            return missing
        if response.is_error:
            raise _refusal(response)
        try:
            document = response.json()
        except ValueError as error:
            raise EngineError(f"the Docker Engine's answer to {path} is not JSON") from error
        if not isinstance(document, kind):
            raise EngineError(f"the Docker Engine's answer to {path} is not of the right kind")
        return document

    def _away(self, error: httpx.HTTPError) -> EngineError:
        return EngineError(
            f"the Docker Engine does not answer at {self._socket}: "
            f"{str(error) or type(error).__name__}",
            remedy="is docker running, and is the agent's user in group docker?",
        )


def _refusal(response: httpx.Response) -> EngineError:
    return EngineError(f"the Docker Engine answers {response.status_code}: {_words(response)}")


def container_from_inspect(document: dict[str, Any]) -> Container:
    """A container from the engine's inspect document."""
    state = document.get("State") or {}
    config = document.get("Config") or {}
    policy = (document.get("HostConfig") or {}).get("RestartPolicy") or {}
    return Container(
        id=str(document.get("Id", "")),
        name=str(document.get("Name", "")).lstrip("/"),
        service=str((config.get("Labels") or {}).get(_LABEL_SERVICE, "")),
        image_id=str(document.get("Image", "")),
        state=str(state.get("Status", "")),
        health=_health(state),
        restarts=int(document.get("RestartCount") or 0),
        exit_code=int(state.get("ExitCode") or 0),
        started_at=str(state.get("StartedAt", "")),
        restart_policy=str(policy.get("Name", "")),
        error=str(state.get("Error") or ""),
        oom_killed=bool(state.get("OOMKilled")),
        networks=tuple((document.get("NetworkSettings") or {}).get("Networks") or ()),
    )


def _health(state: dict[str, Any]) -> str:
    status = str((state.get("Health") or {}).get("Status", ""))
    return "" if status == "none" else status


def _words(response: httpx.Response) -> str:
    try:
        return str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        return response.reason_phrase
