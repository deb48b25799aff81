"""Retry-After and the rate it is computed from."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.admission import MAX_RETRY_AFTER_S, MIN_RETRY_AFTER_S, DrainRate, retry_after_s


@pytest.mark.parametrize(("per_s", "seconds"), [(1, 3), (1, 60), (20, 2), (20, 40)])
def test_a_steady_drain_is_measured_truly_early_and_late(per_s: int, seconds: int) -> None:
    rate = DrainRate()
    for n in range(per_s * seconds):
        rate.record(n / per_s)
    assert rate.per_second(float(seconds)) == pytest.approx(per_s, rel=0.1)


def test_a_drain_that_stops_is_forgotten() -> None:
    rate = DrainRate(tau_s=10)
    for n in range(100):
        rate.record(n / 10)
    assert rate.per_second(10 + 50) < 0.1


def test_without_any_event_the_rate_is_nothing() -> None:
    assert DrainRate().per_second(5.0) == 0.0


def test_retry_after_is_when_those_ahead_will_have_left() -> None:
    assert retry_after_s(ahead=30, drain_per_s=4.0) == 8.0


@given(ahead=st.integers(0, 10**6), drain=st.floats(0, 1e6))
@settings(derandomize=True, deadline=None)
def test_retry_after_stays_within_its_bounds(ahead: int, drain: float) -> None:
    assert MIN_RETRY_AFTER_S <= retry_after_s(ahead, drain) <= MAX_RETRY_AFTER_S
