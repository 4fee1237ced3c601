"""Which of the Engine's events mean that the host no longer matches the release. Pure.

Format: Docker Engine API, `GET /events`, events of type `container`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# What somebody did to a container, and what it did by itself. Everything else (create, start,
# exec, health_status: healthy) is no reason to look.
_BY_HAND = {
    "destroy": "removed",
    "kill": "killed",
    "pause": "paused",
    "rename": "renamed",
    "stop": "stopped",
}
_BY_ITSELF = {
    "die": "ended",
    "oom": "ran out of memory",
    "health_status: unhealthy": "became unhealthy",
}


@dataclass(frozen=True)
class EngineEvent:
    """One event of a container. `at` is the engine's time in nanoseconds since the epoch."""

    action: str
    container: str
    service: str
    at: int
    exit_code: str = ""

    @property
    def matters(self) -> bool:
        """Whether the container may not be as the release wants it any more."""
        return self.action in _BY_HAND or self.action in _BY_ITSELF

    @property
    def by_hand(self) -> bool:
        """Whether somebody did it: then even an exit code of 0 is no one-shot's end."""
        return self.action in _BY_HAND

    @property
    def sentence(self) -> str:
        """What happened, as the engine says it."""
        words = _BY_HAND.get(self.action) or _BY_ITSELF.get(self.action) or self.action
        code = f" with exit code {self.exit_code}" if self.exit_code else ""
        return f"container {self.container} {words}{code}"


def parse_event(line: str | bytes) -> EngineEvent | None:
    """The event in one line of the stream; None for what isn't a container's event."""
    try:
        document: Any = json.loads(line)
        actor = document["Actor"]["Attributes"]
        return EngineEvent(
            action=str(document["Action"]),
            container=str(actor["name"]),
            service=str(actor.get("com.docker.compose.service", "")),
            at=int(document["timeNano"]),
            exit_code=str(actor.get("exitCode", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None


def drift_notes(events: Sequence[EngineEvent]) -> tuple[str, ...]:
    """One note for each thing that happened, in order, each said once."""
    sentences = dict.fromkeys(event.sentence for event in events if event.matters)
    return tuple(f"drift: {sentence}" for sentence in sentences)
