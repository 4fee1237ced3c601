"""Tests the way from this host to a deploy, step by step, and changes nothing.

Each check is a clause of its own, so that one fault doesn't hide the next.
"""

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from monky_deployd import __version__
from monky_deployd.clients.compose import OLDEST_TESTED, ComposeCli
from monky_deployd.clients.engine import EngineClient
from monky_deployd.clients.openbao import OpenBaoClient
from monky_deployd.clients.tenancy import TenancyClient
from monky_deployd.domain.config import Config
from monky_deployd.domain.grant import Grant, check_times
from monky_deployd.domain.secret import Scrubber, Secret
from monky_deployd.errors import ExitCode, GrantError, MonkyError, Reason, StateError
from monky_deployd.host.grant import GrantFile

_HOMES = ("/home/", "/root/")
_NOTABLE_SKEW = 60.0


@dataclass(frozen=True)
class Finding:
    """What one check found: a sentence, and for a fault its reason."""

    check: str
    sentence: str
    reason: Reason | None = None
    exit_code: ExitCode = ExitCode.CONVERGED

    @property
    def good(self) -> bool:
        """Whether nothing is wrong here."""
        return self.reason is None

    def as_json(self) -> dict[str, Any]:
        """The finding for `--json`."""
        return {
            "check": self.check,
            "good": self.good,
            "sentence": self.sentence,
            "reason": self.reason.value if self.reason else None,
        }


class Doctor:
    """Examines the host that `config` describes, as the user that it runs as."""

    def __init__(self, config: Config, credentials_directory: Path | None = None) -> None:
        self._config = config
        self._credentials = credentials_directory
        self._grant: Grant | None = None
        self._scrubber = Scrubber()

    async def examine(self) -> AsyncIterator[Finding]:
        """Every check in order, each as soon as it is done."""
        checks: tuple[tuple[str, Callable[[], Awaitable[str]]], ...] = (
            ("python", self._python),
            ("state directory", self._state_dir),
            ("docker engine", self._engine),
            ("compose", self._compose),
            ("grant", self._grant_file),
            ("tenancy", self._tenancy),
            ("openbao", self._openbao),
        )
        for name, check in checks:
            try:
                yield Finding(name, await check())
            except MonkyError as error:
                words = self._scrubber.scrub(str(error))
                yield Finding(name, words, error.reason, error.exit_code)

    async def _python(self) -> str:
        if sys.base_prefix.startswith(_HOMES):
            raise StateError(
                f"this Python lives in a home ({sys.base_prefix}), where a service user may not go",
                remedy="install with packaging/install.sh, which uses /usr/bin/python3",
            )
        return f"monky-deployd {__version__} on Python {sys.version.split()[0]}"

    async def _state_dir(self) -> str:
        return _check_state_dir(Path(self._config.state_dir))

    async def _engine(self) -> str:
        async with EngineClient(self._config.docker.socket) as engine:
            return f"Docker Engine {await engine.version()} answers"

    async def _compose(self) -> str:
        # The agent's own DOCKER_CONFIG has no plugins either, and may be out of reach here.
        with TemporaryDirectory() as empty:
            version = await ComposeCli(self._config.docker, Path(empty), self._scrubber).version()
        dotted = ".".join(str(number) for number in version)
        older = "" if version >= OLDEST_TESTED else ", older than what this agent is tested with"
        return f"Compose {dotted}{older}"

    async def _grant_file(self) -> str:
        file = GrantFile(Path(self._config.grant_file), self._credentials)
        grant = file.load()
        self._scrubber.add([grant.token])
        check_times(grant, datetime.now(UTC))
        self._grant = grant
        until = f" until {grant.expires_at:%Y-%m-%d}" if grant.expires_at else ""
        return f"grant {grant.identity} for {grant.environment}{until}"

    async def _tenancy(self) -> str:
        config = self._config
        async with TenancyClient(
            config.tenancy, config.overlay, config.environment, agent_version=__version__
        ) as tenancy:
            answer = await tenancy.fetch_manifest(self._token(), etag=None, wait=0)
        skew = _skew(answer.server_date)
        return f"{config.tenancy.base_url} gives the manifest{skew}"

    async def _openbao(self) -> str:
        async with OpenBaoClient(self._config.openbao, self._config.overlay) as openbao:
            await openbao.login(self._token())
        return f"{self._config.openbao.url} takes the grant"

    def _token(self) -> Secret:
        if self._grant is None:
            raise GrantError("not tried: there is no usable grant", reason=Reason.GRANT_MISSING)
        return self._grant.token


def _check_state_dir(path: Path) -> str:
    if not path.is_dir():
        return f"{path} does not exist yet; the agent makes it at its first start"
    owner, me = path.stat().st_uid, os.geteuid()
    if owner != me:
        raise StateError(
            f"{path} belongs to user id {owner}, and this runs as {me}",
            remedy="run it as the agent's user: runuser -u monky-deployd -- monky-deployd doctor",
        )
    if not os.access(path, os.W_OK | os.X_OK):
        raise StateError(f"{path} can't be written", remedy=f"chmod 0700 {path}")
    return f"{path} is the agent's own"


def _skew(server_date: datetime | None) -> str:
    if server_date is None:
        return ""
    ahead = (datetime.now(UTC) - server_date).total_seconds()
    if abs(ahead) < _NOTABLE_SKEW:
        return ""
    side = "ahead of" if ahead > 0 else "behind"
    return f"; this host's clock is {abs(ahead):.0f} s {side} tenancy's"
