"""Retry-After, and the rate that predictions are made from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.admission import MAX_RETRY_AFTER_S, MIN_RETRY_AFTER_S, retry_after_s
from cluster.rates import BusyRate


@pytest.mark.parametrize(("per_s", "seconds"), [(1, 3), (1, 60), (20, 2), (20, 40)])
def test_a_steady_rate_is_measured_truly_early_and_late(per_s: int, seconds: int) -> None:
    rate = BusyRate()
    for _ in range(per_s * seconds):
        rate.record(7, 1 / per_s)
    assert rate.per_second == pytest.approx(7 * per_s)


def test_what_was_long_ago_weighs_little() -> None:
    rate = BusyRate(tau_s=10)
    for per_s in (100, 10):
        for _ in range(50):
            rate.record(per_s, 1.0)
    assert rate.per_second == pytest.approx(10, rel=0.1)


def test_nothing_measured_is_no_rate() -> None:
    rate = BusyRate()
    assert rate.per_second is None
    for _ in range(3):
        rate.record(10, 1e-300)
    assert rate.per_second is None


def test_retry_after_is_when_those_ahead_will_have_left() -> None:
    assert retry_after_s(7.5) == 8.0
    assert retry_after_s(None) == MAX_RETRY_AFTER_S


@given(predicted=st.floats(0, allow_nan=False))
def test_retry_after_stays_within_its_bounds(predicted: float) -> None:
    assert MIN_RETRY_AFTER_S <= retry_after_s(predicted) <= MAX_RETRY_AFTER_S
