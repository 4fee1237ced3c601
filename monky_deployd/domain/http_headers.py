"""Times in HTTP headers, of tenancy and of OpenBao alike. Pure.

Format: RFC 9110, sections 5.6.7 (dates) and 10.2.3 (Retry-After).
"""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

# No server silences an agent for longer than so many seconds.
RETRY_AFTER_MAX = 3600.0


def http_date(text: str | None) -> datetime | None:
    """The moment that the header names; None where it names none."""
    try:
        moment = parsedate_to_datetime(text or "")
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def retry_after(text: str | None, now: datetime | None) -> float | None:
    """The wait in seconds, from 0 to RETRY_AFTER_MAX, that Retry-After asks for; None for none.

    `now` is what a date in it is read against: the server's own clock where it is known, so that
    this host's may be wrong. Without it a date says nothing.
    """
    value = (text or "").strip()
    if value.isascii() and value.isdecimal():
        return min(float(value), RETRY_AFTER_MAX)
    moment = http_date(value)
    if moment is None or now is None:
        return None
    return min(max((moment - now).total_seconds(), 0.0), RETRY_AFTER_MAX)
