"""A batcher short of pages: who gives, who waits, and that nothing is lost."""

from __future__ import annotations

import pytest

from tests.cluster.paged_memory import assignment, prompt_scores
from tests.cluster.toy_shard import MAX_MODEL_LEN, MakeShard, ToyShard, expected, prompt_of

SMALLEST = MAX_MODEL_LEN // 4
"""Pages that hold one sequence of the whole context, and not one token more."""


def crowded(shard: ToyShard, old_prompt: int, new_prompt: int) -> ToyShard:
    """Two decodes have all eight pages between them; the longer needs the next page first."""
    shard.batcher.admit(assignment("old", prompt_of(old_prompt, 1), max_tokens=12))
    shard.batcher.admit(assignment("new", prompt_of(new_prompt, 2), max_tokens=12))
    for _ in range(6):
        assert len(shard.step()) == 2
    assert shard.pool.available == 0
    return shard


def test_a_sequence_short_of_pages_preempts_the_newest(make_shard: MakeShard) -> None:
    shard = crowded(make_shard(pages=SMALLEST), old_prompt=11, new_prompt=10)
    assert shard.step() == [("old", 0, 1)]
    stats = shard.batcher.stats()
    assert (stats.running, stats.waiting, stats.preemptions) == (1, 1, 1)


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_preemption_changes_no_output(make_shard: MakeShard, prefix_caching: bool) -> None:
    shard = make_shard(pages=SMALLEST, prefix_caching=prefix_caching)
    crowded(shard, old_prompt=11, new_prompt=10).finish()
    assert shard.batcher.stats().preemptions == 1
    assert shard.output("old") == expected(prompt_of(11, 1), max_tokens=12)
    assert shard.output("new") == expected(prompt_of(10, 2), max_tokens=12)


def test_the_newest_short_of_pages_stands_still_and_keeps_what_it_has(
    make_shard: MakeShard,
) -> None:
    shard = crowded(make_shard(pages=SMALLEST), old_prompt=10, new_prompt=11)
    assert shard.step() == [("old", 0, 1)]
    assert (shard.batcher.stats().running, shard.batcher.stats().preemptions) == (2, 0)


def test_a_preempted_sequence_runs_again_before_later_arrivals(make_shard: MakeShard) -> None:
    shard = crowded(make_shard(pages=SMALLEST), old_prompt=11, new_prompt=10)
    shard.batcher.admit(assignment("newest", prompt_of(3, 3)))
    while (names := [name for name, _, _ in shard.step()]) == ["old"]:
        pass
    assert names[0] == "new"


def test_a_preempted_sequence_finds_its_own_pages_again(make_shard: MakeShard) -> None:
    shard = crowded(make_shard(pages=SMALLEST), old_prompt=11, new_prompt=10)
    shard.step()
    shard.batcher.cancel("old")
    ((_, _, count),) = shard.step()
    assert count < 16


def test_a_preempted_sequence_comes_back_from_host_memory_but_for_its_last_page(
    make_shard: MakeShard,
) -> None:
    shard = make_shard(pages=SMALLEST, slots=SMALLEST)
    shard.batcher.admit(assignment("old", prompt_of(11, 1), max_tokens=20))
    shard.batcher.admit(assignment("new", prompt_of(10, 2), max_tokens=12))
    while not shard.output("old")[1]:
        chunks = shard.step()
    assert chunks == [("old", 0, 1)]
    assert shard.step() == [("new", 0, 4)]
    assert (shard.pool.stats().saved, shard.pool.stats().loaded) == (6, 3)
    shard.finish()
    assert shard.output("new") == expected(prompt_of(10, 2), max_tokens=12)


def test_nobody_is_let_in_beside_others_without_a_page_to_spare(make_shard: MakeShard) -> None:
    shard = make_shard(pages=SMALLEST)
    shard.batcher.admit(assignment("old", prompt_of(11, 1)))
    shard.batcher.admit(assignment("exact", prompt_of(20, 2)))
    assert shard.step() == [("old", 0, 11)]
    assert shard.batcher.stats().waiting == 1


def test_a_sequence_that_fits_exactly_is_let_in_alone(make_shard: MakeShard) -> None:
    shard = make_shard(pages=SMALLEST)
    shard.batcher.admit(assignment("a", prompt_of(MAX_MODEL_LEN - 1)))
    assert shard.step() == [("a", 0, MAX_MODEL_LEN - 1)]


def test_a_sequence_that_does_not_fit_yet_is_not_overtaken(make_shard: MakeShard) -> None:
    shard = make_shard(pages=SMALLEST)
    shard.batcher.admit(assignment("old", prompt_of(11, 1), max_tokens=2))
    shard.batcher.admit(assignment("large", prompt_of(24, 2)))
    shard.batcher.admit(assignment("small", prompt_of(2, 3)))
    assert shard.step() == [("old", 0, 11)]
    assert shard.step() == [("old", 0, 1)]
    assert [name for name, _, _ in shard.step()] == ["large", "small"]


def test_a_preempted_prompt_is_scored_anew(make_shard: MakeShard) -> None:
    shard = make_shard(pages=SMALLEST, budget=2)
    shard.batcher.admit(assignment("old", prompt_of(2, 1), max_tokens=24))
    shard.step()
    shard.batcher.admit(assignment("scored", prompt_of(24, 2), prompt_logprobs=0))
    shard.finish()
    assert shard.batcher.stats().preemptions
    assert shard.first_delta("scored").prompt_logprobs == prompt_scores(prompt_of(24, 2))


def test_choices_still_fork_from_a_leader_that_was_preempted(make_shard: MakeShard) -> None:
    shard = make_shard(pages=SMALLEST, budget=2)
    shard.batcher.admit(assignment("old", prompt_of(2, 1), max_tokens=24))
    shard.step()
    shard.batcher.admit(assignment("forked", prompt_of(24, 2), choices=2))
    shard.finish()
    assert shard.batcher.stats().preemptions
    outputs = [shard.output("forked", choice) for choice in range(2)]
    assert outputs == [expected(prompt_of(24, 2), choice) for choice in range(2)]


def test_pages_are_not_taken_from_a_sequence_that_is_in_the_step(make_shard: MakeShard) -> None:
    """The follower is the older one, but it got its place late and is still behind by much."""
    shard = make_shard(pages=SMALLEST, seqs=2, budget=3, prefix_caching=False)
    shard.batcher.admit(assignment("older", prompt_of(23, 1), max_tokens=1, choices=2))
    shard.batcher.admit(assignment("newer", prompt_of(2, 2), max_tokens=20))
    for _ in range(18):
        shard.step()
    assert shard.pool.available == 0
    assert shard.step() == [("newer", 0, 1)]
    assert shard.batcher.stats().preemptions == 0
    assert shard.step() == [("older", 1, 3)]
    assert shard.batcher.stats().preemptions == 1
    shard.finish()
    assert shard.output("newer") == expected(prompt_of(2, 2), max_tokens=20)
