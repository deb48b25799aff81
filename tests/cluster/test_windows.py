"""The gathering window: nothing while idle, bounded while busy, closed early by a crowd."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.windows import ENOUGH, PERIOD_S, GatheringWindow


def test_while_a_shard_is_idle_nobody_is_held() -> None:
    window = GatheringWindow(0.01, 0.05)
    window.arrive(wait_s=0.0, now=1.0)
    assert not window.holds(1.0)


def test_where_few_arrive_nobody_is_held() -> None:
    window = GatheringWindow(0.0, 0.05)
    for second in range(5):
        window.arrive(wait_s=1.0, now=float(second))
        assert not window.holds(float(second))


def crowd(window: GatheringWindow, wait_s: float = 1.0, per_s: int = 100, count: int = 50) -> float:
    """When the last of `count` arrived."""
    for number in range(count):
        window.arrive(wait_s, number / per_s)
    return (count - 1) / per_s


def test_a_window_is_no_longer_than_the_wait_it_is_a_part_of_nor_than_its_bounds() -> None:
    window = GatheringWindow(0.01, 0.05)
    assert window.length_s(0.0) == 0.0
    assert window.length_s(0.001) == 0.01
    assert 0.0 < window.length_s(0.06) < 0.05
    assert window.length_s(100.0) == 0.05


def test_a_window_closes_once_as_many_have_gathered_as_arrive_in_the_longest() -> None:
    window = GatheringWindow(0.0, 0.05)
    now = crowd(window, per_s=100)
    assert window.cap in (4, 5)
    held = 0
    for number in range(1, 100):
        window.arrive(1.0, now + number * 1e-6)
        held += window.holds(now + number * 1e-6)
    assert 0 < held < 99


@given(waits=st.lists(st.floats(0, 10), min_size=1, max_size=50), gap=st.floats(0, 0.1))
def test_no_window_is_ever_open_for_longer_than_its_bound(waits: list[float], gap: float) -> None:
    window, now = GatheringWindow(0.0, 0.05), 0.0
    for wait_s in waits:
        now += gap
        window.arrive(wait_s, now)
        assert window.closes_at <= now + 0.05
        assert not window.holds(now + 0.05)


def tell(window: GatheringWindow, period: int, ttft_s: float) -> float:
    """One period of first outputs that took `ttft_s`; the window for a long wait after it."""
    for number in range(ENOUGH + 5):
        window.started(ttft_s, period * 2 * PERIOD_S + number / 10)
    window.started(ttft_s, period * 2 * PERIOD_S + PERIOD_S)
    return window.length_s(0.06)


def test_the_window_grows_while_it_pays_and_shrinks_when_it_does_not() -> None:
    window = GatheringWindow(0.0, 1.0)
    first = tell(window, 1, ttft_s=0.5)
    second = tell(window, 2, ttft_s=0.4)
    assert second > first
    assert tell(window, 3, ttft_s=0.8) < second
