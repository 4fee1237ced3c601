"""Staying in contact with tenancy: the long poll, and what each refusal means for the agent."""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from monky_deployd.agent.grants import GRANT_LOOK_INTERVAL, GrantKeeper
from monky_deployd.clients.tenancy import ManifestAnswer, TenancyClient
from monky_deployd.domain.backoff import CONTACT_BASE, contact_delay, retry_after_delay
from monky_deployd.domain.config import TenancyCfg
from monky_deployd.domain.secret import Secret
from monky_deployd.errors import GrantError, MonkyError, Reason, TenancyError
from monky_deployd.host.journal import fields

logger = logging.getLogger(__name__)

_REFUSED_INTERVAL = 60.0
# An answer that comes sooner than this was not held, whatever it says of itself; nothing is
# fetched more often.
_SHORTEST_HOLD = 1.0
# What a promise is given beyond the time that the step itself may take.
_SLACK = 30.0
_JITTER = 0.1
# Faults that usually mend themselves.
_PASSING = {Reason.TENANCY_UNREACHABLE, Reason.TENANCY_BUSY, Reason.TENANCY_ERROR}


@dataclass(frozen=True)
class Contact:
    """How the last exchange with tenancy went. `problem` is None while all is well."""

    problem: MonkyError | None = None

    @property
    def decommissioned(self) -> bool:
        """Whether tenancy gave the environment up: nothing of it may be touched any more."""
        return self.problem is not None and self.problem.reason is Reason.TENANCY_DECOMMISSIONED

    @property
    def sentence(self) -> str:
        """How the contact is, for STATUS. install.sh waits for the words of the good case."""
        return str(self.problem) if self.problem else "in contact with tenancy"


class Poller:
    """Fetches the manifest for ever. `on_manifest` gets each new body, `on_contact` how each
    exchange went; `expect` is told within how many seconds the next sign comes."""

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
        self._taken: tuple[str | None, bytes] | None = None
        self._contact: Contact | None = None
        self._edition = 0
        self._failures = 0

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            try:
                pause = await self._poll_once()
            except (TenancyError, GrantError) as error:
                self._failures += 1
                self._tell(Contact(error))
                pause = pause_after(error, self._failures)
            await self._pause(pause)

    async def _poll_once(self) -> float:
        """One fetch. How long to pause before the next (seconds)."""
        # The first answer is wanted at once: nobody waits for a change that was missed.
        wait = self._cfg.wait if self._contact and not self._contact.problem else 0
        self._expect(wait + self._cfg.request_timeout * 2 + _SLACK)
        token = self._token()
        began = time.monotonic()
        etag = self._taken[0] if self._taken else None
        answer = await self._tenancy.fetch_manifest(token, etag=etag, wait=wait)
        took = time.monotonic() - began
        self._tell(Contact())
        changed = self._take(answer)
        if wait < self._cfg.wait:
            # Failures are forgotten only once a fetch that waits works too: where something on
            # the way cuts just those, the pauses between them must go on growing.
            return 0
        self._failures = 0
        return self._until_next(answer, took, changed=changed)

    def _token(self) -> Secret:
        try:
            return self._grants.current().token
        finally:
            self._edition = self._grants.edition

    def _take(self, answer: ManifestAnswer) -> bool:
        """Hand on a manifest that is new. A server without ETags sends the old one again."""
        taken = (answer.etag, answer.body)
        if not answer.changed or taken == self._taken:
            return False
        self._taken = taken
        self._on_manifest(answer.body)
        return True

    def _until_next(self, answer: ManifestAnswer, took: float, *, changed: bool) -> float:
        too_soon = max(0.0, _SHORTEST_HOLD - took)
        if answer.waited and (changed or not too_soon):
            return too_soon
        return self._cfg.poll_interval * random.uniform(1 - _JITTER, 1 + _JITTER)

    def _tell(self, contact: Contact) -> None:
        before, self._contact = self._contact, contact
        if before is None or _reason(before) != _reason(contact):
            _log(contact)
        self._on_contact(contact)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not past a new grant file where the grant is what keeps the agent out."""
        self._expect(seconds + _SLACK)
        if not _asks_for_a_grant(self._contact):
            await asyncio.sleep(seconds)
            return
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self._grants.newer_than(self._edition):
                return
            await asyncio.sleep(min(left, GRANT_LOOK_INTERVAL))


def pause_after(error: MonkyError, failures: int) -> float:
    """How many seconds tenancy is left alone after `failures` tries in a row, the last of which
    ended with `error`. Never less than it asked for, nor than a second."""
    if _is_refusal(error.reason):
        pause = _REFUSED_INTERVAL * random.uniform(1, 1 + _JITTER)
        return max(pause, error.retry_after or 0)
    if error.retry_after:
        return max(CONTACT_BASE, retry_after_delay(error.retry_after, random.uniform))
    return contact_delay(failures, random.uniform)


def _is_refusal(reason: Reason) -> bool:
    """Whether coming back soon can't change the answer: a person has to do something."""
    return _is_about_the_grant(reason) or reason in {
        Reason.TENANCY_UNKNOWN_ENVIRONMENT,
        Reason.TENANCY_DECOMMISSIONED,
    }


def _is_about_the_grant(reason: Reason) -> bool:
    return reason.value.startswith("grant-") or reason is Reason.TENANCY_FORBIDDEN


def _asks_for_a_grant(contact: Contact | None) -> bool:
    reason = _reason(contact) if contact else None
    return reason is not None and _is_about_the_grant(reason)


def _reason(contact: Contact) -> Reason | None:
    return contact.problem.reason if contact.problem else None


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
