"""Classes that meet in one shard: who goes first, for how long, and what streams are spared."""

from __future__ import annotations

import pytest

from cluster.pacing import LEAST, Pace
from cluster.reports import Prefilling
from cluster.sequences import OVERTAKERS, place_of
from tests.cluster.paged_memory import assignment
from tests.cluster.toy_shard import MakeShard, ToyShard


def prompt_of(length: int, first: int) -> tuple[int, ...]:
    return tuple(range(first, first + length))


def names(shard: ToyShard) -> list[str]:
    return [name for name, _, _ in shard.step()]


def test_a_prompt_of_a_higher_class_goes_before_the_rest_of_a_lower_ones(
    make_shard: MakeShard,
) -> None:
    shard = make_shard(budget=8)
    shard.batcher.admit(assignment("batch", prompt_of(20, 1), rank=2))
    assert shard.step() == [("batch", 0, 8)]
    shard.batcher.admit(assignment("chat", prompt_of(6, 2)))
    assert shard.step() == [("chat", 0, 6), ("batch", 0, 2)]


def test_of_those_that_wait_the_higher_class_is_let_in_first(make_shard: MakeShard) -> None:
    shard = make_shard(seqs=1)
    for name, rank in (("running", 0), ("batch", 2), ("chat", 0)):
        shard.batcher.admit(assignment(name, prompt_of(3, rank + 1), max_tokens=2, rank=rank))
    order = [name for _ in range(6) for name in names(shard)]
    assert order == ["running"] * 2 + ["chat"] * 2 + ["batch"] * 2


def test_a_lower_class_is_overtaken_by_so_many_later_arrivals_and_no_more() -> None:
    batch = place_of(arrival=7, rank=1, choice=0)
    later = [place_of(7 + number, 0, 0) for number in range(1, 2 * OVERTAKERS)]
    assert sum(one < batch for one in later) == OVERTAKERS - 1


def test_the_newest_of_the_lowest_class_is_preempted(make_shard: MakeShard) -> None:
    shard = make_shard(pages=9)
    for name, rank in (("short", 0), ("older batch", 2), ("newer batch", 2), ("newest", 1)):
        length = 11 if name == "short" else 7
        shard.batcher.admit(assignment(name, prompt_of(length, rank + 3), max_tokens=9, rank=rank))
    shard.step()
    while not shard.batcher.stats().preemptions:
        running = names(shard)
    assert "newer batch" not in running
    assert {"short", "older batch", "newest"} >= set(running)


def with_stream(shard: ToyShard, tpot_s: float | None) -> None:
    """A stream of the highest class runs, and prompts of all classes wait."""
    shard.batcher.admit(assignment("stream", (1, 2, 3), max_tokens=20, tpot_s=tpot_s))
    shard.step()


def slow_step(shard: ToyShard, took_s: float) -> dict[str, int]:
    """Its tokens by request."""
    plan = shard.plan()
    shard.batcher.settle(plan, shard.memory.compute(plan), took_s)
    return {chunk.sequence.request.request_id: chunk.count for chunk in plan.chunks}


@pytest.mark.parametrize(("rank", "second"), [(0, 64 - 1), (1, 32)])
def test_beside_a_stream_that_lost_its_pace_prompts_of_lower_classes_get_less_of_a_step(
    make_shard: MakeShard, rank: int, second: int
) -> None:
    shard = make_shard(pages=200, budget=64)
    with_stream(shard, tpot_s=0.1)
    for number in range(8):
        shard.batcher.admit(assignment(f"p{number}", prompt_of(25, number + 1), rank=rank))
    assert sum(slow_step(shard, took_s=0.3).values()) == 64
    tokens = slow_step(shard, took_s=0.1)
    prompts = sum(count for name, count in tokens.items() if count > 1)
    assert prompts <= second
    assert tokens["stream"] == 1


def test_who_stands_back_in_line_is_overtaken_by_higher_classes_and_by_nobody_else(
    make_shard: MakeShard,
) -> None:
    shard = make_shard(pages=200, seqs=16, budget=64)
    with_stream(shard, tpot_s=0.1)
    for number in range(8):
        shard.batcher.admit(assignment(f"p{number}", prompt_of(25, number + 1), rank=1))
    shard.batcher.admit(assignment("a token", (9,), rank=1))
    slow_step(shard, took_s=0.3)
    for _ in range(OVERTAKERS + 1):  # so many that batch stands before what comes now
        shard.batcher.admit(assignment("gone", prompt_of(3, 1)))
        shard.batcher.cancel("gone")
    shard.batcher.admit(assignment("chat", prompt_of(6, 50)))
    prompts = {name: count for name, count in slow_step(shard, took_s=0.1).items() if count > 1}
    assert prompts == {"p2": 12, "p3": 20, "chat": 6}


