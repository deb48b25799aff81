"""Continuous batching in the words of the domain: steps, ends, cancels, and what is told."""

from __future__ import annotations

import pytest

from cluster.batching import Progress
from cluster.errors import (
    ConfigError,
    ContextTooLong,
    IllegalTransition,
    InvalidRequest,
    LedgerBroken,
)
from cluster.messages import FinishReason
from cluster.reports import HeldRequest
from cluster.steps import StepResult
from tests.cluster.paged_memory import assignment, next_token, prompt_scores
from tests.cluster.toy_shard import MAX_MODEL_LEN, MakeShard, ToyShard, expected, prompt_of

# --- which tokens a step holds ---


def test_a_prompt_is_computed_in_one_step_and_then_token_by_token(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", prompt_of(6), max_tokens=3))
    assert [shard.step() for _ in range(3)] == [[("a", 0, 6)], [("a", 0, 1)], [("a", 0, 1)]]
    assert not shard.batcher.has_work
    assert shard.batcher.plan() is None
    assert shard.output("a") == expected(prompt_of(6), max_tokens=3)


def test_a_prompt_over_budget_is_computed_in_chunks(make_shard: MakeShard) -> None:
    shard = make_shard(budget=4)
    shard.batcher.admit(assignment("a", prompt_of(10), max_tokens=1))
    assert [shard.step() for _ in range(3)] == [[("a", 0, 4)], [("a", 0, 4)], [("a", 0, 2)]]


def test_only_the_chunk_that_ends_the_prompt_samples(make_shard: MakeShard) -> None:
    shard = make_shard(budget=4)
    shard.batcher.admit(assignment("a", prompt_of(6)))
    first = shard.plan()
    shard.settle(first)
    assert [chunk.samples for chunk in first.chunks + shard.plan().chunks] == [False, True]


def test_decodes_go_before_the_prompts_of_older_arrivals(make_shard: MakeShard) -> None:
    shard = make_shard(budget=5)
    shard.batcher.admit(assignment("decoding", prompt_of(3)))
    shard.step()
    shard.batcher.admit(assignment("long", prompt_of(12, 1)))
    assert shard.step() == [("decoding", 0, 1), ("long", 0, 4)]


def test_prompts_share_the_budget_first_come_first_served(make_shard: MakeShard) -> None:
    shard = make_shard(budget=8)
    for number, name in enumerate("abc"):
        shard.batcher.admit(assignment(name, prompt_of(5, number)))
    assert shard.step() == [("a", 0, 5), ("b", 0, 3)]
    assert shard.step() == [("a", 0, 1), ("b", 0, 2), ("c", 0, 5)]


def test_no_more_sequences_run_than_there_are_places(make_shard: MakeShard) -> None:
    shard = make_shard(seqs=2)
    for name in "abc":
        shard.batcher.admit(assignment(name, prompt_of(3), max_tokens=2))
    assert [name for name, _, _ in shard.step()] == ["a", "b"]
    assert (shard.batcher.stats().running, shard.batcher.stats().waiting) == (2, 1)
    shard.step()
    assert [name for name, _, _ in shard.step()] == ["c"]


# --- how choices end ---


def test_a_choice_ends_at_max_tokens(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", prompt_of(3), max_tokens=2))
    shard.finish()
    tokens, finish = shard.output("a")
    assert (len(tokens), finish) == (2, FinishReason.LENGTH)


def test_a_stop_token_ends_a_choice_and_is_told(make_shard: MakeShard) -> None:
    shard = make_shard()
    stop = next_token(prompt_of(3), 0)
    shard.batcher.admit(assignment("a", prompt_of(3), stop=(stop,)))
    shard.finish()
    assert shard.output("a") == ((stop,), FinishReason.STOP)


def test_a_stop_token_at_max_tokens_counts_as_a_stop(make_shard: MakeShard) -> None:
    shard = make_shard()
    stop = next_token(prompt_of(3), 0)
    shard.batcher.admit(assignment("a", prompt_of(3), max_tokens=1, stop=(stop,)))
    shard.finish()
    assert shard.output("a")[1] is FinishReason.STOP


def test_a_choice_ends_at_the_context(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", prompt_of(MAX_MODEL_LEN - 2), max_tokens=99))
    shard.finish()
    tokens, finish = shard.output("a")
    assert (len(tokens), finish) == (2, FinishReason.LENGTH)


def test_without_output_wanted_the_prompt_is_scored_and_all_choices_end(
    make_shard: MakeShard,
) -> None:
    shard = make_shard(budget=4)
    prompt = prompt_of(MAX_MODEL_LEN)
    shard.batcher.admit(assignment("a", prompt, max_tokens=0, choices=2, prompt_logprobs=0))
    shard.finish()
    assert [shard.output("a", choice) for choice in (0, 1)] == [((), FinishReason.LENGTH)] * 2
    assert shard.first_delta("a").prompt_logprobs == prompt_scores(prompt)
    assert len(shard.deltas) == 2


def test_log_probabilities_are_told_only_where_asked_for(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("with", prompt_of(3), logprobs=0))
    shard.batcher.admit(assignment("without", prompt_of(3)))
    shard.finish()
    assert [one.token for one in shard.first_delta("with").logprobs] == [
        next_token(prompt_of(3), 0)
    ]
    assert shard.first_delta("without").logprobs == ()


# --- cancelling ---


@pytest.mark.parametrize("steps", range(5))
def test_a_cancel_frees_all_pages_at_once_in_any_state(make_shard: MakeShard, steps: int) -> None:
    shard = make_shard(seqs=2, budget=4)
    shard.batcher.admit(assignment("a", prompt_of(6), choices=4, max_tokens=9))
    for _ in range(steps):
        shard.step()
    shard.batcher.cancel("a")
    assert shard.pool.stats().used == 0
    assert not shard.batcher.has_work
    assert shard.batcher.drain_progress().ended == ("a",)


def test_a_cancel_between_plan_and_settle_drops_the_token(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", prompt_of(6)))
    shard.batcher.admit(assignment("b", prompt_of(6, 1)))
    plan = shard.plan()
    result = shard.memory.compute(plan)
    shard.batcher.cancel("a")
    assert [delta.request_id for delta in shard.batcher.settle(plan, result)] == ["b"]


def test_an_id_cancelled_and_admitted_again_before_settle_starts_anew(
    make_shard: MakeShard,
) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", prompt_of(6)))
    plan = shard.plan()
    result = shard.memory.compute(plan)
    shard.batcher.cancel("a")
    shard.batcher.admit(assignment("a", prompt_of(6)))
    assert shard.batcher.settle(plan, result) == []
    shard.finish()
    assert shard.output("a") == expected(prompt_of(6))


def test_cancelling_one_choice_leaves_the_others(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", prompt_of(6), choices=2))
    shard.step()
    shard.batcher.cancel("a", 0)
    shard.finish()
    assert shard.output("a", 1) == expected(prompt_of(6), 1)
    assert len(shard.output("a", 0)[0]) == 1


def test_cancelling_what_is_not_there_does_nothing(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", prompt_of(6)))
    shard.batcher.cancel("b")
    shard.batcher.cancel("a", 3)
    assert len(shard.batcher.held()) == 1


# --- telling the scheduler ---


def test_progress_tells_each_start_and_end_once(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", prompt_of(3), max_tokens=2, choices=2))
    assert shard.batcher.drain_progress() == Progress((), (), ())
    shard.step()
    assert shard.batcher.drain_progress() == Progress(("a",), (), ())
    shard.finish()
    assert shard.batcher.drain_progress() == Progress((), ("a",), (4,))
    assert shard.batcher.drain_progress() == Progress((), (), ())


def test_held_requests_say_how_far_they_are(make_shard: MakeShard) -> None:
    shard = make_shard(budget=4)
    shard.batcher.admit(assignment("a", prompt_of(6), max_tokens=9, choices=2))
    shard.step()
    assert shard.batcher.held() == (HeldRequest("a", 6, 4, 2, "tenant", "P1"),)


def test_statistics_count_computed_and_sampled_tokens(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", prompt_of(6), max_tokens=3))
    shard.finish()
    stats = shard.batcher.stats()
    assert (stats.steps, stats.tokens_computed, stats.tokens_sampled) == (3, 8, 3)


# --- what is refused ---


def test_a_pool_smaller_than_one_sequence_is_refused_with_advice() -> None:
    with pytest.raises(ConfigError, match="8 pages or more") as refusal:
        ToyShard(pages=7)
    assert refusal.value.path == "cache.num_blocks"


def test_an_empty_prompt_is_refused(make_shard: MakeShard) -> None:
    with pytest.raises(InvalidRequest, match="no tokens"):
        make_shard().batcher.admit(assignment("a", ()))


@pytest.mark.parametrize(("length", "max_tokens"), [(MAX_MODEL_LEN, 1), (MAX_MODEL_LEN + 1, 0)])
def test_a_prompt_without_room_for_output_is_refused(
    make_shard: MakeShard, length: int, max_tokens: int
) -> None:
    shard = make_shard()
    with pytest.raises(ContextTooLong, match=str(length)):
        shard.batcher.admit(assignment("a", prompt_of(length), max_tokens))
    assert not shard.batcher.has_work


def test_an_id_that_is_here_is_refused(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", prompt_of(3)))
    with pytest.raises(IllegalTransition, match="here already"):
        shard.batcher.admit(assignment("a", prompt_of(3)))


def test_a_result_that_does_not_fit_its_plan_is_refused(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", prompt_of(3)))
    with pytest.raises(LedgerBroken, match="given"):
        shard.batcher.settle(shard.plan(), StepResult(()))


def test_a_plan_settled_twice_is_refused(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", prompt_of(3)))
    plan = shard.plan()
    result = shard.memory.compute(plan)
    shard.batcher.settle(plan, result)
    with pytest.raises(LedgerBroken, match="settled"):
        shard.batcher.settle(plan, result)
