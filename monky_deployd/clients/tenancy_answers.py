"""What tenancy's answers mean: an HTTP answer becomes an error with a reason and its own words.

Foreign text is put on one line, shortened, its control characters escaped, the grant masked.
"""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx

from monky_deployd.domain.http_headers import http_date, retry_after
from monky_deployd.domain.secret import Scrubber, Secret
from monky_deployd.errors import Reason, TenancyError

_WORDS_MAX = 300
_NOTABLE_SKEW = 60.0
_ERROR_DESCRIPTION = re.compile(r'error_description="((?:[^"\\]|\\.)*)"', re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """A whole answer of tenancy's to a request with the grant `token`, with its words made fit for
    a log line."""

    status: int
    url: httpx.URL
    headers: httpx.Headers
    body: bytes
    elapsed: float
    token: Secret

    @property
    def content_type(self) -> str:
        return str(self.headers.get("content-type", "")).partition(";")[0].strip().lower()

    @property
    def is_json(self) -> bool:
        kind = self.content_type
        return kind == "application/json" or (
            kind.startswith("application/") and kind.endswith("+json")
        )

    @property
    def document(self) -> dict[str, Any]:
        """The body as a JSON object; empty where it is none."""
        if not self.is_json:
            return {}
        try:
            document = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}

    @property
    def server_date(self) -> datetime | None:
        return http_date(self.headers.get("date"))

    @property
    def error_description(self) -> str:
        """What WWW-Authenticate says in words (RFC 6750, section 3)."""
        found = _ERROR_DESCRIPTION.search(self.headers.get("www-authenticate", ""))
        return found.group(1) if found else ""

    @property
    def quoted_words(self) -> str:
        """` ("…")` with tenancy's own words, or nothing."""
        document = self.document
        words = document.get("message") or document.get("error") or self.error_description
        if not words and self.content_type == "text/plain":
            words = self.body.decode("utf-8", "replace")
        line = self.one_line(words) if isinstance(words, str) else ""
        return f' ("{line}")' if line else ""

    def scrubbed(self, text: str) -> str:
        """`text` without the grant."""
        return Scrubber([self.token]).scrub(text)

    def one_line(self, text: str) -> str:
        """Foreign `text` without the grant, on one short line, control characters escaped."""
        line = " ".join(self.scrubbed(text).split())
        line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
        return line if len(line) <= _WORDS_MAX else f"{line[:_WORDS_MAX]}…"


def not_json(answer: Answer) -> TenancyError:
    kind = answer.one_line(answer.content_type) or "no content type"
    return TenancyError(
        f"tenancy answers {answer.status} with {kind} where JSON is expected",
        remedy="check tenancy.host and tenancy.port: something else may listen there",
    )


def refusal(answer: Answer, environment: str) -> TenancyError:
    """The error for an answer that isn't a success."""
    status = answer.status
    if status == 401:
        return _grant_refused(answer)
    if status == 304:
        return TenancyError(
            "tenancy answers 304, not modified, to a request without a condition",
            remedy="something between this host and tenancy may answer from a cache of its own",
            retry_after=_retry_after(answer),
        )
    if 300 <= status < 400:
        return _redirected(answer)
    if status == 404 and answer.document.get("error") != "unknown_environment":
        return TenancyError(
            f"{_address(answer.url)} answers 404 but not tenancy's own{answer.quoted_words}",
            remedy="check tenancy.host and tenancy.port: something else may listen there",
            retry_after=_retry_after(answer),
        )
    cause, remedy, reason = _REFUSALS.get(status, ("tenancy answers {status}", "", None))
    return TenancyError(
        cause.format(status=status, environment=environment) + answer.quoted_words,
        remedy=remedy,
        reason=reason,
        retry_after=_retry_after(answer),
    )


