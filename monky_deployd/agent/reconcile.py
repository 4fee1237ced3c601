"""One pass: from a manifest to containers that match it, phase by phase, to one outcome.

`once` and the daemon run this same pass. Nothing that runs is touched before the new release
is whole on disk, accepted by Compose, and pulled.
"""

import asyncio
import hashlib
import logging
from dataclasses import dataclass, field

from monky_deployd.agent.housekeeping import remember_pulled
from monky_deployd.agent.journey import Journey, Passed, internal
from monky_deployd.agent.preparation import Preparer
from monky_deployd.agent.pull import Puller
from monky_deployd.agent.recovery import former_project, keep, leave_project, recover
from monky_deployd.agent.restore import Restorer
from monky_deployd.agent.rollout import Rollout, rollout_of
from monky_deployd.agent.tools import Tools
from monky_deployd.clients.compose import Project
from monky_deployd.domain.manifest import Manifest, PullPolicy, parse_manifest
from monky_deployd.domain.plan import History, Step, check_generation, next_step
from monky_deployd.domain.registry_auth import docker_key
from monky_deployd.domain.rendering import OVERRIDE_FILE, Logins, Rendering, fingerprint
from monky_deployd.domain.report import ErrorKind, Fault, Phase
from monky_deployd.domain.secret import Secret
from monky_deployd.domain.verify import Expected, Verdict
from monky_deployd.errors import MonkyError, Reason
from monky_deployd.host.docker_config import write_docker_config
from monky_deployd.host.files import write_private
from monky_deployd.host.journal import fields

logger = logging.getLogger(__name__)

_SECRET_IS_GONE = {
    Reason.SECRET_MISSING,
    Reason.SECRET_DELETED,
    Reason.SECRET_DESTROYED,
    Reason.OPENBAO_FORBIDDEN,
    Reason.ENTRY_REFUSED,
}


