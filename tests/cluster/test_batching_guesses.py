"""Steps with guesses in them: the same output in fewer steps, and not a page more."""

from __future__ import annotations

import pytest

from cluster.errors import LedgerBroken
from cluster.messages import FinishReason, TokenLogprob
from cluster.steps import StepPlan, StepResult
from tests.cluster.paged_memory import assignment, next_token
from tests.cluster.toy_shard import MakeShard, ToyShard, expected, prompt_of

LONG = 16
LOOP = (7, 8, 9, 7, 8, 9, 7)
SEEDS = 60


def guessing(make_shard: MakeShard, **options: int) -> ToyShard:
    return make_shard(guesses=4, **options)


def test_output_is_the_same_and_comes_in_fewer_steps(make_shard: MakeShard) -> None:
    """The toy model has five tokens: many guesses are right, and many are wrong."""
    shard = guessing(make_shard, pages=512)
    for seed in range(SEEDS):
        shard.batcher.admit(assignment(f"r{seed}", prompt_of(3 + seed % 7, seed), max_tokens=LONG))
    shard.finish()
    for seed in range(SEEDS):
        assert shard.output(f"r{seed}") == expected(prompt_of(3 + seed % 7, seed), max_tokens=LONG)
    stats = shard.batcher.stats()
    assert 0 < stats.guesses_right < stats.tokens_guessed
    assert max(len(delta.tokens) for delta in shard.deltas) > 1
    assert stats.tokens_sampled == SEEDS * LONG


def sampled(*tokens: int) -> StepResult:
    return StepResult((tuple(TokenLogprob(token, 0.0) for token in tokens),))


def guessed_plan(shard: ToyShard, stop: tuple[int, ...] = ()) -> StepPlan:
    """Of the one stream: it said 7, 8, 9 again and again, so 7 is guessed."""
    shard.batcher.admit(assignment("a", LOOP, max_tokens=LONG, stop=stop))
    shard.batcher.settle(shard.plan(), sampled(8))
    shard.batcher.settle(shard.plan(), sampled(9))
    plan = shard.plan()
    assert plan.chunks[0].guesses == (7,)
    return plan


def test_what_comes_behind_a_stop_token_is_dropped(make_shard: MakeShard) -> None:
    shard = guessing(make_shard)
    (delta,) = shard.batcher.settle(guessed_plan(shard, stop=(7,)), sampled(7, 3))
    assert (delta.tokens, delta.finish) == ((7,), FinishReason.STOP)
    assert not shard.batcher.has_work


def test_a_right_guess_brings_the_token_after_it_and_a_wrong_one_nothing(
    make_shard: MakeShard,
) -> None:
    for given, kept in (((7, 3), (7, 3)), ((4, 3), (4,))):
        shard = guessing(make_shard)
        (delta,) = shard.batcher.settle(guessed_plan(shard), sampled(*given))
        assert delta.tokens == kept


@pytest.mark.parametrize("given", [(), (7,), (7, 3, 5)])
def test_a_result_of_another_width_is_refused(
    make_shard: MakeShard, given: tuple[int, ...]
) -> None:
    shard = guessing(make_shard)
    plan = guessed_plan(shard)
    with pytest.raises(LedgerBroken):
        shard.batcher.settle(plan, sampled(*given))


def test_no_guess_goes_beyond_the_context(make_shard: MakeShard) -> None:
    shard = guessing(make_shard, context=len(LOOP) + 3)
    shard.batcher.admit(assignment("a", LOOP, max_tokens=LONG))
    shard.batcher.settle(shard.plan(), sampled(8))
    shard.batcher.settle(shard.plan(), sampled(9))
    assert shard.plan().chunks[0].guesses == ()


def test_prompts_have_all_that_decodes_leave_before_anything_is_guessed(
    make_shard: MakeShard,
) -> None:
    shard = guessing(make_shard, budget=8)
    shard.batcher.admit(assignment("a", LOOP, max_tokens=LONG))
    shard.batcher.settle(shard.plan(), sampled(8))
    shard.batcher.settle(shard.plan(), sampled(9))
    shard.batcher.admit(assignment("b", prompt_of(20), max_tokens=1))
    decode, prompt = shard.plan().chunks
    assert (decode.guesses, prompt.count) == ((), 7)


def test_no_guess_goes_beyond_the_tokens_that_are_wanted(make_shard: MakeShard) -> None:
    shard = guessing(make_shard)
    shard.batcher.admit(assignment("a", (1, 1, 1, 1), max_tokens=3))
    while shard.batcher.has_work:
        plan = shard.plan()
        (chunk,) = plan.chunks
        assert chunk.sequence.output_len + 1 + len(chunk.guesses) <= 3
        shard.settle(plan)


def test_guesses_take_no_page_that_decoding_alone_would_not(make_shard: MakeShard) -> None:
    plain, shard = make_shard(), guessing(make_shard)
    used: list[dict[int, int]] = []
    for one in (plain, shard):
        one.batcher.admit(assignment("a", prompt_of(5), max_tokens=LONG))
        pages = {}
        while one.batcher.has_work:
            plan = one.plan()
            pages[plan.chunks[0].sequence.computed] = one.pool.used
            one.settle(plan)
        used.append(pages)
    assert used[1].items() <= used[0].items()


def test_guesses_leave_the_budget_to_other_decodes(make_shard: MakeShard) -> None:
    shard = guessing(make_shard, budget=4)
    for seed in range(4):
        shard.batcher.admit(assignment(f"r{seed}", (1, 1), max_tokens=LONG))
    shard.step()
    shard.step()
    assert {name for name, _, _ in shard.step()} == {"r0", "r1", "r2", "r3"}
    assert all(not chunk.guesses for chunk in shard.plan().chunks)


def test_the_first_token_comes_alone() -> None:
    shard = ToyShard(guesses=4)
    prompt = (1, 2, 1, 2, 1, 2)
    shard.batcher.admit(assignment("a", prompt, max_tokens=LONG, choices=2))
    shard.finish()
    for choice in (0, 1):
        assert shard.first_delta("a", choice).tokens == (next_token(prompt, choice),)
