"""How long to wait before trying again. Pure: randomness comes in as a number."""

from collections.abc import Callable

# For tenancy and OpenBao: full jitter, so that a fleet doesn't come back in step.
CONTACT_BASE = 1.0
CONTACT_CAP = 300.0
# For a release that fails, as kubelet does for images.
RELEASE_BASE = 10.0
RELEASE_CAP = 300.0
_RELEASE_JITTER = 0.1


def contact_delay(failures: int, uniform: Callable[[float, float], float]) -> float:
    """Seconds to wait after `failures` (1 or more) failed contacts: full jitter, 1 s to 5 min.

    `uniform(low, high)` draws the random number (random.uniform).
    """
    ceiling = min(CONTACT_CAP, CONTACT_BASE * 2.0 ** min(failures, 32))
    return uniform(CONTACT_BASE, max(CONTACT_BASE, ceiling))


def release_delay(failures: int, uniform: Callable[[float, float], float]) -> float:
    """Seconds to wait after a release failed `failures` times: 10 doubling to 300, +-10 %."""
    delay = min(RELEASE_CAP, RELEASE_BASE * 2.0 ** min(max(failures, 1) - 1, 32))
    return delay * uniform(1 - _RELEASE_JITTER, 1 + _RELEASE_JITTER)


def retry_after_delay(seconds: float, uniform: Callable[[float, float], float]) -> float:
    """Seconds to wait where the other side said `seconds`: never earlier, up to 10 % later."""
    return seconds * uniform(1, 1 + _RELEASE_JITTER)


def jittered(seconds: float, uniform: Callable[[float, float], float]) -> float:
    """`seconds`, up to 10 % sooner or later, so that a fleet does not march in step."""
    return seconds * uniform(1 - _RELEASE_JITTER, 1 + _RELEASE_JITTER)
