"""The phases that touch containers: switch, up, verify; and the way back when they fail."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from monky_deployd.clients.compose import ComposeCli, OnEvent, Project, Ran
from monky_deployd.clients.engine import EngineClient
from monky_deployd.domain.compose_events import exited_cleanly, up_errors
from monky_deployd.domain.error_kinds import classify
from monky_deployd.domain.registry_auth import registry_of_image
from monky_deployd.domain.rendering import (
    IMAGES_FILE,
    METADATA_FILE,
    OVERRIDE_FILE,
    PIN_FILE,
    Release,
    parse_release,
    pin_images,
)
from monky_deployd.domain.report import Fault, Phase, ServiceStatus
from monky_deployd.domain.verify import (
    Container,
    Expected,
    Verdict,
    expected_services,
    judge,
    settled,
)
from monky_deployd.errors import FileError
from monky_deployd.host.files import read_regular, write_private
from monky_deployd.host.releases import Releases

logger = logging.getLogger(__name__)

_LOOK_INTERVAL = 1.0
_MAX_METADATA = 1024 * 1024
_EXTRA_LOOKS = 2


@dataclass(frozen=True)
class RolloutResult:
    """What came of bringing a release up. No faults: it is good."""

    phase: Phase
    faults: tuple[Fault, ...]
    statuses: tuple[ServiceStatus, ...]

    @property
    def good(self) -> bool:
        """Whether every service is as the release wants it."""
        return not self.faults


@dataclass(frozen=True)
class Rollout:
    """Brings releases up. `enter` is told each phase as it begins."""

    compose: ComposeCli
    engine: EngineClient
    releases: Releases
    settle_time: float
    enter: Callable[[Phase], None]
    on_event: OnEvent | None = None

    async def bring_up(
        self, release: Release, expected: Sequence[Expected], image_ids: Mapping[str, str]
    ) -> RolloutResult:
        """Make `release` current, bring it up and look twice whether it is good.

        Raises FileError, ComposeError or EngineError where a step can't be done at all.
        """
        self.enter(Phase.SWITCH)
        baseline = {c.id: c.restarts for c in await self.engine.containers(release.project)}
        self.releases.switch(release.release_id)
        self.enter(Phase.UP)
        ran = await self.compose.up(
            self._current_project(release, [item.service for item in expected]),
            wait_timeout=release.wait_timeout,
            remove_orphans=release.remove_orphans,
            on_event=self.on_event,
        )
        said = await self._said_by_up(release, ran, expected)
        self.enter(Phase.VERIFY)
        verdict = await self._watch(release, expected, baseline, image_ids, give_up=bool(said))
        if verdict.faults or said:
            phase = Phase.UP if said else Phase.VERIFY
            return RolloutResult(phase, _merge(said, verdict.faults), verdict.statuses)
        return RolloutResult(Phase.VERIFY, (), verdict.statuses)

    async def look(
        self, release: Release, expected: Sequence[Expected], image_ids: Mapping[str, str]
    ) -> Verdict:
        """Whether the containers match `release`, by one look and without touching anything."""
        containers = await self.engine.containers(release.project)
        baseline = {container.id: container.restarts for container in containers}
        return judge(expected, baseline, containers, containers, image_ids)

    async def go_back(self, release_id: str) -> RolloutResult:
        """Bring the earlier good release `release_id` up again, from the images that it had."""
        return await self._bring_back(release_id, self._recorded_images(release_id))

    async def repair(self, release_id: str) -> RolloutResult:
        """Bring the good release `release_id` up again, from those of its images that are left."""
        return await self._bring_back(release_id, await self.images_on_record(release_id))

    async def images_on_record(self, release_id: str) -> dict[str, str]:
        """The image ids by reference that the release was good with, less those that are gone."""
        recorded = self._recorded_images(release_id)
        return {ref: found for ref, found in recorded.items() if await self.engine.image_id(found)}

    async def _bring_back(self, release_id: str, recorded: Mapping[str, str]) -> RolloutResult:
        release, files = self._known(release_id)
        staged = Project(release.project, self.releases.path(release_id), files)
        model = await self.compose.model(staged)
        expected = expected_services(model)
        now = {ref: await self.engine.image_id(ref) for ref in recorded}
        write_private(self.releases.path(release_id) / PIN_FILE, pin_images(model, recorded, now))
        pinned = replace(release, compose_files=(*release.compose_files, PIN_FILE))
        return await self.bring_up(pinned, expected, recorded)

    async def stop(self, release_id: str) -> tuple[Fault, ...]:
        """Stop the containers of the current release. Nothing, or why Compose could not."""
        ran = await self.compose.stop(self._current_project(self._known(release_id)[0]))
        if ran.code == 0:
            return ()
        errors = tuple(Fault(error.message) for error in up_errors(ran.events))
        return errors or (_without_an_error("stop", ran),)

    def remember_images(self, release_id: str, image_ids: Mapping[str, str]) -> None:
        """Keep which image ids a good release ran with: a tag may point elsewhere later."""
        content = json.dumps(dict(image_ids), indent=1, sort_keys=True) + "\n"
        write_private(self.releases.path(release_id) / IMAGES_FILE, content.encode())

    def _current_project(self, release: Release, services: Sequence[str] = ()) -> Project:
        """The project as Compose sees it once `release` is current."""
        files = (*release.compose_files, OVERRIDE_FILE)
        return Project(release.project, self.releases.current_link, files, tuple(services))

    def _known(self, release_id: str) -> tuple[Release, tuple[str, ...]]:
        path = self.releases.path(release_id) / METADATA_FILE
        try:
            release = parse_release(read_regular(path, limit=_MAX_METADATA))
        except ValueError as error:
            raise FileError(f"{path}: {error}") from error
        return release, (*release.compose_files, OVERRIDE_FILE)

    def _recorded_images(self, release_id: str) -> dict[str, str]:
        path = self.releases.path(release_id) / IMAGES_FILE
        try:
            document = json.loads(read_regular(path, limit=_MAX_METADATA))
        except (FileError, ValueError) as error:
            logger.warning("the images of release %s are not on record: %s", release_id, error)
            return {}
        return {str(ref): str(image_id) for ref, image_id in dict(document).items()}

    async def _watch(
        self,
        release: Release,
        expected: Sequence[Expected],
        baseline: Mapping[str, int],
        image_ids: Mapping[str, str],
        *,
        give_up: bool,
    ) -> Verdict:
        deadline = time.monotonic() + (0 if give_up else release.wait_timeout)
        first = await self._when_settled(release, expected, deadline)
        window = self.settle_time
        for _ in range(_EXTRA_LOOKS + 1):
            await asyncio.sleep(window)
            second = await self.engine.containers(release.project)
            verdict = judge(expected, baseline, first, second, image_ids)
            if verdict.faults or not verdict.doubtful:
                break
            first, window = second, window * 2
        return verdict

    async def _when_settled(
        self, release: Release, expected: Sequence[Expected], deadline: float
    ) -> tuple[Container, ...]:
        while True:
            containers = await self.engine.containers(release.project)
            if settled(expected, containers) or time.monotonic() >= deadline:
                return containers
            await asyncio.sleep(_LOOK_INTERVAL)

    async def _said_by_up(
        self, release: Release, ran: Ran, expected: Sequence[Expected]
    ) -> tuple[Fault, ...]:
        """Compose's own errors, less those about one-shots that finished with exit code 0."""
        if ran.code == 0:
            return ()
        services = {c.name: c.service for c in await self.engine.containers(release.project)}
        images = {item.service: item.image for item in expected}
        errors = up_errors(ran.events)
        faults = []
        for error in errors:
            if exited_cleanly(error.message):
                continue
            service = services.get(error.container, error.service_hint)
            image = images.get(service, "")
            registry = registry_of_image(image) if image else ""
            faults.append(Fault(error.message, classify(error.message), service, image, registry))
        if ran.timed_out:
            faults.append(Fault("docker compose up did not end in time and was stopped"))
        elif not errors:
            # Without this, what ran before could pass for the new release.
            faults.append(_without_an_error("up", ran))
        return tuple(faults)


def _without_an_error(command: str, ran: Ran) -> Fault:
    """A failure for which Compose named no error: all that it said."""
    said = " | ".join(dict.fromkeys(event.log for event in ran.events if event.log))
    return Fault(
        f"docker compose {command} ended with exit code {ran.code}: {said or 'it said nothing'}"
    )


def _merge(said: Sequence[Fault], seen: Sequence[Fault]) -> tuple[Fault, ...]:
    """Compose's words first; what the engine shows of other services after them."""
    told = [_placed(fault, seen) for fault in said]
    named = {fault.service for fault in told if fault.service}
    return (*told, *(fault for fault in seen if fault.service not in named))


def _placed(fault: Fault, seen: Sequence[Fault]) -> Fault:
    """Words of Compose's that name no service, with that of which the engine shows the same."""
    if fault.service:
        return fault
    for other in seen:
        if fault.message in other.message:
            return replace(other, message=fault.message, kind=fault.kind)
    return fault
