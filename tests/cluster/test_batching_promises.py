"""What steps leave to prompts of lower classes, for the sake of streams and of who may come."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from cluster import expected
from cluster.pacing import LEAST, SHORTEST, Pace, StreamPace
from cluster.reports import NO_PREFILLING, Prefilling
from cluster.sequences import OVERTAKERS
from tests.cluster.paged_memory import assignment
from tests.cluster.slow_shard import chat, prompt_of, slow_step
from tests.cluster.toy_shard import MakeShard, ToyShard


def with_stream(shard: ToyShard, tpot_s: float | None) -> None:
    """A stream of the highest class runs, and prompts of all classes wait."""
    shard.batcher.admit(assignment("stream", (1, 2, 3), max_tokens=20, tpot_s=tpot_s))
    shard.step()


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


def test_nor_does_one_that_holds_them_back_for_who_may_come(roomy: ToyShard) -> None:
    with_prompts(roomy, rank=2)
    slow_steps(roomy, 1)
    assert roomy.batcher.drain_progress().prefilling.tokens == 400
    chat(roomy)
    slow_steps(roomy, 1)
    assert roomy.batcher.drain_progress().prefilling == NO_PREFILLING


def test_without_a_target_nobody_stands_back(make_shard: MakeShard) -> None:
    shard = make_shard(pages=200, budget=64)
    with_stream(shard, tpot_s=None)
    for number in range(8):
        shard.batcher.admit(assignment(f"p{number}", prompt_of(25, number + 1), rank=2))
    for _ in range(2):
        assert sum(slow_step(shard, took_s=9.0).values()) >= 60


def with_prompts(
    shard: ToyShard, rank: int, ttft_s: float | None = None, tpot_s: float | None = None
) -> None:
    """So many that steps are full of them."""
    for number in range(50):
        prompt = prompt_of(100, 1000 * number)
        one = assignment(
            f"p{number}", prompt, max_tokens=1, rank=rank, ttft_s=ttft_s, tpot_s=tpot_s
        )
        shard.batcher.admit(one)


def slow_steps(shard: ToyShard, count: int) -> list[int]:
    """The tokens of each."""
    return [sum(slow_step(shard, took_s=0.4).values()) for _ in range(count)]


@pytest.mark.parametrize(
    ("ttft_s", "rank", "own_ttft_s", "most"),
    [
        (1.6, 2, None, SHORTEST),
        (16.0, 2, None, 400),
        (None, 2, None, 400),
        (1.6, 0, None, 400),
        (1.6, 1, 3.2, 400),
    ],
)
def test_once_a_class_has_come_steps_with_prompts_of_lower_ones_are_short_for_who_comes_next(
    roomy: ToyShard, ttft_s: float | None, rank: int, own_ttft_s: float | None, most: int
) -> None:
    """Unless these are promised a first token themselves."""
    with_prompts(roomy, rank, own_ttft_s)
    assert slow_steps(roomy, 2) == [400, 400]
    chat(roomy, ttft_s=ttft_s)
    assert max(slow_steps(roomy, 11)) == most


def test_who_sent_nobody_for_long_is_not_expected_any_more(
    roomy: ToyShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expected, "EXPECTED_STEPS", 20)
    roomy.batcher.admit(assignment("stream", (1, 2, 3), max_tokens=17, rank=2))
    chat(roomy)
    for _ in range(18):  # in the first of which the stream stands aside
        roomy.step()
    assert [roomy.batcher.plan() for _ in range(20)] == 20 * [None], "a rest is no step"
    with_prompts(roomy, rank=2)
    assert slow_steps(roomy, 3) == [SHORTEST, SHORTEST, 400]


def test_of_the_classes_that_are_expected_the_lowest_rank_and_the_strictest_target_count() -> None:
    lately = expected.Expected()
    assert lately.promised() is None
    lately.came(0, 0.8)
    lately.came(1, 2.0)
    assert lately.promised() == (1, 0.8)
    lately.came(0, None)
    assert lately.promised() == (1, 2.0), "the newest tells what its class promises"


def test_beside_a_prompt_of_a_higher_class_lower_ones_get_what_it_leaves_or_the_least(
    roomy: ToyShard,
) -> None:
    chat(roomy)
    with_prompts(roomy, rank=2, tpot_s=9.0)
    slow_steps(roomy, 4)
    for tokens, left in ((28, SHORTEST - 28), (300, LEAST)):
        chat(roomy, tokens)
        step = slow_step(roomy, took_s=0.4)
        assert (step.pop("chat"), sum(step.values())) == (tokens, left)


@pytest.mark.parametrize(("bare_s", "beside"), [(0.04, range(LEAST, SHORTEST)), (0.2, [SHORTEST])])
def test_beside_a_stream_of_a_class_that_may_send_more_prompts_keep_within_both_bounds(
    roomy: ToyShard, bare_s: float, beside: Sequence[int]
) -> None:
    """A stream whose pace cannot be kept asks for nothing; who may come still gains."""
    stream = assignment("stream", (1, 2, 3), max_tokens=20, tpot_s=0.1, ttft_s=1.6)
    roomy.batcher.admit(stream)
    with_prompts(roomy, rank=2)
    steps = [slow_step(roomy, bare_s, token_s=0.001) for _ in range(24)]
    assert steps[19].pop("stream") == 1
    assert sum(steps[19].values()) in beside
    assert sum(steps[23].values()) == SHORTEST


def take(pace: Pace, took_s: float, tokens: int | None = None, higher: int = 0) -> int:
    """A step with all that lower classes may have, or so many tokens, beside `higher` ones, and a
    target of 0.1 s; what the next may hold."""
    step = pace.allowance()
    step.guard(0, 0.1)
    step.take(0, higher)
    step.take(1, step.left if tokens is None else tokens)
    pace.learn(step, took_s)
    return pace.allowance().tokens


def test_a_pace_follows_the_clock_within_its_bounds() -> None:
    pace = StreamPace(1024)
    allowed = take(pace, took_s=0.125)
    assert allowed == 819
    for _ in range(20):
        allowed = take(pace, took_s=0.01 + 0.002 * allowed)
        assert allowed >= LEAST
    assert allowed < 64
    for _ in range(20):
        allowed = take(pace, took_s=0.09)
    assert allowed == 1024


def test_one_slow_step_halves_the_allowance_at_most_whatever_it_held() -> None:
    assert take(StreamPace(1024), took_s=5.0, tokens=40) == 512


def test_streams_whose_target_bare_steps_miss_cost_the_others_nothing() -> None:
    pace, allowed = StreamPace(1024), 1024
    for _ in range(60):
        allowed = take(pace, took_s=0.3 + 0.0001 * allowed)
    assert allowed > 512


def test_for_who_may_come_steps_are_short_even_where_bare_ones_miss_the_target() -> None:
    pace = Pace(1024, SHORTEST)
    assert [take(pace, took_s=0.09) for _ in range(20)][-1] == 1024, "it begins with the least"
    allowed = 1024
    for _ in range(60):
        allowed = take(pace, took_s=0.3 + 0.0001 * allowed)
    assert allowed == SHORTEST


def test_a_step_that_held_less_than_it_might_teaches_no_more() -> None:
    pace = StreamPace(1024)
    take(pace, took_s=0.2)
    assert take(pace, took_s=0.01, tokens=10) == 512


@pytest.mark.parametrize("guarded", [0, math.inf])
def test_a_step_that_bound_nobody_teaches_nothing(guarded: float) -> None:
    pace = StreamPace(1024)
    take(pace, took_s=0.2)
    step = pace.allowance()
    step.guarded = guarded
    step.take(0, 1024)
    pace.learn(step, took_s=0.01)
    assert pace.allowance().tokens == 512


@pytest.mark.parametrize(("higher", "lower", "allowed"), [(40, 60, 80), (900, 32, 100)])
def test_a_step_that_higher_classes_make_long_is_not_laid_to_the_charge_of_lower_ones(
    higher: int, lower: int, allowed: int
) -> None:
    """What it held of all classes is what took the time: no less is known to take no longer."""
    pace = Pace(100, least=1)
    while pace.allowance().tokens < 100:
        take(pace, took_s=0.01)
    step = pace.allowance()
    step.guard(0, 0.1)
    step.take(0, higher)
    assert step.allow(1, 1024) == lower
    assert take(pace, took_s=0.125, higher=higher) == allowed
