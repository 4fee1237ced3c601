"""Which of the Engine's events mean that the host may no longer match the release, and how often
what comes of them is put right. Pure.

Format: Docker Engine API, `GET /events`, events of the types `container` and `network`.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from monky_deployd.domain.backoff import RELEASE_CAP
from monky_deployd.domain.verify import Container, Standing, standing

# What somebody did to a container, and what it did by itself. Nothing else (create, start, exec)
# is a reason to look.
_BY_HAND = {
    "destroy": "was removed",
    "kill": "was sent a signal",
    "pause": "was paused",
    "rename": "was renamed",
    "stop": "was stopped",
    "update": "was given other settings",
}
_BY_ITSELF = {
    "die": "ended",
    "oom": "ran out of memory",
    "health_status: unhealthy": "became unhealthy",
}
_DISCONNECT = "disconnect"
_STOPPING = {"kill", "stop"}
_CHANGING = {"rename", "update", _DISCONNECT}
# The engine's filter takes these for the beginnings of an action.
LISTENED_TO = (*_BY_HAND, _DISCONNECT, "die", "oom", "health_status")

# So many times in a row what ended by itself is put right at once; then it is left in peace for
# a while, as a restart policy would, and the pauses grow.
_AT_ONCE = 3
_REMEMBERED = 2 * RELEASE_CAP
# So many nanoseconds after a container was told to stop its end is still due to that.
_GOES_WITH = 60 * 10**9


@dataclass(frozen=True)
class EngineEvent:
    """One event of a container. `at` is the engine's time in nanoseconds since the epoch.

    Where a container left a network, `network` is its name, and of the container the engine tells
    nothing but the id, until `of_project` has found it.
    """

    action: str
    container: str
    project: str
    service: str
    at: int
    exit_code: str = ""
    network: str = ""

    @property
    def matters(self) -> bool:
        """Whether the container may not be as the release wants it any more."""
        return self.by_hand or self.action in _BY_ITSELF

    @property
    def by_hand(self) -> bool:
        """Whether somebody did it."""
        return self.action in _BY_HAND or bool(self.network)

    @property
    def sentence(self) -> str:
        """What happened, as the engine says it."""
        if self.network:
            return f"container {self.container} was disconnected from network {self.network}"
        words = _BY_HAND.get(self.action) or _BY_ITSELF.get(self.action) or self.action
        code = f" with exit code {self.exit_code}" if self.exit_code else ""
        return f"container {self.container} {words}{code}"


def parse_event(line: str | bytes) -> EngineEvent | None:
    """The event in one line of the stream; None for what isn't one of a project's container, or
    of a network that a container left."""
    try:
        document: Any = json.loads(line)
        actor = document["Actor"]["Attributes"]
        if document.get("Type") == "network":
            return _parse_disconnect(document, actor)
        return EngineEvent(
            action=str(document["Action"]),
            container=str(actor["name"]),
            project=str(actor["com.docker.compose.project"]),
            service=str(actor.get("com.docker.compose.service", "")),
            at=int(document["timeNano"]),
            exit_code=str(actor.get("exitCode", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        return None


def _parse_disconnect(document: Any, actor: Any) -> EngineEvent | None:
    if document["Action"] != _DISCONNECT:
        return None
    return EngineEvent(
        action=_DISCONNECT,
        container=str(actor["container"]),
        project="",
        service="",
        at=int(document["timeNano"]),
        network=str(actor["name"]),
    )


def of_project(
    project: str, events: Iterable[EngineEvent], containers: Iterable[Container]
) -> list[EngineEvent]:
    """Those of `events` that happened to the project's `containers`.

    One that stops leaves its networks too, but comes back to them: only where the engine does not
    know it as a member any more was it disconnected.
    """
    by_id = {container.id: container for container in containers}
    found: list[EngineEvent] = []
    for event in events:
        if not event.network:
            found += [event] if event.project == project else []
            continue
        left = by_id.get(event.container)
        if left is not None and event.network not in left.networks:
            found.append(replace(event, container=left.name, project=project, service=left.service))
    return found


def drift_notes(events: Iterable[EngineEvent]) -> tuple[str, ...]:
    """One note for each thing that happened, in order, each said once."""
    sentences = dict.fromkeys(event.sentence for event in events if event.matters)
    return tuple(f"drift: {sentence}" for sentence in sentences)


def as_stopped(
    containers: Iterable[Container], events: Iterable[EngineEvent]
) -> tuple[Container, ...]:
    """The containers, each that `events` say was stopped by hand told as such.

    Without that, one that exits with 0 when it is told to stop passes for a one-shot that has
    done its work.
    """
    stopped = {event.container for event in events if event.action in _STOPPING}
    return tuple(
        replace(container, stopped_by_hand=True)
        if container.name in stopped and standing(container) is Standing.DONE
        else container
        for container in containers
    )


def still_told(events: Sequence[EngineEvent]) -> list[EngineEvent]:
    """Those of `events` that a later one may go with: a container may take a while to stop."""
    newest = max((event.at for event in events), default=0)
    return [event for event in events if event.by_hand and newest - event.at < _GOES_WITH]


def changed_services(events: Iterable[EngineEvent]) -> tuple[str, ...]:
    """The services whose containers were changed in what only making them anew brings back."""
    return tuple(sorted({event.service for event in events if event.action in _CHANGING}))


def pause_before_repair(repairs: Sequence[float], now: float) -> float:
    """Seconds to wait before what ended by itself is put right again.

    `repairs` are when that was done before, `now` is now: seconds of one clock.
    """
    recent = [moment for moment in repairs if now - moment < _REMEMBERED]
    if len(recent) < _AT_ONCE:
        return 0.0
    pause = min(RELEASE_CAP, 10.0 * 2.0 ** min(len(recent) - _AT_ONCE, 32))
    return max(0.0, recent[-1] + pause - now)
