"""The docker CLI's Compose plugin: one method for each command that the agent gives.

Each child gets an environment built from scratch, with an explicit DOCKER_CONFIG. Output comes
back as events (`domain.compose_events`), in the form that this Compose's version has.
"""

import json
import logging
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from monky_deployd.clients.process import Finished, run_child
from monky_deployd.domain.compose_events import (
    ComposeEvent,
    missing_plugin,
    parse_json_line,
    parse_plain_line,
)
from monky_deployd.domain.config import DockerCfg
from monky_deployd.domain.manifest import ENV_FILE
from monky_deployd.domain.secret import Scrubber
from monky_deployd.errors import ComposeError, Reason

logger = logging.getLogger(__name__)

OLDEST_TESTED = (2, 26, 1)
_JSON_SINCE = (2, 29, 0)
_UP_MARGIN = 60.0
_EVENT_TEXTS = ("id", "parent", "text", "status", "error", "log")
# Compose 2.26 says "loading", 2.40 "parsing".
_CONFIG_DROPPED = re.compile(r"WARNING: Error (parsing|loading) config file")

OnEvent = Callable[[ComposeEvent], None]


@dataclass(frozen=True)
class Project:
    """What a Compose command is about: a name, a directory, and files relative to it.

    `services` are the names known of the model; the plain output form can't be read without.
    """

    name: str
    directory: Path
    files: tuple[str, ...]
    services: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ran:
    """How a command went: exit code, events in order, and whether its time was up."""

    code: int
    events: tuple[ComposeEvent, ...]
    timed_out: bool = False


