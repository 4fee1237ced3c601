"""Does what runs match the release? Pure: the resolved model and container states to a verdict.

`docker compose up --wait` calls a container without a healthcheck healthy even when it exits
a second later or restarts in a loop, so the agent looks again by itself, twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from monky_deployd.domain.registry_auth import registry_of_image
from monky_deployd.domain.report import ErrorKind, Fault, ServiceStatus

# Restart policies under which an exit code of 0 means that a one-shot has done its work.
_ONE_SHOT_POLICIES = {"", "no", "on-failure"}


@dataclass(frozen=True)
class Expected:
    """What the model wants of one service. `replicas` is how many containers it should have."""

    service: str
    image: str
    replicas: int = 1


@dataclass(frozen=True)
class Container:
    """One container of the project as the Engine describes it (`GET /containers/{id}/json`)."""

    id: str
    name: str
    service: str
    image_id: str
    state: str
    health: str = ""
    restarts: int = 0
    exit_code: int = 0
    started_at: str = ""
    restart_policy: str = ""
    error: str = ""
    oom_killed: bool = False


class Standing(StrEnum):
    """How one container stands at one look."""

    GOOD = "good"
    DONE = "done"
    STARTING = "starting"
    BAD = "bad"


@dataclass(frozen=True)
class Verdict:
    """The answer: `faults` empty means that the release is good. `doubtful` asks for a third look:
    something restarted, but not while it was watched."""

    statuses: tuple[ServiceStatus, ...]
    faults: tuple[Fault, ...]
    doubtful: bool = False


def expected_services(model: Mapping[str, Any]) -> tuple[Expected, ...]:
    """The services that `docker compose up` would start from the resolved `model`."""
    return tuple(
        Expected(name, str(service.get("image") or ""), _replicas(service))
        for name, service in sorted((model.get("services") or {}).items())
    )


def _replicas(service: Mapping[str, Any]) -> int:
    deploy = service.get("deploy") or {}
    for value in (service.get("scale"), deploy.get("replicas")):
        if value is not None:
            return int(value)
    return 1


def standing(container: Container) -> Standing:
    """How `container` stands by this one look alone."""
    if container.state == "running":
        if container.health == "starting":
            return Standing.STARTING
        return Standing.BAD if container.health == "unhealthy" else Standing.GOOD
    if container.state == "exited" and container.exit_code == 0:
        done = container.restart_policy in _ONE_SHOT_POLICIES
        return Standing.DONE if done else Standing.BAD
    return Standing.BAD


def settled(expected: Iterable[Expected], containers: Sequence[Container]) -> bool:
    """Whether no container of an expected service is still starting."""
    names = {item.service for item in expected}
    return not any(
        container.service in names and standing(container) is Standing.STARTING
        for container in containers
    )


def judge(
    expected: Sequence[Expected],
    baseline: Mapping[str, int],
    first: Sequence[Container],
    second: Sequence[Container],
    image_ids: Mapping[str, str],
) -> Verdict:
    """The verdict from two looks, a settling time apart.

    `baseline` is the restart count by container id before `up` (a new container counts from 0);
    `image_ids` the local image id by image reference, as pulled.
    """
    before = {container.id: container for container in first}
    statuses: list[ServiceStatus] = []
    faults: list[Fault] = []
    doubtful = False
    for item in expected:
        mine = [container for container in second if container.service == item.service]
        for container in mine:
            problem = _problem(container, before.get(container.id), image_ids.get(item.image, ""))
            doubtful |= not problem and _restarted_unwatched(container, baseline)
            statuses.append(_status(item, container, good=not problem))
            if problem:
                faults.append(_fault(item, problem))
        missing = _missing(item, mine)
        if missing:
            statuses.append(ServiceStatus(item.service, item.image, "missing", good=False))
            faults.append(_fault(item, missing))
    return Verdict(tuple(statuses), tuple(faults), doubtful)


def _missing(item: Expected, containers: Sequence[Container]) -> str:
    if len(containers) >= item.replicas:
        return ""
    if not containers:
        return "the service has no container"
    return f"the service has {len(containers)} of {item.replicas} containers"


def _restarted_unwatched(container: Container, baseline: Mapping[str, int]) -> bool:
    return container.restarts > baseline.get(container.id, 0) and container.health != "healthy"


def _problem(container: Container, before: Container | None, image_id: str) -> str:
    name = container.name
    if before is not None and container.restarts > before.restarts:
        return (
            f"container {name} restarts in a loop: {container.restarts} restarts so far, "
            f"last exit code {container.exit_code}"
        )
    if standing(container) is Standing.BAD:
        return _bad_state(container)
    if standing(container) is Standing.STARTING:
        return f"container {name} is still starting: its healthcheck has not passed yet"
    if before is not None and _came_back(before, container):
        return f"container {name} was started again while it was watched"
    if image_id and container.image_id != image_id:
        return (
            f"container {name} still runs image {container.image_id}, "
            f"not {image_id}, which was pulled"
        )
    return ""


def _came_back(before: Container, now: Container) -> bool:
    return now.state == "running" and before.started_at != now.started_at


def _bad_state(container: Container) -> str:
    name, reason = container.name, f": {container.error}" if container.error else ""
    if container.state == "running":
        return f"container {name} is unhealthy"
    if container.state == "restarting":
        return (
            f"container {name} restarts in a loop: {container.restarts} restarts so far, "
            f"last exit code {container.exit_code}"
        )
    if container.state in {"exited", "dead"}:
        memory = ", killed for lack of memory" if container.oom_killed else ""
        return f"container {name} exited ({container.exit_code}){memory}{reason}"
    if container.state == "created":
        return f"container {name} was created but did not start{reason}"
    return f"container {name} is {container.state}{reason}"


def _status(item: Expected, container: Container, *, good: bool) -> ServiceStatus:
    exited = container.state in {"exited", "dead"}
    return ServiceStatus(
        service=item.service,
        image=item.image,
        state="completed" if good and exited else container.state,
        health=container.health,
        restarts=container.restarts,
        exit_code=container.exit_code if exited else None,
        container=container.name,
        good=good,
    )


def _fault(item: Expected, message: str) -> Fault:
    return Fault(
        message=message,
        kind=ErrorKind.OTHER,
        service=item.service,
        image=item.image,
        registry=registry_of_image(item.image) if item.image else "",
        hint=f"docker compose logs {item.service}",
    )