class Reconciler:
    """Makes one pass at a time."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._preparer = Preparer(tools)
        self._secrets_seen: bytes | None = None

    async def secrets_changed(self, body: bytes, grant: Secret) -> bool:
        """Whether OpenBao holds other values for the manifest in `body` than the last pass read.

        Also where it holds none any more: a pass tells which. Raises MonkyError where that can't
        be found out now.
        """
        manifest = parse_manifest(body, environment=self._tools.config.environment)
        try:
            resolved = await self._preparer.resolve(manifest.entries, grant)
        except MonkyError as error:
            if error.reason in _SECRET_IS_GONE:
                return True
            raise
        return fingerprint(resolved, self._tools.key) != self._secrets_seen

    async def run(
        self, body: bytes, grant: Secret, history: History, *, forced: bool = False
    ) -> Passed:
        """One pass over the manifest in `body`. Every failure becomes an outcome, not an error.

        `forced` tries a held release again.
        """
        digest = hashlib.sha256(body).hexdigest()
        # A held release is current only where it was stopped: a rollback makes another current.
        stopped = history.held_release is not None and history.held_release == history.current
        tools = self._tools
        journey = Journey(tools.releases, digest, tools.scrubber, tools.on_phase, stopped)
        tools.scrubber.add([grant])
        try:
            return await self._walk(journey, body, grant, history, forced=forced)
        except MonkyError as error:
            return journey.failed(error)
        except asyncio.CancelledError:
            _log_interrupted(journey)
            raise
        except Exception as error:
            # A fault of the agent's own ends this pass, not the agent: it is reported like any
            # other, and tried again with the same pauses. The journal has where it came from.
            logger.exception("a fault of the agent's own", extra=_fields(journey, Reason.INTERNAL))
            return journey.failed(internal(error))

    async def _walk(
        self, journey: Journey, body: bytes, grant: Secret, history: History, *, forced: bool
    ) -> Passed:
        manifest = self._accept(journey, body, history)
        rendering = await self._render(journey, manifest, grant)
        expected = await self._admit(journey, rendering)
        work = _Work(journey, manifest, grant, rendering, expected)
        look = await self._look(work, history)
        release_id = rendering.release.release_id
        step = next_step(release_id, history, containers_good=not look.faults, forced=forced)
        if step is Step.NOTHING:
            return journey.up_to_date(look.statuses)
        if step is Step.HOLD:
            return journey.held(look.statuses)
        if step is Step.REPAIR:
            return await self._repair(work)
        return await self._deploy(work, history.good_release)

    def _accept(self, journey: Journey, body: bytes, history: History) -> Manifest:
        """Parse the manifest and refuse an older generation."""
        config = self._tools.config
        manifest = parse_manifest(body, environment=config.environment)
        journey.generation = manifest.generation
        journey.keep_releases = manifest.deploy.keep_releases
        journey.notes = check_generation(
            manifest.generation,
            journey.digest,
            history,
            allow_older=config.allow_older_generation,
        )
        return manifest

    async def _render(self, journey: Journey, manifest: Manifest, grant: Secret) -> Rendering:
        """Resolve and render, and put release and credentials on disk."""
        journey.enter(Phase.RESOLVE)
        resolved = await self._preparer.resolve(manifest.entries, grant)
        self._secrets_seen = fingerprint(resolved, self._tools.key)
        journey.enter(Phase.RENDER)
        rendering = self._preparer.render(manifest, resolved)
        journey.release_id = rendering.release.release_id
        self._write_logins(rendering.logins)
        self._tools.releases.stage(rendering.release.release_id, rendering.files)
        return rendering

    def _write_logins(self, logins: Logins) -> bool:
        """Put the registry credentials where the docker CLI looks. Whether that changed them."""
        return write_docker_config(self._tools.compose.docker_config, logins.docker_config)

    async def _admit(self, journey: Journey, rendering: Rendering) -> tuple[Expected, ...]:
        """Let the release be judged, before what runs is touched."""
        journey.enter(Phase.ADMIT)
        directory = self._tools.releases.path(rendering.release.release_id)
        admitted = await self._preparer.admit(rendering, directory)
        write_private(directory / OVERRIDE_FILE, admitted.override)
        return admitted.expected

    async def _look(self, work: "_Work", history: History) -> Verdict:
        release = work.rendering.release
        image_ids = await self._puller(work).image_ids(work.expected)
        if release.release_id == history.good_release:
            # A tag may have moved since: the release wants what it was good with.
            restorer = self._restorer(work.journey)
            image_ids |= await restorer.images_on_record(release.release_id)
        return await self._rollout(work.journey).look(release, work.expected, image_ids)

    async def _deploy(self, work: "_Work", good_release: str | None) -> Passed:
        """Pull a new release, and bring it up."""
        journey, deploy = work.journey, work.manifest.deploy
        if faults := await self._pull(work, deploy.pull):
            return journey.pull_failed(faults)
        release, restorer = work.rendering.release, self._restorer(journey)
        image_ids = await self._puller(work).image_ids(work.expected)
        if deploy.pull is not PullPolicy.NEVER:
            remember_pulled(self._tools.releases, release.release_id, image_ids)
        former = former_project(restorer, release.release_id, good_release)
        if former:
            # Its containers may hold the ports that the new ones need.
            await restorer.stop(former)
        result = await restorer.rollout.bring_up(release, work.expected, image_ids)
        if not result.good:
            return await recover(
                journey,
                restorer,
                result,
                on_failure=deploy.on_failure,
                good_release=good_release,
            )
        restorer.remember_images(release.release_id, image_ids)
        if former:
            await leave_project(journey, restorer, former)
        return journey.converged(result.statuses)

    async def _repair(self, work: "_Work") -> Passed:
        """Bring the good release up again as it was; only an image that is gone is pulled."""
        journey, release_id = work.journey, work.rendering.release.release_id
        never = work.manifest.deploy.pull is PullPolicy.NEVER
        if faults := await self._pull(work, PullPolicy.NEVER if never else PullPolicy.MISSING):
            return journey.pull_failed(faults)
        restorer = self._restorer(journey)
        result = await restorer.repair(await restorer.load(release_id))
        if not result.good:
            return keep(journey, result, "it is left as it is, and mended when it can be")
        image_ids = await self._puller(work).image_ids(work.expected)
        left = await restorer.images_on_record(release_id)
        restorer.remember_images(release_id, image_ids | left)
        return journey.converged(result.statuses)

    async def _pull(self, work: "_Work", policy: PullPolicy) -> tuple[Fault, ...]:
        """Pull, and once more at once where that failed for a credential that is new by now."""
        work.journey.enter(Phase.PULL)
        release = work.rendering.release
        project = Project(
            release.project,
            self._tools.releases.path(release.release_id),
            release.compose_files,
            tuple(item.service for item in work.expected),
        )
        puller = self._puller(work)
        faults = await puller.pull(project, work.expected, policy)
        refused = any(fault.kind is ErrorKind.AUTH for fault in faults)
        if refused and await self._logins_changed(work):
            # What was pulled already is asked for once more: it may have moved meanwhile.
            faults = await puller.pull(project, work.expected, policy)
        return faults

    async def _logins_changed(self, work: "_Work") -> bool:
        """Read the registry credentials again, and use them from now on. Whether they are new."""
        try:
            logins = await self._preparer.logins(work.manifest, work.grant)
            changed = self._write_logins(logins)
        except MonkyError as error:
            logger.warning("the registry credentials could not be read again: %s", error)
            return False
        if changed:
            logger.info("the registry credentials have changed; the pull is tried again")
        return changed

    def _puller(self, work: "_Work") -> Puller:
        return Puller(
            self._tools.compose,
            self._tools.engine,
            lambda host: docker_key(host) in work.rendering.logins.hosts,
            self._tools.on_event,
        )

    def _restorer(self, journey: Journey) -> Restorer:
        return Restorer(self._tools, self._rollout(journey))

    def _rollout(self, journey: Journey) -> Rollout:
        return rollout_of(self._tools, journey.enter)


@dataclass(frozen=True)
class _Work:
    """What a pass has in hand once the release is rendered and admitted."""

    journey: Journey
    manifest: Manifest
    grant: Secret = field(repr=False)
    rendering: Rendering
    expected: tuple[Expected, ...]


def _log_interrupted(journey: Journey) -> None:
    logger.warning(
        "the pass was interrupted in phase %s; the next start converges",
        journey.phase,
        extra=_fields(journey, Reason.INTERRUPTED),
    )


def _fields(journey: Journey, reason: Reason) -> dict[str, dict[str, str]]:
    return fields(generation=journey.generation or None, phase=journey.phase, reason=reason)
