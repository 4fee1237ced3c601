"""What a pass would do now: everything up to the first deed, in a directory of its own.

It takes no lock, so it works beside a running agent. Nothing that runs is touched, nor what the
agent remembers, nor the registry's credentials on disk.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monky_deployd.agent.journey import Journey
from monky_deployd.agent.preparation import Preparer
from monky_deployd.agent.restore import Restorer
from monky_deployd.agent.rollout import rollout_of
from monky_deployd.agent.wiring import Outside
from monky_deployd.clients.compose import Project
from monky_deployd.domain.changes import ResolvedModel, ServiceChange, pulls, service_changes
from monky_deployd.domain.manifest import Manifest, PullPolicy, parse_manifest
from monky_deployd.domain.plan import History, Step, check_generation, next_step
from monky_deployd.domain.rendering import OVERRIDE_FILE, Release
from monky_deployd.domain.report import Outcome, Phase
from monky_deployd.domain.secret import Secret
from monky_deployd.domain.verify import Expected, Verdict
from monky_deployd.errors import MonkyError
from monky_deployd.host.files import write_private
from monky_deployd.host.store import AgentState, read_state

_SENTENCES = {
    Step.NOTHING: "generation {generation} runs and is good: a pass would change nothing",
    Step.REPAIR: "generation {generation} is not as it should be: a pass would bring it up again",
    Step.DEPLOY: "a pass would deploy generation {generation}",
    Step.HOLD: "generation {generation} was found bad before: the daemon would not try it again, "
    "`once` would",
}


@dataclass(frozen=True)
class Preview:
    """What a pass would do. `problems` are why what runs is not as it should be."""

    environment: str
    project: str
    generation: int
    release_id: str
    step: Step
    changes: tuple[ServiceChange, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The step in words."""
        return _SENTENCES[self.step].format(generation=self.generation)

    def as_json(self) -> dict[str, Any]:
        """The preview for `--json`."""
        return {
            "environment": self.environment,
            "project": self.project,
            "generation": self.generation,
            "release": self.release_id,
            "step": self.step.value,
            "message": self.sentence,
            "services": [change.as_json() for change in self.changes],
            "problems": list(self.problems),
            "notes": list(self.notes),
        }


async def preview(outside: Outside) -> Preview | Outcome:
    """What a pass would do now; the outcome that it would have where it would fail before a deed.

    Raises GrantError or TenancyError where there is no manifest to work on.
    """
    token = outside.grants.current().token
    answer = await outside.tenancy.fetch_manifest(token, etag=None, wait=0)
    tools = outside.tools
    digest = hashlib.sha256(answer.body).hexdigest()
    journey = Journey(tools.releases, digest, tools.scrubber)
    try:
        return await _Previewer(outside, journey).preview(answer.body, token)
    except MonkyError as error:
        return journey.failed(error).outcome


@dataclass(frozen=True)
class _Previewer:
    outside: Outside
    journey: Journey

    async def preview(self, body: bytes, token: Secret) -> Preview:
        tools, journey = self.outside.tools, self.journey
        manifest = parse_manifest(body, environment=tools.config.environment)
        journey.generation = manifest.generation
        history = _history(Path(tools.config.state_dir), tools.releases.current())
        notes = check_generation(
            manifest.generation,
            journey.digest,
            history,
            allow_older=tools.config.allow_older_generation,
        )
        preparer = Preparer(tools)
        journey.enter(Phase.RESOLVE)
        resolved = await preparer.resolve(manifest.entries, token)
        journey.enter(Phase.RENDER)
        rendering = preparer.render(manifest, resolved)
        release = rendering.release
        with tools.releases.scratch(rendering.files) as directory:
            journey.enter(Phase.ADMIT)
            admitted = await preparer.admit(rendering, directory)
            write_private(directory / OVERRIDE_FILE, admitted.override)
            files = (*release.compose_files, OVERRIDE_FILE)
            model = await tools.compose.model(Project(release.project, directory, files))
        after = ResolvedModel(model, str(directory))
        return await self._compare(manifest, release, admitted.expected, after, history, notes)

    async def _compare(
        self,
        manifest: Manifest,
        release: Release,
        expected: Sequence[Expected],
        after: ResolvedModel,
        history: History,
        notes: tuple[str, ...],
    ) -> Preview:
        tools = self.outside.tools
        self.journey.enter(Phase.VERIFY)
        rollout = rollout_of(tools, self.journey.enter)
        restorer = Restorer(tools, rollout)
        local = await self._local_images(expected)
        good = release.release_id == history.good_release
        # A tag may have moved since: the release wants what it was good with.
        on_record = await restorer.images_on_record(release.release_id) if good else {}
        verdict = await rollout.look(release, expected, {**local, **on_record})
        step = next_step(
            release.release_id, history, containers_good=not verdict.faults, forced=False
        )
        before, gap = await self._before(restorer, release.release_id, history, after)
        containers = await tools.engine.containers(release.project)
        changes = service_changes(before, after, containers, remove_orphans=release.remove_orphans)
        return Preview(
            environment=tools.config.environment,
            project=release.project,
            generation=manifest.generation,
            release_id=release.release_id,
            step=step,
            changes=_with_pulls(changes, step, manifest.deploy.pull, local),
            problems=_problems(verdict) if step is Step.REPAIR else (),
            notes=(*notes, *gap),
        )

    async def _local_images(self, expected: Sequence[Expected]) -> dict[str, str]:
        engine = self.outside.tools.engine
        wanted = {item.image for item in expected if item.image}
        return {ref: found for ref in sorted(wanted) if (found := await engine.image_id(ref))}

    async def _before(
        self, restorer: Restorer, release_id: str, history: History, after: ResolvedModel
    ) -> tuple[ResolvedModel | None, tuple[str, ...]]:
        """The current release, and a note where there is one that can't be read."""
        current = history.current
        if current is None or current == release_id:
            return (after if current else None), ()
        try:
            model = await restorer.model_as_run(current)
        except MonkyError as error:
            return None, (self.journey.scrub(f"the current release can't be read: {error}"),)
        return ResolvedModel(model, str(self.outside.tools.releases.path(current))), ()


def _history(state_dir: Path, current: str | None) -> History:
    database = state_dir / "state.db"
    state = read_state(database) if database.exists() else AgentState()
    return History(
        applied_generation=state.applied_generation,
        applied_digest=state.applied_digest,
        good_release=state.good_release,
        current=current,
        held_release=state.held_release,
    )


def _with_pulls(
    changes: tuple[ServiceChange, ...], step: Step, policy: PullPolicy, local: Mapping[str, str]
) -> tuple[ServiceChange, ...]:
    """A repair pulls what is missing only; where nothing is done nothing is pulled."""
    never = policy is PullPolicy.NEVER or step not in (Step.DEPLOY, Step.REPAIR)
    always = policy is PullPolicy.ALWAYS and step is Step.DEPLOY
    return pulls(changes, local, always=always, never=never)


def _problems(verdict: Verdict) -> tuple[str, ...]:
    return tuple(f"{fault.service}: {fault.message}" for fault in verdict.faults)