def test_who_lacks_pages_is_not_overtaken_where_the_allowance_is_spent_after_it_failed(
    make_shard: MakeShard,
) -> None:
    shard = make_shard(pages=40, budget=64, context=160)
    with_stream(shard, tpot_s=0.1)
    shard.batcher.admit(assignment("batch", prompt_of(120, 1), rank=2))
    slow_step(shard, took_s=0.3)
    shard.batcher.admit(assignment("short of pages", prompt_of(100, 2), rank=1))
    for _ in range(OVERTAKERS + 1):
        shard.batcher.admit(assignment("gone", prompt_of(3, 1)))
        shard.batcher.cancel("gone")
    shard.batcher.admit(assignment("chat", prompt_of(6, 50)))
    assert slow_step(shard, took_s=0.1) == {"stream": 1, "batch": 32}


def test_nobody_starts_in_a_step_that_preempts(make_shard: MakeShard) -> None:
    shard = make_shard(pages=9)
    for name, rank in (("first", 0), ("batch", 1)):
        shard.batcher.admit(assignment(name, prompt_of(14, rank + 1), max_tokens=9, rank=rank))
    shard.step()
    shard.batcher.admit(assignment("chat", prompt_of(3, 9)))
    while not shard.batcher.stats().preemptions:
        running = names(shard)
    assert running == ["first"]


def test_a_step_that_waits_for_pages_does_not_tell_how_fast_prompts_are_computed(
    make_shard: MakeShard,
) -> None:
    shard = make_shard(pages=9, slots=20)
    for first in (1, 2):
        shard.batcher.admit(assignment(f"p{first}", prompt_of(25, first), max_tokens=2))
        shard.finish()
    shard.batcher.admit(assignment("again", prompt_of(25, 1), max_tokens=2))
    plan = shard.plan()
    assert plan.loads
    shard.batcher.settle(plan, shard.memory.compute(plan), 9.0)
    assert shard.batcher.drain_progress().prefilling == Prefilling()


def test_a_step_that_holds_prompts_back_does_not_tell_how_fast_they_are_computed(
    make_shard: MakeShard,
) -> None:
    shard = make_shard(pages=200, budget=64)
    with_stream(shard, tpot_s=0.1)
    shard.batcher.drain_progress()
    for number in range(4):
        shard.batcher.admit(assignment(f"p{number}", prompt_of(25, number + 1), rank=1))
    assert sum(slow_step(shard, took_s=0.3).values()) == 64
    assert sum(slow_step(shard, took_s=0.1).values()) == 3 + 32
    assert shard.batcher.drain_progress().prefilling == Prefilling(63, 0.3)
    assert shard.batcher.drain_progress().prefilling == Prefilling()


def test_without_a_target_nobody_stands_back(make_shard: MakeShard) -> None:
    shard = make_shard(pages=200, budget=64)
    with_stream(shard, tpot_s=None)
    for number in range(8):
        shard.batcher.admit(assignment(f"p{number}", prompt_of(25, number + 1), rank=2))
    for _ in range(2):
        assert sum(slow_step(shard, took_s=9.0).values()) >= 60


def test_a_pace_follows_the_clock_within_its_bounds() -> None:
    pace = Pace(1024)
    pace.record(1024, target_s=0.1, took_s=0.125)
    assert pace.allowance().tokens == 819
    for _ in range(20):
        pace.record(
            pace.allowance().tokens, target_s=0.1, took_s=0.01 + 0.002 * pace.allowance().tokens
        )
        assert pace.allowance().tokens >= LEAST
    assert pace.allowance().tokens < 64
    for _ in range(20):
        pace.record(pace.allowance().tokens, target_s=0.1, took_s=0.09)
    assert pace.allowance().tokens == 1024


def test_one_slow_step_halves_the_allowance_at_most_whatever_it_held() -> None:
    pace = Pace(1024)
    pace.record(40, target_s=0.1, took_s=5.0)
    assert pace.allowance().tokens == 512


def test_a_target_that_bare_steps_miss_costs_the_others_nothing() -> None:
    pace = Pace(1024)
    for _ in range(60):
        pace.record(
            pace.allowance().tokens, target_s=0.1, took_s=0.3 + 0.0001 * pace.allowance().tokens
        )
    assert pace.allowance().tokens > 512


def test_a_step_that_held_less_than_it_might_teaches_no_more() -> None:
    pace = Pace(1024)
    pace.record(1024, target_s=0.1, took_s=0.2)
    pace.record(10, target_s=0.1, took_s=0.01)
    assert pace.allowance().tokens == 512
