"""What a new release changes in each service, told without any value. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from monky_deployd.domain.verify import Container


class Change(StrEnum):
    """What becomes of a service."""

    NEW = "new"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    TAKEN_OVER = "taken over"
    REMOVED = "removed"
    LEFT = "left as it is"


@dataclass(frozen=True)
class ServiceChange:
    """One service: what becomes of it, the image that it is to have ("" where it is to go), in
    which keys of its definition it differs, and whether the image would be pulled."""

    service: str
    change: Change
    image: str
    keys: tuple[str, ...] = ()
    pulled: bool = False

    def as_json(self) -> dict[str, Any]:
        """The change for `--json`."""
        return {
            "service": self.service,
            "change": self.change.value,
            "image": self.image,
            "keys": list(self.keys),
            "pulled": self.pulled,
        }


@dataclass(frozen=True)
class ResolvedModel:
    """A release as Compose resolves it: the model, and the project directory named in it."""

    model: Mapping[str, Any]
    directory: str

    def service(self, name: str) -> dict[str, Any]:
        """The definition of a service, wherever its release lies; empty where there is none."""
        definition = (self.model.get("services") or {}).get(name) or {}
        text = json.dumps(definition).replace(json.dumps(self.directory)[1:-1], ".")
        return dict(json.loads(text))

    @property
    def names(self) -> frozenset[str]:
        """The names of the services."""
        return frozenset(self.model.get("services") or {})


def service_changes(
    before: ResolvedModel | None,
    after: ResolvedModel,
    containers: tuple[Container, ...],
    *,
    remove_orphans: bool,
) -> tuple[ServiceChange, ...]:
    """What becomes of each service when `after` takes the place of `before`, sorted by name.

    `before` is None where nothing was deployed yet; `containers` are what the project has now.
    """
    running = {container.service for container in containers}
    gone = ((before.names if before else frozenset()) | running) - after.names
    fate = Change.REMOVED if remove_orphans else Change.LEFT
    changes = [_change(name, before, after, running) for name in after.names]
    changes += [ServiceChange(name, fate, "") for name in gone if name]
    return tuple(sorted(changes, key=lambda change: change.service))


def pulls(
    changes: tuple[ServiceChange, ...], local: Mapping[str, str], *, always: bool, never: bool
) -> tuple[ServiceChange, ...]:
    """The changes, each with whether its image would be pulled.

    `local` are the ids of the images that are there already, by reference.
    """
    if never:
        return changes
    return tuple(
        replace(change, pulled=bool(change.image) and (always or change.image not in local))
        for change in changes
    )


def _change(
    name: str, before: ResolvedModel | None, after: ResolvedModel, running: set[str]
) -> ServiceChange:
    new = after.service(name)
    image = str(new.get("image") or "")
    if before is None or name not in before.names:
        return ServiceChange(name, Change.TAKEN_OVER if name in running else Change.NEW, image)
    old = before.service(name)
    keys = tuple(sorted(k for k in {*old, *new} if old.get(k) != new.get(k)))
    return ServiceChange(name, Change.CHANGED if keys else Change.UNCHANGED, image, keys)
