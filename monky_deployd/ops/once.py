"""One pass for a person or a script: fetch, reconcile, record, report."""

import logging

from monky_deployd.agent.wiring import Agent
from monky_deployd.domain.report import Outcome
from monky_deployd.errors import GrantError, TenancyError

logger = logging.getLogger(__name__)


async def reconcile_once(agent: Agent) -> Outcome:
    """Fetch the manifest, make one pass, and send what the outbox holds.

    A release that was rolled back is tried again: somebody asked. Raises GrantError or
    TenancyError where there is no manifest to work on. A report that can't be sent stays in the
    outbox, and does not change the outcome.
    """
    token = agent.grants.current().token
    answer = await agent.tenancy.fetch_manifest(token, etag=None, wait=0)
    passed = await agent.reconciler.run(answer.body, token, agent.memory.history(), forced=True)
    outcome = agent.memory.record(passed)
    try:
        await agent.courier.deliver()
    except (TenancyError, GrantError) as error:
        logger.warning("the report waits in the outbox: %s", error)
    return outcome
