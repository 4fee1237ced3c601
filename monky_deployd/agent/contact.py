"""Staying in contact with tenancy: the long poll, and what each refusal means for the agent."""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from monky_deployd.agent.grants import GrantKeeper
from monky_deployd.clients.tenancy import TenancyClient
from monky_deployd.domain.backoff import contact_delay, retry_after_delay
from monky_deployd.domain.config import TenancyCfg
from monky_deployd.errors import GrantError, MonkyError, Reason, TenancyError
from monky_deployd.host.journal import fields

logger = logging.getLogger(__name__)

_GRANT_LOOK_INTERVAL = 2.0
_REFUSED_INTERVAL = 60.0
_NOT_HELD = 1.0
_JITTER = 0.1
# Faults that usually mend themselves.
_PASSING = {Reason.TENANCY_UNREACHABLE, Reason.TENANCY_BUSY, Reason.TENANCY_ERROR}
# Refusals that coming back soon can't change.
_SLOW = {
    Reason.GRANT_SUPERSEDED,
    Reason.GRANT_EXPIRED,
    Reason.GRANT_REFUSED,
    Reason.TENANCY_FORBIDDEN,
    Reason.TENANCY_UNKNOWN_ENVIRONMENT,
    Reason.TENANCY_DECOMMISSIONED,
}


@dataclass(frozen=True)
class Contact:
    """How the last exchange with tenancy went. `problem` is None while all is well."""

    problem: MonkyError | None = None
    failures: int = 0

    @property
    def decommissioned(self) -> bool:
        """Whether tenancy gave the environment up: nothing of it may be touched any more."""
        return self.problem is not None and self.problem.reason is Reason.TENANCY_DECOMMISSIONED

    @property
    def sentence(self) -> str:
        """How the contact is, for STATUS. install.sh waits for the words of the good case."""
        return str(self.problem) if self.problem else "in contact with tenancy"


class Poller:
    """Fetches the manifest for ever. `on_manifest` gets each new body, `on_contact` each change
    of how the contact is; `expect` is told within how many seconds the next sign comes."""

    def __init__(
        self,
        cfg: TenancyCfg,
        tenancy: TenancyClient,
        grants: GrantKeeper,
        *,
        on_manifest: Callable[[bytes], None],
        on_contact: Callable[[Contact], None],
        expect: Callable[[float], None],
    ) -> None:
        self._cfg = cfg
        self._tenancy = tenancy
        self._grants = grants
        self._on_manifest = on_manifest
        self._on_contact = on_contact
        self._expect = expect
        self._etag: str | None = None
        self._contact: Contact | None = None

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            try:
                pause = await self._poll_once()
            except (TenancyError, GrantError) as error:
                failures = self._contact.failures + 1 if self._contact else 1
                self._tell(Contact(error, failures))
                pause = _delay(error, failures)
            await self._pause(pause)

    async def _poll_once(self) -> float:
        """One fetch. How long to pause before the next (seconds)."""
        # The first answer is wanted at once: nobody waits for a change that was missed.
        wait = self._cfg.wait if self._contact and not self._contact.problem else 0
        self._expect(wait + self._cfg.request_timeout * 2)
        began = time.monotonic()
        token = self._grants.current().token
        answer = await self._tenancy.fetch_manifest(token, etag=self._etag, wait=wait)
        self._tell(Contact())
        if answer.changed:
            self._etag = answer.etag
            self._on_manifest(answer.body)
            return 0
        held = answer.waited and time.monotonic() - began >= _NOT_HELD
        return 0 if held or wait == 0 < self._cfg.wait else self._poll_interval()

    def _poll_interval(self) -> float:
        return self._cfg.poll_interval * random.uniform(1 - _JITTER, 1 + _JITTER)

    def _tell(self, contact: Contact) -> None:
        before, self._contact = self._contact, contact
        if before is None or _reason(before) != _reason(contact):
            _log(contact)
        self._on_contact(contact)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not past a new grant file where the grant is what keeps the agent out."""
        self._expect(seconds + self._cfg.request_timeout)
        if not _about_grant(self._contact):
            await asyncio.sleep(seconds)
            return
        deadline = time.monotonic() + seconds
        # A file has no event to wait for without a subprocess or another library.
        while (left := deadline - time.monotonic()) > 0 and not self._grants.changed():  # noqa: ASYNC110
            await asyncio.sleep(min(left, _GRANT_LOOK_INTERVAL))


def _about_grant(contact: Contact | None) -> bool:
    reason = _reason(contact) if contact else None
    return reason is not None and reason.value.startswith("grant-")


def _reason(contact: Contact) -> Reason | None:
    return contact.problem.reason if contact.problem else None


def _delay(error: MonkyError, failures: int) -> float:
    if error.retry_after is not None:
        return retry_after_delay(error.retry_after, random.uniform)
    if error.reason in _SLOW or isinstance(error, GrantError):
        return _REFUSED_INTERVAL * random.uniform(1, 1 + _JITTER)
    return contact_delay(failures, random.uniform)


def _log(contact: Contact) -> None:
    if contact.problem is None:
        logger.info("in contact with tenancy")
        return
    level = logging.WARNING if contact.problem.reason in _PASSING else logging.ERROR
    logger.log(
        level,
        "%s; what runs keeps running",
        contact.problem,
        extra=fields(phase="fetch", reason=contact.problem.reason),
    )
