"""The pull phase: every service gets its own try and its own words.

`docker compose pull` stops the others at the first failure, and with `--ignore-pull-failures`
it swallows failures that come without a service's name. So all are pulled once in that form,
and each one that did not end well is pulled again alone for its own words.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from monky_deployd.clients.compose import ComposeCli, OnEvent, Project
from monky_deployd.clients.engine import EngineClient
from monky_deployd.domain.compose_events import (
    ServicePull,
    fold_pull,
    message_of_single_pull,
)
from monky_deployd.domain.error_kinds import fault
from monky_deployd.domain.manifest import PullPolicy
from monky_deployd.domain.report import Fault
from monky_deployd.domain.verify import Expected

logger = logging.getLogger(__name__)

_GOOD = {ServicePull.PULLED, ServicePull.SKIPPED}
_OVERDUE = "deadline exceeded: the pull took longer than docker.pull_timeout allows"


@dataclass(frozen=True)
class Puller:
    """Pulls a project's images. `has_credential` says whether the manifest has one for a host."""

    compose: ComposeCli
    engine: EngineClient
    has_credential: Callable[[str], bool]
    on_event: OnEvent | None = None

    async def pull(
        self, project: Project, expected: Sequence[Expected], policy: PullPolicy
    ) -> tuple[Fault, ...]:
        """Pull by `policy`; the faults, one for each service that has no image now.

        Raises ComposeError where Compose can't be run at all.
        """
        wanted = await self._wanted(expected, policy)
        if not wanted:
            return ()
        ran = await self.compose.pull(
            project, [item.service for item in wanted], keep_going=True, on_event=self.on_event
        )
        result = fold_pull(ran.events, [item.service for item in wanted])
        overdue = ran.timed_out
        faults: list[Fault] = []
        for item in wanted:
            state, message = result.services[item.service]
            if state in _GOOD:
                continue
            if state is not ServicePull.FAILED:
                # Once the time is up, another try for each service would take as long again.
                message = _OVERDUE if overdue else await self._pull_alone(project, item)
                overdue = overdue or message == _OVERDUE
            if message:
                faults.append(
                    fault(
                        item.service,
                        item.image,
                        message,
                        has_credential_for=self.has_credential,
                    )
                )
        return tuple(faults)

    async def image_ids(self, expected: Sequence[Expected]) -> dict[str, str]:
        """The local image id of each image that is expected and there."""
        references = sorted({item.image for item in expected if item.image})
        return {ref: found for ref in references if (found := await self.engine.image_id(ref))}

    async def _wanted(
        self, expected: Sequence[Expected], policy: PullPolicy
    ) -> tuple[Expected, ...]:
        with_image = tuple(item for item in expected if item.image)
        if policy is PullPolicy.NEVER:
            return ()
        if policy is PullPolicy.ALWAYS:
            return with_image
        local = await self.image_ids(with_image)
        return tuple(item for item in with_image if item.image not in local)

    async def _pull_alone(self, project: Project, item: Expected) -> str:
        """Pull one service without the flag. Its own words, "" where it works this time."""
        logger.info("pulling service %s again alone, for its own words", item.service)
        ran = await self.compose.pull(
            project, [item.service], keep_going=False, on_event=self.on_event
        )
        state, message = fold_pull(ran.events, [item.service]).services[item.service]
        if state in _GOOD:
            return ""
        if ran.timed_out:
            return _OVERDUE
        return (
            message
            or message_of_single_pull(ran.events, item.service)
            or f"docker compose pull ended with exit code {ran.code} and said nothing"
        )
