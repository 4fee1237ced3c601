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
    networks: tuple[str, ...] = ()
    stopped_by_hand: bool = False


class Standing(StrEnum):
    """How one container stands at one look."""

    GOOD = "good"
    DONE = "done"
    STARTING = "starting"
    BAD = "bad"


@dataclass(frozen=True)
class Verdict:
    """The answer: `faults` empty means that the release is good. `doubtful` asks for a third look:
    something was started, but not while it was watched. `mendable`: bringing the release up again
    may help, because something is missing or ended, and not just ill."""

    statuses: tuple[ServiceStatus, ...]
    faults: tuple[Fault, ...]
    doubtful: bool = False
    mendable: bool = False


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
        done = container.restart_policy in _ONE_SHOT_POLICIES and not container.stopped_by_hand
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
    doubtful = mendable = False
    for item in expected:
        mine = [container for container in second if container.service == item.service]
        for container in mine:
            earlier = before.get(container.id)
            image_id = image_ids.get(item.image, "")
            problem = _problem(container, earlier, image_id)
            mendable |= _is_over(container) or bool(image_id and container.image_id != image_id)
            doubtful |= not problem and _unwatched(container, earlier, baseline)
            statuses.append(_status(item, container, good=not problem))
            if problem:
                faults.append(_fault(item, problem, f"docker logs {container.name}"))
        if len(mine) < item.replicas:
            statuses.append(ServiceStatus(item.service, item.image, "missing", good=False))
        if len(mine) != item.replicas:
            faults.append(_fault(item, _wrong_count(item, len(mine))))
            mendable = True
    return Verdict(tuple(statuses), tuple(faults), doubtful, mendable)


def _is_over(container: Container) -> bool:
    """Whether it won't run again by itself."""
    return container.state not in {"running", "restarting"} and (
        standing(container) is Standing.BAD
    )


def _wrong_count(item: Expected, count: int) -> str:
    if not count:
        return "the service has no container"
    found = "1 container" if count == 1 else f"{count} containers"
    return f"the service has {found} where the release wants {item.replicas}"


def _unwatched(container: Container, before: Container | None, baseline: Mapping[str, int]) -> bool:
    """Whether it was started where nobody looked, so that these two looks don't say enough."""
    if standing(container) is Standing.DONE or container.health == "healthy":
        return False
    if before is None or before.state == "created":
        return True
    return container.restarts > baseline.get(container.id, 0)


def _problem(container: Container, before: Container | None, image_id: str) -> str:
    name, now = container.name, standing(container)
    if now is Standing.BAD:
        return _bad_state(container)
    # A one-shot may have needed several tries; what counts is that it is done.
    if now is not Standing.DONE and before is not None and container.restarts > before.restarts:
        return _loop(container)
    if now is Standing.STARTING:
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
    was_started = before.state != "created"
    return was_started and now.state == "running" and before.started_at != now.started_at


def _bad_state(container: Container) -> str:
    name, reason = container.name, f": {container.error}" if container.error else ""
    if container.state == "running":
        return f"container {name} is unhealthy"
    if container.state == "restarting":
        return _loop(container)
    if container.stopped_by_hand:
        return f"container {name} exited ({container.exit_code}) when it was stopped by hand"
    if container.state == "exited" and container.exit_code == 0:
        return (
            f"container {name} exited (0) and stays down, "
            f"against its restart policy {container.restart_policy}"
        )
    if container.state == "exited":
        memory = ", killed for lack of memory" if container.oom_killed else ""
        return f"container {name} exited ({container.exit_code}){memory}{reason}"
    if container.state == "created":
        return f"container {name} was created but did not start{reason}"
    return f"container {name} is {container.state}{reason}"


def _loop(container: Container) -> str:
    restarts = "1 restart" if container.restarts == 1 else f"{container.restarts} restarts"
    return (
        f"container {container.name} restarts in a loop: {restarts} so far, "
        f"last exit code {container.exit_code}"
    )


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


def _fault(item: Expected, message: str, hint: str = "") -> Fault:
    return Fault(
        message=message,
        kind=ErrorKind.OTHER,
        service=item.service,
        image=item.image,
        registry=registry_of_image(item.image) if item.image else "",
        hint=hint,
    )
