"""Percentiles of durations: accurate, recent, bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.measures import ACCURACY, RecentSeconds
from cluster.stats import Percentiles


@given(seconds=st.lists(st.floats(0.001, 1000), min_size=1, max_size=200))
def test_a_percentile_is_as_near_as_promised(seconds: list[float]) -> None:
    recent = RecentSeconds()
    for each in seconds:
        recent.record(each, now=1.0)
    ranked = sorted(seconds)
    told = recent.percentiles(now=1.0)
    assert told.count == len(seconds)
    for share, value in ((0.5, told.p50), (0.95, told.p95), (0.99, told.p99)):
        true = ranked[-int(-share * len(ranked) // 1) - 1]
        assert value == pytest.approx(true, rel=ACCURACY * 1.01)


def test_what_is_long_ago_does_not_count() -> None:
    recent = RecentSeconds(span_s=60)
    recent.record(9.0, now=0.0)
    recent.record(1.0, now=70.0)
    assert recent.percentiles(now=100.0).count == 2
    assert recent.percentiles(now=130.0).count == 1
    assert recent.percentiles(now=1000.0) == Percentiles()


def test_durations_of_any_size_take_bounded_memory() -> None:
    recent = RecentSeconds()
    for power in range(-300, 300):
        recent.record(10.0**power, now=0.0)
    assert len(recent._young) <= 210
