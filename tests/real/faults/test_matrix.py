"""Every fault in every phase ends converged: nothing lost, nothing doubled, what runs untouched."""

import pytest

from tests.real.faults import (
    clock_faults,
    disk_faults,
    engine_faults,
    openbao_faults,
    process_faults,
    registry_faults,
    tenancy_faults,
)
from tests.real.faults.matrix import Matrix

pytestmark = pytest.mark.real

# Those that wait longest come first, so that nothing waits for them at the end.
GROUPS = [
    *openbao_faults.GROUPS,
    *engine_faults.GROUPS,
    *registry_faults.GROUPS,
    *tenancy_faults.GROUPS,
    *disk_faults.GROUPS,
    *clock_faults.GROUPS,
    *process_faults.GROUPS,
]


NAMES = [case.name for group in GROUPS for case in group.cases]


def test_the_matrix_is_large_enough_and_names_each_case_once() -> None:
    assert len(NAMES) >= 60
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_ends_converged(matrix: Matrix, name: str) -> None:
    result = matrix.result(name)
    assert not result.error, result.error
