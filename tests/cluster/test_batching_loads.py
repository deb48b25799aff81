"""Pages that come back: a bounded number beside those who run, and from files before the step."""

from __future__ import annotations

import pytest

from cluster.blocks import page_hashes
from cluster.folder_tier import PageRead
from tests.cluster.paged_memory import assignment
from tests.cluster.toy_shard import MakeShard, ToyShard, expected

LONG = tuple(range(100, 122))
"""Five full pages, and two tokens."""

HASHES = page_hashes(LONG, 4, b"tenant")

CONTEXT = 40


def push_out(shard: ToyShard, *seeds: int) -> None:
    """Other prompts of ten pages, one after the other, take all pages that nobody holds."""
    for seed in seeds:
        shard.batcher.admit(assignment(f"other{seed}", tuple(range(seed, seed + 39)), 1))
        shard.finish()
        shard.work_on_files()


def shard_without(make_shard: MakeShard, loads: float, files: int = 0) -> ToyShard:
    """One that served the long prompt, and whose pool has none of it any more."""
    shard = make_shard(pages=12, context=CONTEXT, slots=40, files=files, loads=loads)
    shard.batcher.admit(assignment("first", LONG, 1))
    shard.finish()
    push_out(shard, 1000, 2000)
    assert shard.pool.match(HASHES) == []
    return shard


def steps_until_start(shard: ToyShard, name: str) -> list[int]:
    """Pages that each step brings back until one computes a token of `name`."""
    loads = []
    while True:
        plan = shard.plan()
        loads.append(len(plan.loads))
        shard.settle(plan)
        if any(chunk.sequence.request.request_id == name for chunk in plan.chunks):
            return loads


def test_alone_a_prefix_comes_back_in_one_step(make_shard: MakeShard) -> None:
    shard = shard_without(make_shard, loads=2)
    shard.batcher.admit(assignment("again", LONG, 4))
    assert shard.step() == [("again", 0, 2)]


def test_beside_a_stream_a_prefix_comes_back_over_several_steps(make_shard: MakeShard) -> None:
    shard = shard_without(make_shard, loads=2)
    shard.batcher.admit(assignment("stream", (1, 2), 12))
    shard.step()
    shard.batcher.admit(assignment("again", LONG, 4))
    assert steps_until_start(shard, "again") == [2, 2, 1]
    shard.finish()
    assert len(shard.output("stream")[0]) == 12
    assert shard.output("again") == expected(LONG, 0, 4, CONTEXT)


def test_what_comes_back_bit_by_bit_is_told_as_cached_and_counted_once(
    make_shard: MakeShard,
) -> None:
    shard = shard_without(make_shard, loads=1)
    before = shard.batcher.stats().prefix_hit_tokens
    shard.batcher.admit(assignment("stream", (1, 2), 12))
    shard.step()
    shard.batcher.admit(assignment("again", LONG, 4))
    shard.finish()
    assert shard.first_delta("again").cached_tokens == 20
    assert shard.batcher.stats().prefix_hit_tokens - before == 20


def test_what_did_not_come_back_is_not_told_as_cached(make_shard: MakeShard) -> None:
    """Older streams take the pages that it was to come back into."""
    shard = shard_without(make_shard, loads=1)
    for number in range(5):
        shard.batcher.admit(assignment(f"stream{number}", (1, 2, number), 6))
    shard.step()
    shard.batcher.admit(assignment("again", LONG, 4))
    computed = 0
    while not any(delta.request_id == "again" for delta in shard.deltas):
        computed += sum(count for name, _, count in shard.step() if name == "again")
    told = shard.first_delta("again").cached_tokens
    assert 0 < told == len(LONG) - computed < 20


def test_who_is_cancelled_while_his_pages_come_back_leaves_the_books_in_order(
    make_shard: MakeShard,
) -> None:
    shard = shard_without(make_shard, loads=1)
    shard.batcher.admit(assignment("stream", (1, 2), 12))
    shard.step()
    shard.batcher.admit(assignment("again", LONG, 4))
    shard.step()
    shard.batcher.cancel("again")
    shard.finish()


@pytest.fixture
def filed(make_shard: MakeShard) -> ToyShard:
    """One that has the long prompt's pages in files only."""
    shard = shard_without(make_shard, loads=8, files=200)
    push_out(shard, 3000, 4000, 5000, 6000, 7000)
    assert shard.pool.filed(HASHES)
    return shard


def test_who_needs_files_waits_until_they_are_read_and_computes_only_the_rest(
    filed: ToyShard,
) -> None:
    filed.batcher.admit(assignment("again", LONG, 4))
    assert filed.batcher.plan() is None
    filed.work_on_files()
    assert filed.step() == [("again", 0, 2)]
    filed.finish()
    assert filed.output("again") == expected(LONG, 0, 4, CONTEXT)


def test_nobody_waits_for_the_files_of_another(filed: ToyShard) -> None:
    filed.batcher.admit(assignment("again", LONG, 4))
    filed.batcher.admit(assignment("next", (1, 2), 4))
    assert filed.step() == [("next", 0, 2)]
    filed.work_on_files()
    assert filed.step() == [("next", 0, 1), ("again", 0, 2)]


def test_what_cannot_be_read_is_computed(filed: ToyShard) -> None:
    filed.batcher.admit(assignment("again", LONG, 4))
    assert filed.batcher.plan() is None
    filed.work_on_files(goes_well=False)
    assert filed.step() == [("again", 0, len(LONG))]


def test_files_are_read_for_one_at_a_time(filed: ToyShard) -> None:
    filed.batcher.admit(assignment("again", LONG, 4))
    filed.batcher.admit(assignment("other", tuple(range(1000, 1039)), 1))
    assert filed.batcher.plan() is None
    reads = [each for each in filed.pool.drain_orders() if isinstance(each, PageRead)]
    assert [each.content for each in reads] == list(HASHES)


def test_who_is_cancelled_while_his_files_are_read_leaves_the_books_in_order(
    filed: ToyShard,
) -> None:
    filed.batcher.admit(assignment("again", LONG, 4))
    assert filed.batcher.plan() is None
    filed.batcher.cancel("again")
    filed.work_on_files()
    assert filed.pool.reach(HASHES) == 5
