"""Classes that meet in one shard: who goes first, for how long, and who gives pages up."""

from __future__ import annotations

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
