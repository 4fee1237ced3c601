"""One tree of typed errors: each carries a stable reason code, a cause and a remedy.

The reason decides the exit code. The same reason and sentence appear in the log line, the
unit's STATUS, the report to tenancy and `monky-deployd once --json`.
"""

from collections.abc import Sequence
from enum import IntEnum, StrEnum


class ExitCode(IntEnum):
    """What the process exits with."""

    CONVERGED = 0
    DEPLOY_FAILED = 1
    CONFIGURATION = 2
    UNREACHABLE = 3
    POLICY = 4


class Reason(StrEnum):
    """The stable code of an outcome. OPERATIONS.md lists every one; a test holds the list whole."""

    CONVERGED = "converged"
    UP_TO_DATE = "up-to-date"

    CONFIG_INVALID = "config-invalid"
    STATE_UNUSABLE = "state-unusable"
    STATE_LOCKED = "state-locked"
    GRANT_MISSING = "grant-missing"
    GRANT_UNSAFE = "grant-unsafe"
    GRANT_MALFORMED = "grant-malformed"

    GRANT_EXPIRED = "grant-expired"
    GRANT_NOT_YET_VALID = "grant-not-yet-valid"
    GRANT_SUPERSEDED = "grant-superseded"
    GRANT_REFUSED = "grant-refused"
    TENANCY_UNREACHABLE = "tenancy-unreachable"
    TENANCY_FORBIDDEN = "tenancy-forbidden"
    TENANCY_UNKNOWN_ENVIRONMENT = "tenancy-unknown-environment"
    TENANCY_DECOMMISSIONED = "tenancy-decommissioned"
    TENANCY_BUSY = "tenancy-busy"
    TENANCY_ERROR = "tenancy-error"
    OPENBAO_UNREACHABLE = "openbao-unreachable"
    OPENBAO_SEALED = "openbao-sealed"
    OPENBAO_LOGIN_REFUSED = "openbao-login-refused"
    OPENBAO_FORBIDDEN = "openbao-forbidden"
    OPENBAO_ERROR = "openbao-error"
    SECRET_MISSING = "secret-missing"
    SECRET_DELETED = "secret-deleted"
    SECRET_DESTROYED = "secret-destroyed"

    MANIFEST_INVALID = "manifest-invalid"
    MANIFEST_STALE = "manifest-stale"
    ENTRY_REFUSED = "entry-refused"
    POLICY_REFUSED = "policy-refused"
    DOCKER_CONFIG_UNWRITABLE = "docker-config-unwritable"
    DISK = "disk"
    ENGINE_UNREACHABLE = "engine-unreachable"
    COMPOSE_UNUSABLE = "compose-unusable"
    COMPOSE_INVALID = "compose-invalid"
    PULL_FAILED = "pull-failed"
    UP_FAILED = "up-failed"
    UNHEALTHY = "unhealthy"
    ROLLED_BACK = "rolled-back"
    ROLLBACK_FAILED = "rollback-failed"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    INTERNAL = "internal"


_CONFIGURATION = {
    Reason.CONFIG_INVALID,
    Reason.STATE_UNUSABLE,
    Reason.STATE_LOCKED,
    Reason.GRANT_MISSING,
    Reason.GRANT_UNSAFE,
    Reason.GRANT_MALFORMED,
}
_CONVERGED = {Reason.CONVERGED, Reason.UP_TO_DATE}
_UNREACHABLE_PREFIXES = ("grant-", "tenancy-", "openbao-", "secret-")


def exit_code(reason: Reason) -> ExitCode:
    """The exit code that goes with a reason."""
    if reason in _CONVERGED:
        return ExitCode.CONVERGED
    if reason in _CONFIGURATION:
        return ExitCode.CONFIGURATION
    if reason is Reason.POLICY_REFUSED:
        return ExitCode.POLICY
    if reason.value.startswith(_UNREACHABLE_PREFIXES):
        return ExitCode.UNREACHABLE
    return ExitCode.DEPLOY_FAILED


class MonkyError(Exception):
    """An expected failure: `cause` says what is wrong, `remedy` what a person can do about it.

    Neither may hold a secret value. `retry_after` (seconds) is set where the other side said
    when to come back. `retryable` says whether trying again unchanged can help.
    """

    reason: Reason = Reason.INTERNAL
    retryable: bool = True

    def __init__(
        self,
        cause: str,
        *,
        remedy: str = "",
        reason: Reason | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy
        self.retry_after = retry_after
        if reason is not None:
            self.reason = reason

    def __str__(self) -> str:
        return f"{self.cause}; {self.remedy}" if self.remedy else self.cause

    @property
    def exit_code(self) -> ExitCode:
        """The exit code that goes with this error's reason."""
        return exit_code(self.reason)


class ConfigError(MonkyError):
    """The configuration file can't be read or isn't valid."""

    reason = Reason.CONFIG_INVALID
    retryable = False


class StateError(MonkyError):
    """The state directory or its database can't be used."""

    reason = Reason.STATE_UNUSABLE


class LockedError(StateError):
    """Another agent holds the state directory."""

    reason = Reason.STATE_LOCKED


class GrantError(MonkyError):
    """The grant file is missing, unsafe or unreadable, or the grant itself is refused."""

    reason = Reason.GRANT_MALFORMED


class TenancyError(MonkyError):
    """Tenancy can't be reached, refuses, or answers what can't be understood."""

    reason = Reason.TENANCY_ERROR


class OpenBaoError(MonkyError):
    """OpenBao can't be reached or refuses; the message names the entry and the path."""

    reason = Reason.OPENBAO_ERROR


class ManifestError(MonkyError):
    """The manifest isn't one that this agent can or may apply."""

    reason = Reason.MANIFEST_INVALID
    retryable = False


class EntryError(ManifestError):
    """An entry's value can't be carried; the message names the entry, never the value.

    Unlike the manifest, the value may be mended in OpenBao without a word to the agent.
    """

    reason = Reason.ENTRY_REFUSED
    retryable = True


class PolicyError(MonkyError):
    """The host's policy refuses the release; `refusals` are service, message and remedy of each."""

    reason = Reason.POLICY_REFUSED
    retryable = False

    def __init__(self, cause: str, refusals: Sequence[tuple[str, str, str]]) -> None:
        super().__init__(cause)
        self.refusals = tuple(refusals)


class FileError(MonkyError):
    """A file of the agent's own can't be read or written."""

    reason = Reason.STATE_UNUSABLE


class DockerConfigError(FileError):
    """DOCKER_CONFIG can't be made or written; nothing falls back to somebody's home."""

    reason = Reason.DOCKER_CONFIG_UNWRITABLE


class EngineError(MonkyError):
    """The Docker Engine can't be reached or answers with an error."""

    reason = Reason.ENGINE_UNREACHABLE


class ComposeError(MonkyError):
    """Compose is missing, too old, refuses the model, or fails without naming a service."""

    reason = Reason.COMPOSE_UNUSABLE
