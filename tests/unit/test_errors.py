"""Every reason has its exit code, and an error reads as one clear sentence."""

import inspect

import pytest

from monky_deployd import errors
from monky_deployd.errors import (
    ConfigError,
    EntryError,
    ExitCode,
    ManifestError,
    MonkyError,
    PolicyError,
    Reason,
    TenancyError,
    exit_code,
)

EXIT_CODES = {
    ExitCode.CONVERGED: {Reason.CONVERGED, Reason.UP_TO_DATE},
    ExitCode.DEPLOY_FAILED: {
        Reason.MANIFEST_INVALID,
        Reason.MANIFEST_STALE,
        Reason.ENTRY_REFUSED,
        Reason.DOCKER_CONFIG_UNWRITABLE,
        Reason.DISK,
        Reason.ENGINE_UNREACHABLE,
        Reason.COMPOSE_UNUSABLE,
        Reason.COMPOSE_INVALID,
        Reason.PULL_FAILED,
        Reason.UP_FAILED,
        Reason.UNHEALTHY,
        Reason.ROLLED_BACK,
        Reason.ROLLBACK_FAILED,
        Reason.STOPPED,
        Reason.INTERRUPTED,
        Reason.INTERNAL,
    },
    ExitCode.CONFIGURATION: {
        Reason.CONFIG_INVALID,
        Reason.STATE_UNUSABLE,
        Reason.STATE_LOCKED,
        Reason.GRANT_MISSING,
        Reason.GRANT_UNSAFE,
        Reason.GRANT_MALFORMED,
    },
    ExitCode.UNREACHABLE: {
        Reason.GRANT_EXPIRED,
        Reason.GRANT_NOT_YET_VALID,
        Reason.GRANT_SUPERSEDED,
        Reason.GRANT_REFUSED,
        Reason.TENANCY_UNREACHABLE,
        Reason.TENANCY_FORBIDDEN,
        Reason.TENANCY_UNKNOWN_ENVIRONMENT,
        Reason.TENANCY_DECOMMISSIONED,
        Reason.TENANCY_BUSY,
        Reason.TENANCY_ERROR,
        Reason.OPENBAO_UNREACHABLE,
        Reason.OPENBAO_SEALED,
        Reason.OPENBAO_LOGIN_REFUSED,
        Reason.OPENBAO_FORBIDDEN,
        Reason.OPENBAO_ERROR,
        Reason.SECRET_MISSING,
        Reason.SECRET_DELETED,
        Reason.SECRET_DESTROYED,
    },
    ExitCode.POLICY: {Reason.POLICY_REFUSED},
}
KINDS = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, MonkyError)
]


def test_every_reason_has_the_exit_code_that_was_meant() -> None:
    found = {code: {r for r in Reason if exit_code(r) is code} for code in ExitCode}
    assert found == EXIT_CODES


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_error_has_a_reason_of_its_own_and_a_failing_exit_code(
    kind: type[MonkyError],
) -> None:
    assert exit_code(kind.reason) is not ExitCode.CONVERGED
    assert kind is MonkyError or kind.reason is not Reason.INTERNAL


def test_an_error_reads_as_cause_and_remedy() -> None:
    assert str(MonkyError("the disk is full")) == "the disk is full"
    assert str(MonkyError("the disk is full", remedy="free some")) == "the disk is full; free some"


def test_a_reason_given_to_one_error_is_that_errors_alone() -> None:
    error = TenancyError("busy", reason=Reason.TENANCY_BUSY, retry_after=7.5)
    assert (error.reason, error.retry_after) == (Reason.TENANCY_BUSY, 7.5)
    assert TenancyError("other").reason is Reason.TENANCY_ERROR
    assert error.exit_code is ExitCode.UNREACHABLE


def test_only_what_may_mend_itself_is_tried_again() -> None:
    retryable = {kind for kind in KINDS if kind.retryable}
    assert set(KINDS) - retryable == {ConfigError, ManifestError, PolicyError}
    # Its value may be mended in OpenBao while the manifest stays.
    assert EntryError in retryable


def test_a_refusal_by_the_policy_keeps_each_refusal() -> None:
    error = PolicyError("refused", [("web", "no privileged", "drop it")])
    assert (error.refusals, error.exit_code) == (
        (("web", "no privileged", "drop it"),),
        ExitCode.POLICY,
    )
