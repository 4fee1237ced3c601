"""What is done about a release that came up badly: `deploy.on_failure` of the manifest."""

import logging
from dataclasses import replace

from monky_deployd.agent.journey import Journey, Passed, generation_of
from monky_deployd.agent.restore import Restorer
from monky_deployd.agent.rollout import RolloutResult
from monky_deployd.domain import sentences
from monky_deployd.domain.manifest import OnFailure
from monky_deployd.domain.report import Fault, Phase
from monky_deployd.errors import EngineError, FileError, MonkyError, Reason
from monky_deployd.host.journal import fields

logger = logging.getLogger(__name__)


async def recover(
    journey: Journey,
    restorer: Restorer,
    result: RolloutResult,
    *,
    on_failure: OnFailure,
    good_release: str | None,
) -> Passed:
    """Roll back to `good_release`, stop, or keep what came up badly; and say which."""
    if on_failure is OnFailure.STOP:
        return await _stop(journey, restorer, result)
    if on_failure is OnFailure.KEEP:
        return keep(journey, result, "it is left as it is, as deploy.on_failure says")
    if good_release is None or good_release == journey.release_id:
        return keep(
            journey,
            result,
            "there is no earlier good release to go back to, so it is left as it is",
        )
    return await _roll_back(journey, restorer, result, good_release)


def keep(journey: Journey, result: RolloutResult, afterwards: str) -> Passed:
    """Leave what came up badly as it is; `afterwards` says so."""
    reason = Reason.UP_FAILED if result.phase is Phase.UP else Reason.UNHEALTHY
    sentence = sentences.not_good(journey.generation, result.faults, afterwards)
    return journey.bad(reason, sentence, result.faults, result.statuses, phase=result.phase)


async def _stop(journey: Journey, restorer: Restorer, result: RolloutResult) -> Passed:
    if faults := await _try_to_stop(journey, restorer):
        result = replace(result, faults=(*result.faults, *faults))
        return keep(journey, result, "stopping its containers failed")
    journey.stopped = True
    sentence = sentences.not_good(
        journey.generation,
        result.faults,
        "its containers were stopped, as deploy.on_failure says",
    )
    return journey.bad(
        Reason.STOPPED, sentence, result.faults, result.statuses, phase=result.phase, held=True
    )


async def _try_to_stop(journey: Journey, restorer: Restorer) -> tuple[Fault, ...]:
    """Why the containers could not be stopped; nothing where they were."""
    try:
        return await restorer.stop(journey.release_id or "")
    except MonkyError as error:
        return (Fault(str(error)),)


async def _roll_back(
    journey: Journey, restorer: Restorer, result: RolloutResult, good_release: str
) -> Passed:
    earlier = generation_of(good_release)
    logger.warning(
        "generation %s is not good; going back to generation %s",
        journey.generation,
        earlier,
        extra=fields(generation=journey.generation, phase=result.phase),
    )
    try:
        if tried := former_project(restorer, good_release, journey.release_id):
            await leave_project(journey, restorer, tried)
        back = await restorer.go_back(good_release)
    except EngineError:
        # It says nothing about either release: both are tried again once the engine is back.
        raise
    except MonkyError as error:
        back = RolloutResult(journey.phase, (Fault(str(error)),), ())
    faults = (*result.faults, *back.faults)
    reason = Reason.ROLLED_BACK if back.good else Reason.ROLLBACK_FAILED
    afterwards = (
        f"generation {earlier} was brought back and runs"
        if back.good
        else f"going back to generation {earlier} failed too"
    )
    sentence = sentences.not_good(journey.generation, faults, afterwards)
    return journey.bad(reason, sentence, faults, back.statuses, phase=result.phase, held=True)


def former_project(restorer: Restorer, release_id: str, other_id: str | None) -> str | None:
    """`other_id` where that release is of another project than `release_id`, else None.

    Compose sees no containers of another project, so it would leave them running.
    """
    if other_id is None:
        return None
    try:
        return other_id if restorer.is_of_another_project(release_id, other_id) else None
    except FileError as error:
        logger.warning("whether the project's name has changed is not known: %s", error)
        return None


async def leave_project(journey: Journey, restorer: Restorer, release_id: str) -> None:
    """Remove the containers of the project of `release_id`, and note what came of it."""
    generation = generation_of(release_id)
    faults = await restorer.take_down(release_id)
    if faults:
        note = f"containers of generation {generation}'s project are left: {faults[0].message}"
    else:
        note = f"the containers of generation {generation}, of another project name, were removed"
    journey.notes = (*journey.notes, journey.scrub(note))
