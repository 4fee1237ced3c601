"""The one sentence of an outcome: what an operator reads in the log, STATUS and the report."""

from collections.abc import Sequence

from monky_deployd.domain.report import Fault, ServiceStatus

_SHOWN = 3


def converged(generation: int, statuses: Sequence[ServiceStatus]) -> str:
    """The release was brought up and is good."""
    return f"generation {generation} runs: {_services(len({s.service for s in statuses}))} good"


def up_to_date(generation: int) -> str:
    """Nothing had to be done."""
    return f"generation {generation} runs already and all its services are good"


def mended(generation: int, statuses: Sequence[ServiceStatus]) -> str:
    """What had changed on the host was put right."""
    count = _services(len({s.service for s in statuses}))
    return f"generation {generation} runs again as it was released: {count} good"


def pull_failed(generation: int, faults: Sequence[Fault], running: int | None) -> str:
    """Images could not be pulled; nothing was touched."""
    return f"generation {generation} can't be pulled: {_told(faults)}; {_keeps(running)}"


def not_good(generation: int, faults: Sequence[Fault], afterwards: str) -> str:
    """A new release came up badly; `afterwards` says what was done about it."""
    return f"generation {generation} is not good: {_told(faults)}; {afterwards}"


def held(generation: int, running: int | None) -> str:
    """The release was tried before, was bad, and waits for a change."""
    return (
        f"generation {generation} was tried and found bad; it is not tried again until its "
        f"manifest or a value in it changes; {_keeps(running)}"
    )


def failed(cause: str, running: int | None) -> str:
    """A phase could not be done at all."""
    return f"{cause}; {_keeps(running)}"


def _keeps(running: int | None) -> str:
    return "nothing was running" if running is None else f"generation {running} keeps running"


def _told(faults: Sequence[Fault]) -> str:
    told = [
        f"{fault.service}: {fault.message}" if fault.service else fault.message for fault in faults
    ]
    more = len(told) - _SHOWN
    return " | ".join(told[:_SHOWN]) + (f" | and {more} more" if more > 0 else "")


def _services(count: int) -> str:
    return "1 service" if count == 1 else f"{count} services"
