"""One pass for a person or a script: fetch, reconcile, record, report."""

import logging

from monky_deployd.agent.wiring import Agent
from monky_deployd.clients.tenancy import ManifestAnswer
from monky_deployd.domain.report import Outcome
from monky_deployd.domain.secret import Secret
from monky_deployd.errors import GrantError, TenancyError

logger = logging.getLogger(__name__)


async def reconcile_once(agent: Agent) -> Outcome:
    """Fetch the manifest, make one pass, and send what the outbox holds.

    A release that was rolled back is tried again: somebody asked. Raises GrantError or
    TenancyError where there is no manifest to work on. A report that can't be sent stays in the
    outbox, and does not change the outcome.
    """
    token, answer = await _fetch(agent)
    passed = await agent.reconciler.run(answer.body, token, agent.memory.history(), forced=True)
    outcome = agent.memory.record(passed)
    await agent.housekeeper.tidy()
    try:
        await agent.courier.deliver()
    except (TenancyError, GrantError) as error:
        logger.warning("the report waits in the outbox: %s", error)
    return outcome


async def _fetch(agent: Agent) -> tuple[Secret, ManifestAnswer]:
    """The grant's token and the manifest; `status` tells afterwards where there was none."""
    try:
        token = agent.grants.current().token
        answer = await agent.tenancy.fetch_manifest(token, etag=None, wait=0)
    except (TenancyError, GrantError) as error:
        agent.memory.remember_contact(error)
        raise
    agent.memory.remember_contact(None)
    return token, answer
