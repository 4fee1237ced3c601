"""How long is waited: growing, bounded, and never in step with others."""

import random

import pytest

from monky_deployd.domain.backoff import contact_delay, release_delay, retry_after_delay


def lowest(low: float, high: float) -> float:
    return low


def highest(low: float, high: float) -> float:
    return high


@pytest.mark.parametrize(
    ("failures", "ceiling"),
    [(1, 2), (2, 4), (3, 8), (8, 256), (9, 300), (50, 300), (10**9, 300)],
)
def test_a_contact_is_tried_again_after_a_second_to_five_minutes(
    failures: int, ceiling: float
) -> None:
    assert contact_delay(failures, lowest) == 1
    assert contact_delay(failures, highest) == ceiling


@pytest.mark.parametrize(
    ("failures", "delay"),
    [(0, 10), (1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 300), (7, 300), (10**9, 300)],
)
def test_a_release_is_tried_again_after_ten_seconds_doubling_to_three_hundred(
    failures: int, delay: float
) -> None:
    assert release_delay(failures, lowest) == pytest.approx(delay * 0.9)
    assert release_delay(failures, highest) == pytest.approx(delay * 1.1)


def test_nobody_comes_back_earlier_than_asked() -> None:
    assert retry_after_delay(60, lowest) == 60
    assert retry_after_delay(60, highest) == pytest.approx(66)


def test_two_agents_do_not_come_back_together() -> None:
    source = random.Random(1)
    for delay in (contact_delay, release_delay, retry_after_delay):
        assert len({delay(5, source.uniform) for _ in range(20)}) == 20
