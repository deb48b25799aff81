"""Around the high-water mark: who is paused, who comes back and when, and that nobody flaps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.config import CacheConfig
from cluster.sequences import OVERTAKERS, State, Tracked
from cluster.watermark import OFF, Watermark, marks
from tests.cluster.paged_memory import assignment
from tests.cluster.toy_shard import MakeShard, ToyShard, expected

PAGES = 40
CONTEXT = 120
MARKS = Watermark(high=32, low=24)


def prompt_of(length: int, first: int) -> tuple[int, ...]:
    return tuple(range(first, first + length))


@pytest.fixture
def shard(make_shard: MakeShard) -> ToyShard:
    return make_shard(pages=PAGES, budget=256, context=CONTEXT, slots=200, watermark=MARKS)


def admit(shard: ToyShard, name: str, pages: int, rank: int, output: int = 60) -> None:
    """A prompt that fills so many pages and leaves the last one room for its first tokens."""
    prompt = prompt_of(4 * pages - 3, 1000 * len(shard.batcher.held()) + 7 * rank)
    shard.batcher.admit(assignment(name, prompt, output, rank=rank))


def names(shard: ToyShard) -> set[str]:
    return {name for name, *_ in shard.step()}


def test_the_marks_are_shares_of_the_pool() -> None:
    assert marks(CacheConfig(high_water=0.75, low_water=0.5), 40) == Watermark(30.0, 20.0)


def test_above_the_mark_the_newest_of_the_lowest_class_is_paused(shard: ToyShard) -> None:
    for name, rank in (("chat", 0), ("older", 2), ("newer", 2), ("middle", 1)):
        admit(shard, name, 8, rank)
    assert names(shard) == {"chat", "older", "newer", "middle"}
    while not shard.batcher.stats().pauses:
        running = names(shard)
    assert running == {"chat", "older", "middle"}
    assert shard.batcher.stats().preemptions == 0


def test_one_is_paused_a_step_while_the_pool_is_above_the_mark(shard: ToyShard) -> None:
    for number in range(5):
        admit(shard, f"batch{number}", 7, rank=1)
    shard.step()
    admit(shard, "chat", 2, rank=0)
    for _ in range(20):
        above, pauses = shard.pool.used > MARKS.high, shard.batcher.stats().pauses
        shard.step()
        assert shard.batcher.stats().pauses - pauses == above
    assert shard.batcher.stats().pauses > 1


def test_one_class_alone_has_all_pages(shard: ToyShard) -> None:
    for number in range(5):
        admit(shard, f"batch{number}", 7, rank=2)
    while shard.pool.used < PAGES:
        shard.step()
    assert shard.batcher.stats().pauses == 0


def test_whoever_has_hardly_a_page_to_himself_is_not_worth_it(shard: ToyShard) -> None:
    admit(shard, "chat", 22, rank=0)
    for number in range(4):
        admit(shard, f"batch{number}", 2, rank=2)
    while shard.pool.used <= MARKS.high + 1:
        shard.step()
    assert shard.batcher.stats().pauses == 0


@pytest.mark.parametrize(("prompt_logprobs", "pauses"), [(0, 0), (None, 1)])
def test_whoever_owes_prompt_scores_is_not_paused(
    make_shard: MakeShard, prompt_logprobs: int | None, pauses: int
) -> None:
    shard = make_shard(budget=16, context=CONTEXT, slots=200, watermark=Watermark(6, 5))
    scored = assignment("scored", prompt_of(60, 9), prompt_logprobs=prompt_logprobs, rank=2)
    shard.batcher.admit(scored)
    shard.step()
    admit(shard, "chat", 8, rank=0)
    shard.step()
    assert shard.pool.used == 8
    shard.step()
    assert shard.batcher.stats().pauses == pauses


def paused(shard: ToyShard) -> ToyShard:
    """Batch is paused at 21 pages beside a chat of 12, which goes on for 50 tokens."""
    admit(shard, "chat", 12, rank=0, output=50)
    admit(shard, "batch", 20, rank=2, output=30)
    while not shard.batcher.stats().pauses:
        shard.step()
    return shard


def test_the_paused_come_back_as_soon_as_nobody_is_above_them(shard: ToyShard) -> None:
    paused(shard)
    assert names(shard) == {"chat"}
    shard.batcher.cancel("chat")
    ((name, _, count),) = shard.step()
    assert name == "batch"
    assert count <= 4


def test_the_paused_come_back_once_they_fit_below_the_low_mark(shard: ToyShard) -> None:
    paused(shard)
    admit(shard, "small", 2, rank=0, output=50)
    shard.batcher.cancel("chat")
    assert names(shard) == {"small", "batch"}
    assert shard.pool.used <= MARKS.low


def test_between_the_marks_the_paused_stay_where_they_are(shard: ToyShard) -> None:
    paused(shard)
    admit(shard, "small", 6, rank=0, output=50)
    shard.batcher.cancel("chat")
    assert names(shard) == {"small"}


def test_the_paused_wait_for_so_many_later_arrivals_and_no_more(shard: ToyShard) -> None:
    paused(shard)
    for _ in range(2 * OVERTAKERS):
        admit(shard, "gone", 1, rank=0)
        shard.batcher.cancel("gone")
    admit(shard, "next", 1, rank=0)
    assert names(shard) == {"chat", "next"}
    shard.batcher.cancel("chat")
    assert names(shard) == {"next", "batch"}


def test_beside_a_higher_class_nobody_starts_who_would_have_somebody_paused(
    shard: ToyShard,
) -> None:
    admit(shard, "chat", 12, rank=0)
    admit(shard, "batch", 21, rank=1)
    admit(shard, "also high", 12, rank=0)
    assert names(shard) == {"chat", "also high"}
    shard.batcher.cancel("chat")
    shard.batcher.cancel("also high")
    assert names(shard) == {"batch"}


def test_out_of_reach_the_marks_pause_nobody(make_shard: MakeShard) -> None:
    shard = make_shard(pages=PAGES, context=CONTEXT, slots=200)
    for name, rank in (("chat", 0), ("batch", 2)):
        admit(shard, name, 18, rank)
    while shard.pool.used < PAGES:
        shard.step()
    assert shard.batcher.stats().pauses == 0


def chats_beside_batch(low: float) -> int:
    """Pauses of a long batch while chats come and go, and keep the pool around its mark."""
    shard = ToyShard(pages=PAGES, context=CONTEXT, slots=200, watermark=Watermark(32, low))
    admit(shard, "batch", 20, rank=2, output=40)
    for number in range(14):
        admit(shard, f"small{number}", 2, rank=0, output=8)
        admit(shard, f"large{number}", 11, rank=0, output=2)
        for _ in range(6):
            shard.step()
    shard.finish()
    shard.close()
    return shard.batcher.stats().pauses


def test_around_the_mark_a_gap_between_the_marks_keeps_a_sequence_from_flapping() -> None:
    assert chats_beside_batch(low=32) > 4
    assert chats_beside_batch(low=20) == 1


PAUSED, BACK = "paused", "back"


@dataclass(frozen=True)
class Witness(Watermark):
    """The marks, and what became of whom by them; each time, that it was right."""

    history: dict[Tracked, list[str]]

    def to_pause(
        self,
        used: int,
        running: Sequence[Tracked],
        waiting: Sequence[Tracked],
        gives: Callable[[Tracked], int],
    ) -> Tracked | None:
        victim = Watermark.to_pause(self, used, running, waiting, gives)
        if victim is not None:
            assert used > self.high
            assert gives(victim) > 0
            assert victim.family.rank > min(one.family.rank for one in (*running, *waiting))
            self.history.setdefault(victim, []).append(PAUSED)
        return victim

    def holds_back(
        self,
        one: Tracked,
        used: int,
        present: Iterable[Tracked],
        needs: Callable[[Tracked], int],
    ) -> bool:
        others = list(present)
        held = Watermark.holds_back(self, one, used, others, needs)
        if one.state is State.PAUSED and not held:
            above = [each for each in others if each.family.rank < one.family.rank]
            in_front = [each for each in above if each.order < one.order]
            assert used + needs(one) <= self.low or not in_front
            self.history[one].append(BACK)
        return held


@dataclass(frozen=True)
class Job:
    """A prompt of so many tokens, after so many steps."""

    gap: int
    prompt: int
    output: int
    rank: int


jobs = st.lists(
    st.builds(
        Job,
        gap=st.sampled_from([0, 0, 1, 3, 9]),
        prompt=st.integers(1, 30),
        output=st.integers(1, 25),
        rank=st.integers(0, 2),
    ),
    min_size=6,
    max_size=12,
)


@settings(max_examples=60)
@given(work=jobs, slots=st.sampled_from([1, 12, 200]), high=st.integers(8, 17))
def test_nobody_flaps_all_end_and_their_tokens_are_what_they_would_be_alone(
    work: list[Job], slots: int, high: int
) -> None:
    witness = Witness(high, 0.75 * high, {})
    shard = ToyShard(pages=18, context=60, slots=slots, watermark=witness)
    prompts = [prompt_of(job.prompt, 100 * number) for number, job in enumerate(work)]
    for number, job in enumerate(work):
        for _ in range(job.gap):
            if shard.batcher.has_work:
                shard.step()
        shard.batcher.admit(assignment(f"r{number}", prompts[number], job.output, rank=job.rank))
    shard.finish()
    for number, job in enumerate(work):
        due = expected(prompts[number], max_tokens=job.output, context=60)
        assert shard.output(f"r{number}") == due
    stories = witness.history.values()
    assert shard.batcher.stats().pauses == sum(story.count(PAUSED) for story in stories)
    assert all(story == [PAUSED, BACK] * (len(story) // 2) for story in stories)
    assert not stories or len({job.rank for job in work}) > 1
    shard.close()


def test_the_marks_by_default_are_out_of_reach() -> None:
    assert OFF.high == OFF.low == float("inf")