_REFUSALS: dict[int, tuple[str, str, Reason | None]] = {
    403: (
        "tenancy forbids this grant the environment {environment}",
        "install the grant of this environment, or correct `environment` in the config",
        Reason.TENANCY_FORBIDDEN,
    ),
    404: (
        "tenancy knows no environment {environment}",
        "correct `environment` in the config, or create it in tenancy",
        Reason.TENANCY_UNKNOWN_ENVIRONMENT,
    ),
    410: (
        "tenancy has decommissioned the environment {environment}",
        "what runs is left as it is; stop it and the agent by hand",
        Reason.TENANCY_DECOMMISSIONED,
    ),
    429: ("tenancy asks for fewer requests", "", Reason.TENANCY_BUSY),
    503: ("tenancy is not available just now", "", Reason.TENANCY_BUSY),
}

_NEW_KIT = "reveal a new kit and install its grant with `monky-deployd grant install`"
_GRANT_REFUSALS = {
    Reason.GRANT_SUPERSEDED: (
        "a newer one has superseded it",
        "install the newer grant with `monky-deployd grant install`",
    ),
    Reason.GRANT_EXPIRED: ("it has expired", _NEW_KIT),
    Reason.GRANT_NOT_YET_VALID: ("it is not valid yet", "check the clocks of host and tenancy"),
    Reason.GRANT_REFUSED: ("it is not accepted", _NEW_KIT),
}
_GRANT_CODES = {
    "grant_superseded": Reason.GRANT_SUPERSEDED,
    "grant_expired": Reason.GRANT_EXPIRED,
    "grant_not_yet_valid": Reason.GRANT_NOT_YET_VALID,
}
_GRANT_WORDS = {
    "superseded": Reason.GRANT_SUPERSEDED,
    "expired": Reason.GRANT_EXPIRED,
    "not yet valid": Reason.GRANT_NOT_YET_VALID,
}


def _grant_refused(answer: Answer) -> TenancyError:
    reason = _grant_reason(answer)
    why, remedy = _GRANT_REFUSALS[reason]
    if reason in (Reason.GRANT_EXPIRED, Reason.GRANT_NOT_YET_VALID):
        remedy += _skew_remark(answer)
    return TenancyError(
        f"tenancy refuses the grant: {why}{answer.quoted_words}",
        remedy=remedy,
        reason=reason,
        retry_after=_retry_after(answer),
    )


def _grant_reason(answer: Answer) -> Reason:
    """Why a 401 was given: by the body's code, else by the words of WWW-Authenticate."""
    for field in ("error", "reason"):
        code = answer.document.get(field)
        if isinstance(code, str) and code in _GRANT_CODES:
            return _GRANT_CODES[code]
    description = answer.error_description.lower()
    found = (reason for words, reason in _GRANT_WORDS.items() if words in description)
    return next(found, Reason.GRANT_REFUSED)


def _skew_remark(answer: Answer) -> str:
    """A remark where this host's clock and tenancy's differ so much that it may be the cause."""
    if answer.server_date is None:
        return ""
    ahead = (datetime.now(UTC) - answer.server_date).total_seconds()
    if abs(ahead) < _NOTABLE_SKEW:
        return ""
    side = "ahead of" if ahead > 0 else "behind"
    return f" (this host's clock is {abs(ahead):.0f} s {side} tenancy's)"


def _redirected(answer: Answer) -> TenancyError:
    """A redirect is named by its origin only: its path or query may carry anything."""
    # Before the host name is put into lower case: the scrubber would not know the grant then.
    location = answer.scrubbed(answer.headers.get("location", ""))
    try:
        target = answer.one_line(_address(answer.url.join(location)))
    except (httpx.InvalidURL, ValueError):
        target = "an address that can't be read"
    return TenancyError(
        f"tenancy answers {answer.status} and points to {target}; "
        "the grant is never sent after a redirect",
        remedy="set tenancy.host and tenancy.port to where tenancy itself answers",
    )


def _address(url: httpx.URL) -> str:
    host = f"[{url.host}]" if ":" in url.host else url.host
    port = f":{url.port}" if url.port else ""
    return f"{url.scheme}://{host}{port}"


def _retry_after(answer: Answer) -> float | None:
    return retry_after(answer.headers.get("retry-after"), answer.server_date or datetime.now(UTC))
