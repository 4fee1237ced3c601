"""The phases that touch containers: switch, up, verify."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from monky_deployd.agent.tools import Tools
from monky_deployd.clients.compose import ComposeCli, OnEvent, Project, Ran
from monky_deployd.clients.engine import EngineClient
from monky_deployd.domain.compose_events import exited_cleanly, is_about_what_came_up, up_errors
from monky_deployd.domain.error_kinds import classify, engine_is_gone
from monky_deployd.domain.registry_auth import registry_of_image
from monky_deployd.domain.rendering import OVERRIDE_FILE, Release
from monky_deployd.domain.report import Fault, Phase, ServiceStatus
from monky_deployd.domain.verify import Container, Expected, Verdict, judge, settled
from monky_deployd.errors import EngineError
from monky_deployd.host.releases import Releases

_LOOK_INTERVAL = 1.0
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
            self.current_project(release, [item.service for item in expected]),
            wait_timeout=release.wait_timeout,
            remove_orphans=release.remove_orphans,
            on_event=self.on_event,
        )
        said = await self._said_by_up(release, ran, expected)
        self.enter(Phase.VERIFY)
        verdict = await self._watch(release, expected, baseline, image_ids, give_up=bool(said))
        if verdict.faults or said:
            came_up = all(is_about_what_came_up(fault.message) for fault in said)
            phase = Phase.VERIFY if came_up else Phase.UP
            return RolloutResult(phase, _merge(said, verdict.faults), verdict.statuses)
        return RolloutResult(Phase.VERIFY, (), verdict.statuses)

    async def look(
        self, release: Release, expected: Sequence[Expected], image_ids: Mapping[str, str]
    ) -> Verdict:
        """Whether the containers match `release`, by one look and without touching anything."""
        containers = await self.engine.containers(release.project)
        baseline = {container.id: container.restarts for container in containers}
        return judge(expected, baseline, containers, containers, image_ids)

    def current_project(self, release: Release, services: Sequence[str] = ()) -> Project:
        """The project as Compose sees it once `release` is current."""
        files = (*release.compose_files, OVERRIDE_FILE)
        return Project(release.project, self.releases.current_link, files, tuple(services))

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
        for error in errors:
            if engine_is_gone(error.message):
                # What became of the containers says nothing about the release then.
                raise EngineError(f"the Docker Engine went away during up: {error.message}")
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
            faults.append(failure_without_error("up", ran))
        return tuple(faults)


def rollout_of(tools: Tools, enter: Callable[[Phase], None]) -> Rollout:
    """A rollout with these tools, which tells `enter` of its phases."""
    return Rollout(
        tools.compose,
        tools.engine,
        tools.releases,
        tools.config.docker.settle_time,
        enter,
        tools.on_event,
    )


def failure_without_error(command: str, ran: Ran) -> Fault:
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
