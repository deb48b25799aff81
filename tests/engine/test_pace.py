"""A step's number of threads: the one that was fastest, whatever it is and whenever it changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from actors.engine.pace import JAM, MANY, MOST_PAUSE, TRY_AFTER, ThreadPace

ROWS = 16


def drive(
    pace: ThreadPace, steps: int, seconds: Callable[[int], float], most: int = 8
) -> Counter[int]:
    """How often each number was suggested, if `n` threads take `seconds(n)`."""
    used: Counter[int] = Counter()
    for _ in range(steps):
        threads = pace.threads(ROWS, most)
        assert 1 <= threads <= most
        pace.note(ROWS, threads, seconds(threads))
        used[threads] += 1
    return used


@pytest.mark.parametrize("best", [1, 2, 4, 8])
def test_the_fastest_number_is_used_nearly_always(best: int) -> None:
    used = drive(ThreadPace(), 1000, lambda threads: 0.02 + 0.01 * abs(threads - best))
    assert used[best] >= 1000 * (1 - 1 / TRY_AFTER) - 3 * TRY_AFTER


def test_what_is_tried_is_never_far_from_the_best() -> None:
    used = drive(ThreadPace(), 1000, lambda threads: 1 / threads, most=64)
    assert set(used) == {64, 32}


def test_a_first_step_that_is_cold_does_not_count() -> None:
    pace = ThreadPace()
    pace.note(ROWS, pace.threads(ROWS, 2), 60.0)
    assert drive(pace, 200, lambda threads: 0.1 / threads, most=2)[2] > 180


def test_what_becomes_fastest_later_is_found() -> None:
    pace = ThreadPace()
    drive(pace, 500, lambda threads: 0.03 / threads)
    drive(pace, 20 * MOST_PAUSE, lambda threads: 0.03 * threads)
    used = drive(pace, 500, lambda threads: 0.03 * threads)
    assert used[1] > 450


def test_one_step_that_was_put_aside_changes_nothing() -> None:
    pace = ThreadPace()
    drive(pace, 100, lambda threads: 0.1 / threads)
    pace.note(ROWS, 8, 60.0)
    used = drive(pace, 200, lambda threads: 0.1 / threads)
    assert used[8] > 180


def test_sizes_are_learned_apart() -> None:
    pace = ThreadPace()
    for _ in range(300):
        for rows, best in ((1, 1), (64, 8)):
            threads = pace.threads(rows, 8)
            pace.note(rows, threads, 0.02 + 0.01 * abs(threads - best))
    assert pace.threads(1, 8) == 1
    assert pace.threads(64, 8) == 8


def test_fewer_threads_have_to_be_much_faster() -> None:
    used = drive(ThreadPace(), 1000, lambda threads: 0.9 if threads < 8 else 1.0)
    assert used[8] > 980


def test_many_rows_are_computed_by_all_threads() -> None:
    pace = ThreadPace()
    for _ in range(100):
        assert pace.threads(MANY, 8) == 8
        pace.note(MANY, 8, 1.0)


def test_a_share_that_shrinks_is_obeyed_at_once_and_one_that_grows_is_tried() -> None:
    pace = ThreadPace()
    drive(pace, 50, lambda threads: 1 / threads, most=4)
    assert set(drive(pace, 50, lambda threads: 1 / threads, most=2)) == {1, 2}
    assert drive(pace, 50, lambda threads: 1 / threads, most=6)[6] > 40


def test_a_single_thread_is_no_choice() -> None:
    assert drive(ThreadPace(), 60, lambda _: 1.0, most=1) == {1: 60}


def quiet(threads: int) -> float:
    return 0.04 / threads


def jammed(threads: int) -> float:
    """Both cores are busy: two threads wait for each other at each product."""
    return 2.0 if threads > 1 else 0.06


def step(pace: ThreadPace, rows: int, seconds: Callable[[int], float], most: int = 2) -> int:
    threads = pace.threads(rows, most)
    pace.note(rows, threads, seconds(threads))
    return threads


def test_in_a_jam_one_thread_is_used_within_a_few_steps() -> None:
    pace = ThreadPace()
    drive(pace, 20, quiet, most=2)
    assert [step(pace, ROWS, jammed) for _ in range(8)] == [2] * JAM + [1] * 5
    assert drive(pace, 200, jammed, most=2)[2] <= 4  # it is seen now and then whether it is over


def test_what_a_jam_teaches_holds_for_all_sizes_those_too_that_come_later() -> None:
    pace = ThreadPace()
    for _ in range(10):
        step(pace, 1, quiet)
        step(pace, 64, quiet)
    for _ in range(JAM + 2):
        step(pace, 1, jammed)
    assert [step(pace, rows, jammed) for rows in (64, 4, 16)] == [1, 1, 1]
    for _ in range(TRY_AFTER + 1):
        step(pace, 1, quiet)
    assert [step(pace, rows, quiet) for rows in (1, 64, 4, 16)] == [2, 2, 2, 2]


def test_all_threads_are_back_soon_after_a_jam_however_long_it_was() -> None:
    pace = ThreadPace()
    drive(pace, 20, quiet, most=2)
    drive(pace, 2000, jammed, most=2)
    assert drive(pace, 2 * MOST_PAUSE, quiet, most=2)[2] >= MOST_PAUSE - 2


def test_a_machine_on_which_everything_is_slow_is_not_in_a_jam() -> None:
    pace = ThreadPace()
    drive(pace, 20, quiet, most=2)
    used = drive(pace, TRY_AFTER, lambda threads: 50 * quiet(threads), most=2)
    assert used[1] == 2  # tried, and found no better


@pytest.mark.parametrize("factor", [3.0, 30.0, 300.0])
def test_slow_steps_between_others_are_no_jam(factor: float) -> None:
    """As where another process takes a core now and then: nothing is tried for it out of turn."""
    pace, lasting = ThreadPace(), [1.0] + [factor] * (JAM - 1)
    drive(pace, 5, quiet)
    for turn in range(TRY_AFTER - 5):
        threads = pace.threads(ROWS, 8)
        assert threads == 8
        pace.note(ROWS, threads, quiet(threads) * lasting[turn % JAM])


def test_a_share_that_shrinks_in_a_jam_is_obeyed() -> None:
    pace = ThreadPace()
    drive(pace, 20, quiet, most=4)
    drive(pace, JAM + 2, jammed, most=4)
    drive(pace, 2 * TRY_AFTER, quiet, most=2)  # `drive` looks that no more are used
