"""A release that is on disk already: brought up again without manifest, grant or OpenBao."""

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from monky_deployd.agent.admission import admit_on_disk
from monky_deployd.agent.rollout import Rollout, RolloutResult, failure_without_error
from monky_deployd.agent.tools import Tools
from monky_deployd.clients.compose import Project, Ran
from monky_deployd.domain.compose_events import up_errors
from monky_deployd.domain.dotenv import parse_dotenv
from monky_deployd.domain.manifest import ENV_FILE
from monky_deployd.domain.rendering import (
    IMAGES_FILE,
    METADATA_FILE,
    OVERRIDE_FILE,
    PIN_FILE,
    Release,
    parse_release,
    pin_images,
)
from monky_deployd.domain.report import Fault
from monky_deployd.domain.secret import Secret
from monky_deployd.domain.verify import Expected, expected_services
from monky_deployd.errors import FileError
from monky_deployd.host.files import read_regular, write_private

logger = logging.getLogger(__name__)

_MAX_RECORD = 1024 * 1024
_MAX_FILE = 16 * 1024 * 1024


@dataclass(frozen=True)
class OnDisk:
    """A release as it lies on disk: what Compose makes of it, and the images it was good with."""

    release: Release
    model: Mapping[str, Any] = field(repr=False)
    expected: tuple[Expected, ...]
    images: Mapping[str, str]


@dataclass(frozen=True)
class Restorer:
    """Brings releases back by their ids. Raises FileError, ComposeError or EngineError where a
    step can't be done at all, and PolicyError where the host no longer allows the release."""

    tools: Tools
    rollout: Rollout

    async def load(self, release_id: str) -> OnDisk:
        """The release as it lies on disk, held against the host's policy of today."""
        release = self._release(release_id)
        self._learn_secrets(release)
        directory = self.tools.releases.path(release_id)
        project = Project(release.project, directory, release.compose_files)
        model = await self.tools.compose.model(project)
        admit_on_disk(release, directory, model, self.tools.config)
        images = self._recorded_images(release_id)
        return OnDisk(release, model, expected_services(model), images)

    async def model_as_run(self, release_id: str) -> dict[str, Any]:
        """What Compose makes of the release with the agent's own file beside it, as it was
        brought up. It holds secrets."""
        self._learn_secrets(self._release(release_id))
        return await self.tools.compose.model(self._project(release_id))

    async def go_back(self, release_id: str) -> RolloutResult:
        """Bring the earlier good release `release_id` up again, from the images that it had."""
        return await self._bring_back(await self.load(release_id))

    async def repair(self, known: OnDisk, *, anew: Collection[str] = ()) -> RolloutResult:
        """Bring the good release up again, from those of its images that are left.

        The containers of the services in `anew` are made anew, also where they look right.
        """
        images = await self._those_left(known.images)
        return await self._bring_back(replace(known, images=images), anew)

    async def _bring_back(self, known: OnDisk, anew: Collection[str] = ()) -> RolloutResult:
        """Bring a release up from the images on record, wherever their tags point to by now."""
        release = known.release
        now = {ref: await self.tools.engine.image_id(ref) for ref in known.images}
        pin = self.tools.releases.path(release.release_id) / PIN_FILE
        write_private(pin, pin_images(known.model, known.images, now))
        pinned = replace(release, compose_files=(*release.compose_files, PIN_FILE))
        if anew:
            await self.tools.compose.recreate(self.rollout.current_project(pinned), anew)
        return await self.rollout.bring_up(pinned, known.expected, known.images)

    async def images_on_record(self, release_id: str) -> dict[str, str]:
        """The image ids by reference that the release was good with, less those that are gone."""
        return await self._those_left(self._recorded_images(release_id))

    async def stop(self, release_id: str) -> tuple[Fault, ...]:
        """Stop the containers of a release; they are kept. Nothing, or why Compose could not."""
        return _faults("stop", await self.tools.compose.stop(self._project(release_id)))

    async def take_down(self, release_id: str) -> tuple[Fault, ...]:
        """Remove the containers and networks of a release's project, and no volume of it.

        Nothing, or why Compose could not.
        """
        return _faults("down", await self.tools.compose.down(self._project(release_id)))

    def is_of_another_project(self, release_id: str, other_id: str) -> bool:
        """Whether two releases are of different projects: then neither replaces the other's
        containers."""
        return self._release(release_id).project != self._release(other_id).project

    def remember_images(self, release_id: str, image_ids: Mapping[str, str]) -> None:
        """Keep which image ids a good release ran with: a tag may point elsewhere later."""
        content = json.dumps(dict(image_ids), indent=1, sort_keys=True) + "\n"
        write_private(self.tools.releases.path(release_id) / IMAGES_FILE, content.encode())

    async def _those_left(self, images: Mapping[str, str]) -> dict[str, str]:
        engine = self.tools.engine
        return {ref: found for ref, found in images.items() if await engine.image_id(found)}

    def _project(self, release_id: str) -> Project:
        release = self._release(release_id)
        files = (*release.compose_files, OVERRIDE_FILE)
        return Project(release.project, self.tools.releases.path(release_id), files)

    def _release(self, release_id: str) -> Release:
        path = self.tools.releases.path(release_id) / METADATA_FILE
        try:
            return parse_release(read_regular(path, limit=_MAX_RECORD))
        except ValueError as error:
            raise FileError(f"{path}: {error}") from error

    def _learn_secrets(self, release: Release) -> None:
        """Let the scrubber know the values that this release holds: they may be older ones."""
        directory = self.tools.releases.path(release.release_id)
        env = parse_dotenv(read_regular(directory / ENV_FILE, limit=_MAX_FILE))
        secrets = [env[name] for name in release.secret_env if name in env]
        for name in release.secret_files:
            content = read_regular(directory / name, limit=_MAX_FILE)
            secrets.append(Secret(content.decode("utf-8", "replace")))
        self.tools.scrubber.add(secrets)

    def _recorded_images(self, release_id: str) -> dict[str, str]:
        path = self.tools.releases.path(release_id) / IMAGES_FILE
        try:
            document = json.loads(read_regular(path, limit=_MAX_RECORD))
        except (FileError, ValueError) as error:
            logger.warning("the images of release %s are not on record: %s", release_id, error)
            return {}
        return {str(ref): str(image_id) for ref, image_id in dict(document).items()}


def _faults(command: str, ran: Ran) -> tuple[Fault, ...]:
    if ran.code == 0:
        return ()
    errors = tuple(Fault(error.message) for error in up_errors(ran.events))
    return errors or (failure_without_error(command, ran),)
