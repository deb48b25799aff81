"""Prompts that begin alike and meet in one shard: one computes the beginning, the others wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import NotFinite
from cluster.messages import Assignment
from cluster.sequences import OVERTAKERS
from tests.cluster.paged_memory import assignment
from tests.cluster.toy_shard import BLOCK_SIZE, MakeShard, ToyShard, expected

COMMON = tuple(range(100, 116))
"""Four full pages."""

WORTH = 10
"""Tokens worth waiting for in most of these tests: three pages, beside no stream or two."""

Prompt = tuple[int, ...]


def begun(name: str, own: int = 3, rank: int = 0, first: Prompt = COMMON) -> Assignment:
    """A prompt of `own` tokens behind a common beginning."""
    prompt = (*first, *(ord(name[0]) for _ in range(own)))
    return assignment(name, prompt, max_tokens=2, rank=rank)


def admit(shard: ToyShard, *assignments: Assignment) -> None:
    for each in assignments:
        shard.batcher.admit(each)


def test_of_prompts_that_begin_alike_one_computes_the_beginning(make_shard: MakeShard) -> None:
    shard = make_shard(worth=WORTH)
    admit(shard, begun("a"), begun("b"), begun("c"))
    assert shard.step() == [("a", 0, 19)]
    assert shard.step() == [("a", 0, 1), ("b", 0, 3), ("c", 0, 3)]
    shard.finish()
    for name in "abc":
        prompt = begun(name).request.prompt
        assert shard.output(name) == expected(prompt, max_tokens=2)
    assert [shard.first_delta(name).cached_tokens for name in "abc"] == [0, 16, 16]


@pytest.mark.parametrize("budget", [512, 1024, 2048])
def test_sixteen_questions_behind_one_system_prompt_compute_it_once(
    make_shard: MakeShard, budget: int
) -> None:
    shard = make_shard(pages=1200, seqs=16, budget=budget, context=600)
    system = tuple(range(1000, 1512))
    questions = [(*system, *range(number, number + 32)) for number in range(16)]
    for number, prompt in enumerate(questions):
        shard.batcher.admit(assignment(f"q{number}", prompt, max_tokens=1))
    shard.finish()
    assert shard.batcher.stats().tokens_computed == 512 + 16 * 32


def test_a_long_beginning_is_waited_for_until_its_last_page(make_shard: MakeShard) -> None:
    shard = make_shard(worth=WORTH, budget=17, context=40)
    long = (*COMMON, *range(200, 212))
    admit(shard, begun("a", first=long), begun("b", first=long))
    assert [shard.step() for _ in range(3)] == [
        [("a", 0, 17)],
        [("a", 0, 14)],
        [("a", 0, 1), ("b", 0, 3)],
    ]


def test_whoever_begins_like_one_that_waited_waits_for_that_one_in_turn(
    make_shard: MakeShard,
) -> None:
    shard = make_shard(worth=WORTH, context=60)
    document = (*COMMON, *range(200, 212))
    admit(shard, begun("a"), begun("b", first=document), begun("c", first=document))
    assert shard.step() == [("a", 0, 19)]
    assert shard.step() == [("a", 0, 1), ("b", 0, 15)]
    assert shard.step() == [("b", 0, 1), ("c", 0, 3)]


def test_pages_that_are_not_worth_a_step_are_not_waited_for(make_shard: MakeShard) -> None:
    shard = make_shard(worth=17)
    admit(shard, begun("a"), begun("b"))
    assert shard.step() == [("a", 0, 19), ("b", 0, 19)]


def test_beside_streams_which_make_a_step_longer_more_must_be_gained(
    make_shard: MakeShard,
) -> None:
    shard = make_shard(worth=WORTH, seqs=12)
    for number in range(7):
        shard.batcher.admit(assignment(f"x{number}", (number,), max_tokens=20))
    shard.step()
    admit(shard, begun("a"), begun("b"))
    assert shard.step()[7:] == [("a", 0, 19), ("b", 0, 19)]
    other = tuple(range(200, 216))
    for name in ("x0", "a", "b"):
        shard.batcher.cancel(name)
    admit(shard, begun("c", first=other), begun("d", first=other))
    assert shard.step()[6:] == [("c", 0, 19)]


def test_nobody_waits_for_the_pages_of_another_tenant(make_shard: MakeShard) -> None:
    shard = make_shard(worth=WORTH)
    for name in ("a", "b"):
        prompt = begun(name).request.prompt
        shard.batcher.admit(assignment(name, prompt, salt=name.encode()))
    assert shard.step() == [("a", 0, 19), ("b", 0, 19)]


def test_without_a_prefix_cache_nobody_waits(make_shard: MakeShard) -> None:
    shard = make_shard(worth=WORTH, prefix_caching=False)
    admit(shard, begun("a"), begun("b"))
    assert shard.step() == [("a", 0, 19), ("b", 0, 19)]


def test_a_scored_prompt_waits_for_nobody_and_is_waited_for(make_shard: MakeShard) -> None:
    shard = make_shard(worth=WORTH)
    admit(shard, begun("a"))
    shard.batcher.admit(assignment("s", begun("s").request.prompt, prompt_logprobs=0))
    assert shard.step() == [("a", 0, 19), ("s", 0, 19)]
    other = tuple(range(300, 316))
    prompt = begun("t", first=other).request.prompt
    shard.batcher.admit(assignment("t", prompt, max_tokens=1, prompt_logprobs=0))
    admit(shard, begun("b", first=other))
    assert [name for name, _, count in shard.step() if count > 1] == ["t"]


# --- whoever computes them does not go on ---


def test_if_who_computes_them_is_cancelled_the_next_computes_them(make_shard: MakeShard) -> None:
    shard = make_shard(worth=WORTH)
    admit(shard, begun("a"), begun("b"), begun("c"))
    plan = shard.plan()
    result = shard.memory.compute(plan)
    shard.batcher.cancel("a")
    assert shard.batcher.settle(plan, result) == []
    assert shard.step() == [("b", 0, 19)]
    assert shard.step() == [("b", 0, 1), ("c", 0, 3)]


def test_if_who_computes_them_is_refused_the_next_computes_them(make_shard: MakeShard) -> None:
    shard = make_shard(worth=WORTH)
    admit(shard, assignment("x", (1, 2), max_tokens=9))
    shard.step()
    admit(shard, begun("a"), begun("b"))
    plan = shard.plan()
    flaws = {1: NotFinite("no numbers")}
    shard.batcher.settle(plan, replace(shard.memory.compute(plan), flaws=flaws))
    assert shard.step() == [("x", 0, 1), ("b", 0, 19)]


# --- those behind ---


def test_who_waits_is_overtaken_by_who_has_something_to_compute(make_shard: MakeShard) -> None:
    shard = make_shard(worth=WORTH)
    admit(shard, begun("a"), begun("b"), assignment("x", (1, 2, 3)))
    assert shard.step() == [("a", 0, 19), ("x", 0, 3)]
    assert shard.step() == [("a", 0, 1), ("x", 0, 1), ("b", 0, 3)]


def test_nobody_takes_the_place_of_who_waits(make_shard: MakeShard) -> None:
    shard = make_shard(worth=WORTH, seqs=2)
    admit(shard, begun("a"), begun("b"), assignment("x", (1, 2, 3)))
    assert shard.step() == [("a", 0, 19)]
    assert shard.step() == [("a", 0, 1), ("b", 0, 3)]


def test_nobody_takes_the_pages_of_who_waits(make_shard: MakeShard) -> None:
    """Five pages are for who goes first, one for who waits, two for `x` and one is spare."""
    shard = make_shard(worth=WORTH, pages=8)
    admit(shard, begun("a"), begun("b"), assignment("x", (1, 2, 3, 4, 5), max_tokens=2))
    assert shard.step() == [("a", 0, 19)]
    assert shard.step() == [("a", 0, 1), ("b", 0, 3)]
    roomy = make_shard(worth=WORTH, pages=9)
    admit(roomy, begun("a"), begun("b"), assignment("x", (1, 2, 3, 4, 5), max_tokens=2))
    assert roomy.step() == [("a", 0, 19), ("x", 0, 5)]


# --- classes ---


def test_a_lower_class_waits_for_a_higher_one(make_shard: MakeShard) -> None:
    shard = make_shard(worth=WORTH)
    admit(shard, begun("batch", rank=2), begun("chat"))
    assert shard.step() == [("chat", 0, 19)]
    assert shard.step() == [("chat", 0, 1), ("batch", 0, 3)]


def test_a_higher_class_does_not_wait_for_a_lower_one(make_shard: MakeShard) -> None:
    """Not even for one that so many have overtaken that it goes first."""
    shard = make_shard(worth=WORTH)
    admit(shard, begun("batch", rank=1))
    for number in range(OVERTAKERS):
        admit(shard, assignment(f"gone{number}", (1,)))
        shard.batcher.cancel(f"gone{number}")
    admit(shard, begun("chat"))
    assert shard.step() == [("batch", 0, 19), ("chat", 0, 19)]


# --- host memory ---


def test_who_needs_the_same_pages_from_host_memory_waits_for_what_comes_behind_them(
    make_shard: MakeShard,
) -> None:
    """Pages come back two a step, beside a stream."""
    shard = make_shard(worth=WORTH, pages=16, context=60, slots=40, loads=2)
    admit(shard, begun("first"))
    shard.finish()
    admit(shard, assignment("filler", tuple(range(500, 559)), max_tokens=1))
    shard.finish()
    admit(shard, assignment("x", (1, 2), max_tokens=20))
    shard.step()
    longer = (*COMMON, *range(200, 212))
    admit(shard, begun("a", first=longer), begun("b", first=longer))
    assert [shard.step() for _ in range(3)] == [
        [("x", 0, 1)],
        [("x", 0, 1), ("a", 0, 15)],
        [("x", 0, 1), ("a", 0, 1), ("b", 0, 3)],
    ]


# --- any prompts ---

texts = st.lists(st.sampled_from([1, 1, 1, 2]), min_size=1, max_size=20).map(tuple)


@given(
    bursts=st.lists(st.lists(texts, max_size=5), min_size=1, max_size=4), budget=st.integers(4, 64)
)
def test_with_room_for_all_no_page_is_computed_twice(
    bursts: list[list[Prompt]], budget: int
) -> None:
    """But for the page of each prompt's last token, which is computed for its logits."""
    shard = ToyShard(pages=200, seqs=4, budget=budget, worth=1)
    computed = 0
    prompts: list[Prompt] = []
    for burst in bursts:
        for prompt in burst:
            admit(shard, assignment(f"r{len(prompts)}", prompt, max_tokens=1))
            prompts.append(prompt)
        computed += sum(count for _, _, count in shard.step()) if burst else 0
    while shard.batcher.has_work:
        computed += sum(count for _, _, count in shard.step())
    ends = [(len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE for prompt in prompts]
    pages = {
        prompt[:page]
        for prompt, end in zip(prompts, ends, strict=True)
        for page in range(BLOCK_SIZE, end + 1, BLOCK_SIZE)
    }
    assert computed <= len(pages) * BLOCK_SIZE + sum(map(len, prompts)) - sum(ends)
    shard.close()
