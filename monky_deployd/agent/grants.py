"""The grant in use: read from its file, and adopted anew when the file changes."""

import logging
from datetime import UTC, datetime

from monky_deployd.domain.grant import Grant, expiry_warning, last_days
from monky_deployd.domain.secret import Scrubber
from monky_deployd.errors import GrantError, Reason
from monky_deployd.host.grant import GrantFile
from monky_deployd.host.journal import fields

logger = logging.getLogger(__name__)

# A file has no event to wait for without a subprocess or another library: while something waits
# that a new grant may help, it is looked at every so many seconds.
GRANT_LOOK_INTERVAL = 2.0


class GrantKeeper:
    """Hands out the grant for `environment`, always the one that the file holds now."""

    def __init__(self, file: GrantFile, environment: str, scrubber: Scrubber) -> None:
        self._file = file
        self._environment = environment
        self._scrubber = scrubber
        self._grant: Grant | None = None
        self._edition = 0
        self._warned_at: int | None = None

    @property
    def edition(self) -> int:
        """The number of the file that `current` last looked at; each new one has a higher one."""
        return self._edition

    def current(self) -> Grant:
        """The grant. Raises GrantError where the file is missing, unsafe or of another
        environment."""
        if self._file.changed():
            self._edition += 1
            self._grant = None
            self._warned_at = None
        if self._grant is None:
            self._grant = self._adopt()
        return self._grant

    def notes(self) -> tuple[str, ...]:
        """What a report has to say of the grant in use: that it ends soon.

        It is logged too, once within each of the last 14, 7, 3 and 1 days.
        """
        if self._grant is None:
            return ()
        now = datetime.now(UTC)
        days, warning = last_days(self._grant, now), expiry_warning(self._grant, now)
        if warning and days != self._warned_at:
            logger.warning("%s", warning, extra=fields(environment=self._environment))
        self._warned_at = days
        return (warning,) if warning else ()

    def newer_than(self, edition: int) -> bool:
        """Whether there is another file than that of `edition`, whoever saw it first. Cheap."""
        return self._edition != edition or self._file.changed()

    def _adopt(self) -> Grant:
        grant = self._file.load()
        self._scrubber.add([grant.token])
        if grant.environment and grant.environment != self._environment:
            raise GrantError(
                f"the grant is for environment {grant.environment!r}, "
                f"and this agent serves {self._environment!r}",
                remedy="install the grant of this environment, or correct `environment`",
                reason=Reason.GRANT_REFUSED,
            )
        logger.info("using grant %s", grant.identity, extra=fields(environment=self._environment))
        return grant
