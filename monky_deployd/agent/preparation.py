"""What comes before anything is touched: a manifest becomes the bytes of a release, and those are
judged. A pass does it, and so does who only wants to know what a pass would do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monky_deployd.agent.admission import admit_model, admit_sources
from monky_deployd.agent.resolve import resolve
from monky_deployd.agent.tools import Tools
from monky_deployd.clients.compose import Project
from monky_deployd.domain.dotenv import check_readback, readback_probe
from monky_deployd.domain.manifest import ComposeFile, Entry, Manifest, Use
from monky_deployd.domain.rendering import (
    Logins,
    Rendering,
    Resolved,
    files_override,
    host_compose_files,
    render,
    render_logins,
)
from monky_deployd.domain.secret import Secret
from monky_deployd.domain.verify import Expected, expected_services
from monky_deployd.errors import ManifestError
from monky_deployd.host.files import read_regular

_MAX_COMPOSE_FILE = 4 * 1024 * 1024


@dataclass(frozen=True)
class Admitted:
    """A release that the host's policy and Compose accept.

    `model` is what Compose makes of it, `override` the agent's own compose file beside it.
    """

    model: Mapping[str, Any] = field(repr=False)
    override: bytes = field(repr=False)
    expected: tuple[Expected, ...]


@dataclass(frozen=True)
class Preparer:
    """Prepares releases. Every method raises MonkyError; what it learns of secrets, the scrubber
    learns too."""

    tools: Tools

    async def resolve(self, entries: Sequence[Entry], grant: Secret) -> tuple[Resolved, ...]:
        """Each of the manifest's entries with the value that it has now."""
        async with self.tools.open_openbao() as openbao:
            resolved = await resolve(entries, openbao, grant)
        self.tools.scrubber.add(item.value for item in resolved if item.entry.path is not None)
        return resolved

    async def logins(self, manifest: Manifest, grant: Secret) -> Logins:
        """The registry credentials that OpenBao holds now for the manifest."""
        entries = [entry for entry in manifest.entries if entry.use is Use.REGISTRY_AUTH]
        logins = render_logins(await self.resolve(entries, grant))
        self.tools.scrubber.add(logins.secrets)
        return logins

    def render(self, manifest: Manifest, resolved: Sequence[Resolved]) -> Rendering:
        """The release of the manifest, with the values of its entries."""
        rendering = render(manifest, resolved, self._host_compose(manifest), self.tools.key)
        self.tools.scrubber.add(rendering.logins.secrets)
        return rendering

    async def admit(self, rendering: Rendering, directory: Path) -> Admitted:
        """Let the host's policy and Compose judge the release, whose files are in `directory`."""
        sources = admit_sources(rendering, self.tools.config)
        compose, release = self.tools.compose, rendering.release
        project = Project(release.project, directory, release.compose_files)
        if rendering.env:
            probe = readback_probe(rendering.env)
            check_readback(await compose.model(project, stdin=probe), rendering.env)
        model = await compose.model(project)
        admit_model(model, directory, sources, self.tools.config)
        override = files_override(model, str(directory), rendering, self.tools.key)
        return Admitted(model, override, expected_services(model))

    def _host_compose(self, manifest: Manifest) -> tuple[ComposeFile, ...]:
        if manifest.compose is not None:
            return ()
        paths = self.tools.config.docker.compose_files
        return host_compose_files((path, _read_compose_file(path)) for path in paths)


def _read_compose_file(path: str) -> str:
    content = read_regular(Path(path), limit=_MAX_COMPOSE_FILE)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ManifestError(f"the host's compose file {path} is not UTF-8") from None
