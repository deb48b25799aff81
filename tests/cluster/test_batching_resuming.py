"""Requests that go on from what another shard gave out, and suspects among them."""

from __future__ import annotations

from dataclasses import replace

from cluster.messages import Assignment, Emitted
from cluster.sequences import OVERTAKERS
from tests.cluster.paged_memory import assignment
from tests.cluster.toy_shard import MakeShard, expected, prompt_of

PROMPT = prompt_of(6)


def going_on(request_id: str, *outputs: int, choices: int = 1, max_tokens: int = 8) -> Assignment:
    """With the first so many of its due tokens out, for each choice named by place."""
    emitted = tuple(
        Emitted(choice, expected(PROMPT, choice, max_tokens)[0][:length])
        for choice, length in enumerate(outputs)
    )
    return replace(assignment(request_id, PROMPT, max_tokens, choices), emitted=emitted)


def suspect(request_id: str) -> Assignment:
    return replace(assignment(request_id, prompt_of(6)), suspect=True)


def test_only_what_is_new_comes_out_and_it_is_what_was_due(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(going_on("a", 3))
    shard.finish()
    tokens, finish = expected(PROMPT, 0, 8)
    assert shard.output("a") == (tokens[3:], finish)


def test_all_choices_go_on_side_by_side_once_the_prompt_is_computed(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(going_on("a", 3, 1, 0, choices=3))
    assert shard.step() == [("a", 0, 9)]
    assert sorted(shard.step()) == [("a", 0, 1), ("a", 1, 2), ("a", 2, 1)]


def test_a_page_of_the_output_is_found_where_it_is_cached(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", PROMPT, 8))
    shard.finish()
    shard.batcher.admit(going_on("b", 7))
    assert shard.step() == [("b", 0, 1)]


def test_each_choice_finds_the_pages_of_its_own_output(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", PROMPT, 8, choices=2))
    shard.finish()
    shard.batcher.admit(going_on("b", 7, 7, choices=2))
    assert shard.step() == [("b", 0, 1)]
    assert shard.step() == [("b", 1, 1)]
    assert [shard.output("b", choice) for choice in (0, 1)] == [
        (tokens[7:], finish) for tokens, finish in (expected(PROMPT, c, 8) for c in (0, 1))
    ]


def test_two_suspects_share_no_step_until_the_first_has_a_token(make_shard: MakeShard) -> None:
    shard = make_shard(budget=4)
    for assigned in (suspect("a"), suspect("b"), assignment("c", prompt_of(3))):
        shard.batcher.admit(assigned)
    assert [{name for name, *_ in shard.step()} for _ in range(3)] == [
        {"a"},
        {"a"},
        {"a", "b", "c"},
    ]


def test_a_suspect_that_waits_for_a_verdict_holds_up_no_higher_class(
    make_shard: MakeShard,
) -> None:
    shard = make_shard()
    for name in ("tried", "waiting"):
        shard.batcher.admit(replace(assignment(name, PROMPT, rank=1), suspect=True))
    for _ in range(OVERTAKERS):  # so many that these stand before what comes now
        shard.batcher.admit(assignment("gone", PROMPT))
        shard.batcher.cancel("gone")
    shard.batcher.admit(assignment("batch", PROMPT, rank=1))
    shard.batcher.admit(assignment("chat", PROMPT))
    assert [name for name, *_ in shard.step()] == ["tried", "chat"]


def test_a_suspect_shares_its_step_with_whoever_is_none(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", PROMPT))
    shard.batcher.admit(suspect("b"))
    assert shard.step() == [("a", 0, 6), ("b", 0, 6)]


def test_whoever_is_in_a_step_that_is_not_settled_is_known(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", PROMPT, choices=2))
    shard.batcher.admit(assignment("b", PROMPT))
    plan = shard.plan()
    assert shard.batcher.computing() == ("a", "b")
    shard.settle(plan)
    assert shard.batcher.computing() == ()


def test_a_request_that_goes_on_has_not_started_before_its_next_token(
    make_shard: MakeShard,
) -> None:
    shard = make_shard(budget=7)
    shard.batcher.admit(going_on("a", 3))
    shard.step()
    (held,) = shard.batcher.held()
    assert (held.prompt_tokens, held.computed_tokens) == (9, 7)
    assert shard.batcher.drain_progress().started == ()
    shard.step()
    (held,) = shard.batcher.held()
    assert held.computed_tokens >= held.prompt_tokens
    assert shard.batcher.drain_progress().started == ("a",)
