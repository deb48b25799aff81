"""What sequences share: cached prefixes, forks; and prompt scores, which can share nothing."""

from __future__ import annotations

from tests.cluster.paged_memory import assignment, prompt_scores
from tests.cluster.toy_shard import MakeShard, expected, prompt_of

# --- prompt scores ---


def test_prompt_scores_come_with_the_first_delta_even_if_chunked(make_shard: MakeShard) -> None:
    shard = make_shard(budget=3)
    shard.batcher.admit(assignment("a", prompt_of(10), prompt_logprobs=0))
    shard.finish()
    scored = [delta.prompt_logprobs for delta in shard.deltas if delta.prompt_logprobs]
    assert scored == [prompt_scores(prompt_of(10))]
    assert shard.deltas[0].prompt_logprobs


def test_the_score_of_a_prompt_of_one_token_is_nothing(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", (3,), prompt_logprobs=0))
    plan = shard.plan()
    assert not plan.chunks[0].score_prompt
    assert shard.settle(plan)[0].prompt_logprobs == (None,)


def test_a_scored_prompt_uses_no_cached_prefix(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", prompt_of(9)))
    shard.finish()
    shard.batcher.admit(assignment("b", prompt_of(9), prompt_logprobs=0))
    assert shard.step() == [("b", 0, 9)]


# --- cached prefixes ---


def test_a_repeated_prompt_computes_only_what_is_not_cached(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", prompt_of(10)))
    shard.finish()
    shard.batcher.admit(assignment("b", prompt_of(10)))
    assert shard.step() == [("b", 0, 2)]
    shard.finish()
    assert (shard.first_delta("a").cached_tokens, shard.first_delta("b").cached_tokens) == (0, 8)
    assert shard.batcher.stats().prefix_hit_tokens == 8
    assert shard.output("b") == expected(prompt_of(10))


def test_of_a_wholly_cached_prompt_the_last_page_is_computed_again(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", prompt_of(8)))
    shard.finish()
    shard.batcher.admit(assignment("b", prompt_of(8)))
    assert shard.step() == [("b", 0, 4)]


def test_the_next_turn_reuses_generated_pages(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", prompt_of(6), max_tokens=7))
    shard.finish()
    history = prompt_of(6) + shard.output("a")[0]
    shard.batcher.admit(assignment("b", (*history, 9)))
    assert shard.step() == [("b", 0, 2)]


def test_other_salts_share_nothing(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", prompt_of(10), salt=b"x"))
    shard.finish()
    shard.batcher.admit(assignment("b", prompt_of(10), salt=b"y"))
    assert shard.step() == [("b", 0, 10)]


# --- forks ---


def test_choices_fork_from_the_computed_prompt(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", prompt_of(6), choices=3))
    assert shard.step() == [("a", 0, 6)]
    assert shard.pool.stats().used == 2
    assert shard.step() == [("a", 0, 1), ("a", 1, 1), ("a", 2, 1)]
    shard.finish()
    outputs = [shard.output("a", choice) for choice in range(3)]
    assert outputs == [expected(prompt_of(6), choice) for choice in range(3)]


def test_all_writers_of_a_shared_page_but_the_last_copy_it(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", prompt_of(6), choices=3))
    shard.step()
    plan = shard.plan()
    assert len(plan.copies) == 2
    assert len({copy.source for copy in plan.copies}) == 1
    shard.settle(plan)
    assert shard.pool.stats().used == 1 + 3


def test_a_full_last_page_is_copied_by_followers_and_left_alone_by_the_leader(
    make_shard: MakeShard,
) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", prompt_of(8), choices=2))
    shard.step()
    plan = shard.plan()
    assert [copy.target for copy in plan.copies] == [plan.chunks[1].sequence.blocks[1]]
    shard.settle(plan)


def test_choices_fork_even_if_the_leader_ends_with_its_first_token(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.batcher.admit(assignment("a", prompt_of(6), max_tokens=1, choices=2))
    shard.step()
    assert shard.step() == [("a", 1, 1)]
    assert not shard.batcher.has_work


def test_choices_without_a_place_run_later_on_their_own(make_shard: MakeShard) -> None:
    shard = make_shard(seqs=2)
    shard.batcher.admit(assignment("a", prompt_of(6), choices=4))
    shard.finish()
    outputs = [shard.output("a", choice) for choice in range(4)]
    assert outputs == [expected(prompt_of(6), choice) for choice in range(4)]


def test_the_next_choice_leads_when_the_leader_is_cancelled(make_shard: MakeShard) -> None:
    shard = make_shard(budget=4)
    shard.batcher.admit(assignment("a", prompt_of(8), choices=3))
    shard.step()
    shard.batcher.cancel("a", 0)
    shard.finish()
    assert shard.output("a", 0) == ((), None)
    outputs = [shard.output("a", choice) for choice in (1, 2)]
    assert outputs == [expected(prompt_of(8), choice) for choice in (1, 2)]


# --- host memory ---


def test_a_page_is_copied_before_another_is_loaded_in_its_place(make_shard: MakeShard) -> None:
    """Three last choices leave the prompt's page for a copy of their own, and nothing else is left
    for the page that comes back."""
    shard = make_shard(pages=6, context=24, slots=20)
    for name, length in (("away", 5), ("filler", 23)):
        shard.batcher.admit(assignment(name, prompt_of(length, length), max_tokens=1))
        shard.finish()
    for number in range(3):
        prompt = prompt_of(4, 30 + number)
        shard.batcher.admit(assignment(f"forked{number}", prompt, choices=2))
    shard.step()
    for number in range(3):
        shard.batcher.cancel(f"forked{number}", 0)
    shard.batcher.admit(assignment("back", prompt_of(5, 5)))
    plan = shard.plan()
    assert [load.page for load in plan.loads] == [plan.copies[0].source]
    shard.settle(plan)
    shard.finish()
    assert shard.output("back") == expected(prompt_of(5, 5))
    for number in range(3):
        assert shard.output(f"forked{number}", 1) == expected(prompt_of(4, 30 + number), 1)
