"""Installing and looking at the grant, for the operator who holds the kit."""

import grp
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from monky_deployd.domain.config import Config
from monky_deployd.domain.grant import Grant, check_times, parse_grant
from monky_deployd.domain.report import rfc3339
from monky_deployd.errors import GrantError, Reason
from monky_deployd.host.files import write_private
from monky_deployd.host.grant import Identity, read_grant

SERVICE_GROUP = "monky-deployd"


@dataclass(frozen=True)
class GrantView:
    """A grant as it may be shown: its claims, never the grant."""

    path: Path
    grant: Grant

    def as_json(self) -> dict[str, Any]:
        """The claims for `--json`; times in RFC 3339, null where a claim is missing."""
        grant = self.grant
        return {
            "path": str(self.path),
            "environment": grant.environment,
            "jti": grant.jti,
            "not_before": rfc3339(grant.not_before) if grant.not_before else None,
            "expires_at": rfc3339(grant.expires_at) if grant.expires_at else None,
        }

    def sentence(self, now: datetime) -> str:
        """The claims in one line."""
        grant = self.grant
        until = "without an end"
        if grant.expires_at is not None:
            days = (grant.expires_at - now).days
            until = f"until {grant.expires_at:%Y-%m-%d %H:%M}Z ({days} days from now)"
        return f"grant {grant.identity} for {grant.environment or 'no environment'}, {until}"


def check_grant(config: Config, text: str) -> GrantView:
    """The grant in `text`, fit to be installed. Changes nothing.

    Raises GrantError for what is no grant, another environment's, or not valid now.
    """
    grant = parse_grant(text)
    check_times(grant, datetime.now(UTC))
    if grant.environment and grant.environment != config.environment:
        raise GrantError(
            f"the grant is for environment {grant.environment!r}, "
            f"and the configuration is for {config.environment!r}",
            remedy="take the kit of this environment",
            reason=Reason.GRANT_REFUSED,
        )
    return GrantView(Path(config.grant_file), grant)


def install_grant(config: Config, text: str) -> GrantView:
    """Put the grant in `text` into the config's grant file; a running agent adopts it by itself.

    As root, the file becomes root's with the service user's group and mode 0640, else 0600.
    Raises GrantError as `check_grant` does, and FileError.
    """
    view = check_grant(config, text)
    content = (view.grant.token.reveal() + "\n").encode()
    group = _service_group() if os.geteuid() == 0 else None
    write_private(view.path, content, 0o600 if group is None else 0o640, group=group)
    return view


def show_grant(config: Config) -> GrantView:
    """The grant in the config's grant file. Raises GrantError, also for an unsafe file."""
    path = Path(config.grant_file)
    me = Identity.current()
    group = _service_group()
    if me.uid == 0 and group is not None:
        # Root looks at the file on the service user's behalf.
        me = Identity(me.uid, me.gids | {group})
    return GrantView(path, read_grant(path, me))


def _service_group() -> int | None:
    try:
        return grp.getgrnam(SERVICE_GROUP).gr_gid
    except KeyError:
        return None