class ComposeCli:
    """Runs `docker compose`. Every text that it gives back is scrubbed of known secrets."""

    def __init__(self, cfg: DockerCfg, state_dir: Path, scrubber: Scrubber) -> None:
        self._cfg = cfg
        self._scrubber = scrubber
        self._cwd = str(state_dir)
        self._version: tuple[int, ...] | None = None
        self.docker_config = state_dir / "docker"
        self.env = {
            "PATH": cfg.path,
            "HOME": str(state_dir),
            "DOCKER_CONFIG": str(self.docker_config),
            "DOCKER_HOST": f"unix://{cfg.socket}",
            # The policy refuses remote sources by their names; this is the second lock.
            "COMPOSE_EXPERIMENTAL_GIT_REMOTE": "false",
            "COMPOSE_EXPERIMENTAL_OCI_REMOTE": "false",
        }

    async def version(self) -> tuple[int, ...]:
        """Compose's version, asked once. Raises ComposeError where there is no Compose."""
        if self._version is None:
            self._version = await self._ask_version()
            if self._version < OLDEST_TESTED:
                logger.warning(
                    "Compose %s is older than %s, the oldest that this agent is tested with",
                    _dotted(self._version),
                    _dotted(OLDEST_TESTED),
                )
        return self._version

    async def model(self, project: Project, *, stdin: str | None = None) -> dict[str, Any]:
        """The resolved model (`config --format json`). It holds secrets: keep it in memory.

        With `stdin`, that text is the one compose file. Raises ComposeError (COMPOSE_INVALID)
        with Compose's own words.
        """
        args = ["config", "--format", "json"]
        finished, ran = await self._run(
            project,
            args,
            time_limit=self._cfg.config_timeout,
            stdin=stdin,
            # Compose takes values apart to check them, and quotes what it stumbles over.
            scrub=self._scrubber.scrub_fragments,
        )
        if ran.timed_out:
            raise ComposeError("docker compose config took too long", reason=Reason.COMPOSE_INVALID)
        if ran.code != 0:
            raise ComposeError(
                f"Compose refuses the release's compose files: {_own_words(ran.events)}",
                reason=Reason.COMPOSE_INVALID,
            )
        try:
            model = json.loads(finished.stdout)
        except ValueError:
            raise ComposeError("docker compose config printed no JSON") from None
        return dict(model)

    async def pull(
        self,
        project: Project,
        services: Collection[str],
        *,
        keep_going: bool,
        on_event: OnEvent | None = None,
    ) -> Ran:
        """Pull the images of `services`; with `keep_going` a failure does not stop the others."""
        args = ["pull", *(["--ignore-pull-failures"] if keep_going else []), *sorted(services)]
        _, ran = await self._run(
            project, args, time_limit=self._cfg.pull_timeout, on_event=on_event
        )
        return ran

    async def up(
        self,
        project: Project,
        *,
        wait_timeout: int,
        remove_orphans: bool,
        on_event: OnEvent | None = None,
    ) -> Ran:
        """Bring the project up from local images and wait, at most `wait_timeout` seconds."""
        args = ["up", "--detach", "--no-build", "--pull", "never"]
        args += ["--wait", "--wait-timeout", str(wait_timeout)]
        args += ["--remove-orphans"] if remove_orphans else []
        _, ran = await self._run(
            project, args, time_limit=wait_timeout + _UP_MARGIN, on_event=on_event
        )
        return ran

    async def recreate(self, project: Project, services: Collection[str]) -> Ran:
        """Make the containers of `services` anew, and touch no others."""
        args = ["up", "--detach", "--no-build", "--pull", "never", "--no-deps", "--force-recreate"]
        time_limit = self._cfg.config_timeout * 5
        _, ran = await self._run(project, [*args, *sorted(services)], time_limit=time_limit)
        return ran

    async def stop(self, project: Project) -> Ran:
        """Stop the project's containers; they are kept."""
        _, ran = await self._run(project, ["stop"], time_limit=self._cfg.config_timeout * 5)
        return ran

    async def down(self, project: Project) -> Ran:
        """Remove the project's containers and networks; its volumes are kept."""
        args = ["down", "--remove-orphans"]
        _, ran = await self._run(project, args, time_limit=self._cfg.config_timeout * 5)
        return ran

    async def _ask_version(self) -> tuple[int, ...]:
        said: list[str] = []
        finished = await run_child(
            [self._cfg.binary, "compose", "version", "--short"],
            env=self.env,
            cwd=self._cwd,
            time_limit=self._cfg.config_timeout,
            on_stderr=said.append,
        )
        numbers = re.match(r"v?(\d+)\.(\d+)\.(\d+)", finished.stdout.decode("utf-8", "replace"))
        if finished.code != 0 or numbers is None:
            raise self._no_compose("\n".join(said))
        return tuple(int(number) for number in numbers.groups())

    def _no_compose(self, said: str) -> ComposeError:
        words = self._scrubber.scrub(said.strip()) or "it printed no version"
        if missing_plugin(said):
            return ComposeError(
                f"the docker CLI finds no Compose plugin under DOCKER_CONFIG={self.docker_config} "
                f"({words.splitlines()[0]}); a plugin in somebody's home is not seen from there",
                remedy="install the Compose plugin for all users, in "
                "/usr/local/lib/docker/cli-plugins or by the package docker-compose-plugin",
            )
        return ComposeError(f"docker compose version failed: {words}")

    async def _run(
        self,
        project: Project,
        args: Sequence[str],
        *,
        time_limit: float,
        stdin: str | None = None,
        on_event: OnEvent | None = None,
        scrub: Callable[[str], str] | None = None,
    ) -> tuple[Finished, Ran]:
        as_json = await self.version() >= _JSON_SINCE
        scrub = scrub or self._scrubber.scrub
        events: list[ComposeEvent] = []

        def read(line: str) -> None:
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug("compose %s: %s", args[0], scrub(line))
            event = parse_json_line(line) if as_json else parse_plain_line(line, project.services)
            if event is not None:
                # Only now: a value like "true" would take the line's own words with it.
                event = _scrubbed(event, scrub)
                events.append(event)
                if on_event is not None:
                    on_event(event)

        finished = await run_child(
            self._argv(project, args, as_json=as_json, from_stdin=stdin is not None),
            env=self.env,
            cwd=self._cwd,
            time_limit=time_limit,
            stdin=(stdin or "").encode(),
            on_stderr=read,
        )
        self._warn_of_config(events)
        return finished, Ran(finished.code, tuple(events), finished.timed_out)

    def _argv(
        self, project: Project, args: Sequence[str], *, as_json: bool, from_stdin: bool
    ) -> list[str]:
        files = ["-"] if from_stdin else [str(project.directory / name) for name in project.files]
        return [
            self._cfg.binary,
            "compose",
            "--ansi",
            "never",
            "--progress",
            "json" if as_json else "plain",
            "--project-name",
            project.name,
            "--project-directory",
            str(project.directory),
            "--env-file",
            str(project.directory / ENV_FILE),
            *(part for name in files for part in ("--file", name)),
            *args,
        ]

    def _warn_of_config(self, events: Sequence[ComposeEvent]) -> None:
        for event in events:
            if _CONFIG_DROPPED.search(event.log):
                logger.error("docker drops every credential: %s", event.log)


def _scrubbed(event: ComposeEvent, scrub: Callable[[str], str]) -> ComposeEvent:
    texts = {name: text for name in _EVENT_TEXTS if (text := getattr(event, name))}
    masked: dict[str, Any] = {name: scrub(text) for name, text in texts.items()}
    return replace(event, **masked)


def _own_words(events: Sequence[ComposeEvent]) -> str:
    """What Compose gave as its error, or all that it said where it named none."""
    errors = [event.error for event in events if event.error]
    return " | ".join(errors or [event.log for event in events if event.log]) or "no reason given"


def _dotted(version: Sequence[int]) -> str:
    return ".".join(str(number) for number in version)
