"""One pass: from a manifest to containers that match it, phase by phase, to one outcome.

`once` and the daemon run this same pass. Nothing that runs is touched before the new release
is whole on disk, accepted by Compose, and pulled.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from monky_deployd.agent.admission import admit_model, admit_sources
from monky_deployd.agent.journey import Journey, OnPhase, Passed
from monky_deployd.agent.pull import Puller
from monky_deployd.agent.recovery import keep, recover
from monky_deployd.agent.resolve import resolve
from monky_deployd.agent.rollout import Rollout
from monky_deployd.clients.compose import ComposeCli, OnEvent, Project
from monky_deployd.clients.engine import EngineClient
from monky_deployd.clients.openbao import OpenBaoClient
from monky_deployd.domain.config import Config
from monky_deployd.domain.dotenv import check_readback, readback_probe
from monky_deployd.domain.manifest import ComposeFile, Manifest, PullPolicy, parse_manifest
from monky_deployd.domain.plan import History, Step, check_generation, next_step
from monky_deployd.domain.registry_auth import docker_key
from monky_deployd.domain.rendering import (
    OVERRIDE_FILE,
    Rendering,
    files_override,
    host_compose_files,
    render,
)
from monky_deployd.domain.report import Fault, Phase
from monky_deployd.domain.secret import Scrubber, Secret
from monky_deployd.domain.verify import Expected, Verdict, expected_services
from monky_deployd.errors import ManifestError, MonkyError, Reason
from monky_deployd.host.docker_config import write_docker_config
from monky_deployd.host.files import read_regular, write_private
from monky_deployd.host.journal import fields
from monky_deployd.host.releases import Releases

logger = logging.getLogger(__name__)

_MAX_COMPOSE_FILE = 4 * 1024 * 1024


@dataclass(frozen=True)
class Tools:
    """What a pass works with; `agent.wiring` makes it. `key` keys every hash of secrets."""

    config: Config
    releases: Releases
    compose: ComposeCli
    engine: EngineClient
    scrubber: Scrubber
    open_openbao: Callable[[], OpenBaoClient]
    key: bytes = field(repr=False)
    on_event: OnEvent | None = None
    on_phase: OnPhase | None = None


class Reconciler:
    """Makes one pass at a time."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

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
        journey = Journey(tools.releases, digest, tools.scrubber.scrub, tools.on_phase, stopped)
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
            return journey.failed(_internal(error))

    async def _walk(
        self, journey: Journey, body: bytes, grant: Secret, history: History, *, forced: bool
    ) -> Passed:
        manifest = self._accept(journey, body, history)
        rendering = await self._render(journey, manifest, grant)
        expected = await self._admit(journey, rendering)
        release_id = rendering.release.release_id
        look = await self._look(journey, rendering, expected, history)
        step = next_step(release_id, history, containers_good=not look.faults, forced=forced)
        if step is Step.NOTHING:
            return journey.up_to_date(look.statuses)
        if step is Step.HOLD:
            return journey.held(look.statuses)
        if step is Step.REPAIR:
            return await self._repair(journey, manifest, rendering, expected)
        return await self._deploy(journey, manifest, rendering, expected, history.good_release)

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
        tools = self._tools
        journey.enter(Phase.RESOLVE)
        async with tools.open_openbao() as openbao:
            resolved = await resolve(manifest, openbao, grant)
        tools.scrubber.add(item.value for item in resolved if item.entry.path is not None)
        journey.enter(Phase.RENDER)
        rendering = render(manifest, resolved, self._host_compose(manifest), tools.key)
        tools.scrubber.add(rendering.credentials)
        journey.release_id = rendering.release.release_id
        write_docker_config(tools.compose.docker_config, rendering.docker_config)
        tools.releases.stage(rendering.release.release_id, rendering.files)
        return rendering

    def _host_compose(self, manifest: Manifest) -> tuple[ComposeFile, ...]:
        if manifest.compose is not None:
            return ()
        paths = self._tools.config.docker.compose_files
        return host_compose_files((path, _read_compose_file(path)) for path in paths)

    async def _admit(self, journey: Journey, rendering: Rendering) -> tuple[Expected, ...]:
        """Let the host's policy and Compose judge the release, before what runs is touched."""
        journey.enter(Phase.ADMIT)
        sources = admit_sources(rendering, self._tools.config)
        compose, release = self._tools.compose, rendering.release
        directory = self._tools.releases.path(release.release_id)
        project = Project(release.project, directory, release.compose_files)
        if rendering.env:
            probe = readback_probe(rendering.env)
            check_readback(await compose.model(project, stdin=probe), rendering.env)
        model = await compose.model(project)
        admit_model(model, directory, sources, self._tools.config)
        override = files_override(model, str(directory), rendering, self._tools.key)
        write_private(directory / OVERRIDE_FILE, override)
        return expected_services(model)

    async def _look(
        self,
        journey: Journey,
        rendering: Rendering,
        expected: tuple[Expected, ...],
        history: History,
    ) -> Verdict:
        rollout, release = self._rollout(journey), rendering.release
        image_ids = await self._puller(rendering).image_ids(expected)
        if release.release_id == history.good_release:
            # A tag may have moved since: the release wants what it was good with.
            image_ids |= await rollout.images_on_record(release.release_id)
        return await rollout.look(release, expected, image_ids)

    async def _deploy(
        self,
        journey: Journey,
        manifest: Manifest,
        rendering: Rendering,
        expected: tuple[Expected, ...],
        good_release: str | None,
    ) -> Passed:
        """Pull a new release, and bring it up."""
        deploy, rollout = manifest.deploy, self._rollout(journey)
        if faults := await self._pull(journey, rendering, expected, deploy.pull):
            return journey.pull_failed(faults)
        image_ids = await self._puller(rendering).image_ids(expected)
        result = await rollout.bring_up(rendering.release, expected, image_ids)
        if not result.good:
            return await recover(
                journey,
                rollout,
                result,
                on_failure=deploy.on_failure,
                good_release=good_release,
            )
        rollout.remember_images(rendering.release.release_id, image_ids)
        return journey.converged(result.statuses)

    async def _repair(
        self,
        journey: Journey,
        manifest: Manifest,
        rendering: Rendering,
        expected: tuple[Expected, ...],
    ) -> Passed:
        """Bring the good release up again as it was; only an image that is gone is pulled."""
        rollout, release_id = self._rollout(journey), rendering.release.release_id
        never = manifest.deploy.pull is PullPolicy.NEVER
        policy = PullPolicy.NEVER if never else PullPolicy.MISSING
        if faults := await self._pull(journey, rendering, expected, policy):
            return journey.pull_failed(faults)
        result = await rollout.repair(release_id)
        if not result.good:
            return keep(journey, result, "it is left as it is, and mended when it can be")
        image_ids = await self._puller(rendering).image_ids(expected)
        rollout.remember_images(release_id, image_ids | await rollout.images_on_record(release_id))
        return journey.converged(result.statuses)

    async def _pull(
        self,
        journey: Journey,
        rendering: Rendering,
        expected: tuple[Expected, ...],
        policy: PullPolicy,
    ) -> tuple[Fault, ...]:
        journey.enter(Phase.PULL)
        release = rendering.release
        project = Project(
            release.project,
            self._tools.releases.path(release.release_id),
            release.compose_files,
            tuple(item.service for item in expected),
        )
        return await self._puller(rendering).pull(project, expected, policy)

    def _puller(self, rendering: Rendering) -> Puller:
        return Puller(
            self._tools.compose,
            self._tools.engine,
            lambda host: docker_key(host) in rendering.credential_hosts,
            self._tools.on_event,
        )

    def _rollout(self, journey: Journey) -> Rollout:
        tools = self._tools
        return Rollout(
            tools.compose,
            tools.engine,
            tools.releases,
            tools.config.docker.settle_time,
            journey.enter,
            tools.on_event,
        )


def _internal(error: Exception) -> MonkyError:
    return MonkyError(
        f"a fault of the agent's own: {type(error).__name__}: {error}",
        remedy="please report it, with the journal",
    )


def _log_interrupted(journey: Journey) -> None:
    logger.warning(
        "the pass was interrupted in phase %s; the next start converges",
        journey.phase,
        extra=_fields(journey, Reason.INTERRUPTED),
    )


def _fields(journey: Journey, reason: Reason) -> dict[str, dict[str, str]]:
    return fields(generation=journey.generation or None, phase=journey.phase, reason=reason)


def _read_compose_file(path: str) -> str:
    content = read_regular(Path(path), limit=_MAX_COMPOSE_FILE)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ManifestError(f"the host's compose file {path} is not UTF-8") from None
