"""Who stands aside while a first token is due that was promised."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.pacing import LEAST
from cluster.sequences import OVERTAKERS
from tests.cluster.paged_memory import assignment
from tests.cluster.slow_shard import chat, prompt_of, slow_step
from tests.cluster.toy_shard import MakeShard, ToyShard


def with_batch(shard: ToyShard, rank: int = 2, tpot_s: float | None = None) -> None:
    """A stream and a prompt of a class without a TTFT."""
    stream = assignment("batch", (1, 2, 3), max_tokens=30, rank=rank, tpot_s=tpot_s)
    shard.batcher.admit(stream)
    shard.step()
    prompt = assignment("prompt", prompt_of(390, 1000), max_tokens=1, rank=rank, tpot_s=tpot_s)
    shard.batcher.admit(prompt)


def test_in_the_step_of_a_first_token_that_is_promised_who_is_promised_nothing_stands_aside(
    roomy: ToyShard,
) -> None:
    with_batch(roomy)
    chat(roomy, tokens=28)
    assert slow_step(roomy, took_s=0.01) == {"chat": 28}
    assert slow_step(roomy, took_s=0.01).keys() == {"batch", "prompt"}


def test_nobody_stands_aside_in_two_steps_after_each_other(roomy: ToyShard) -> None:
    with_batch(roomy)
    beside = []
    for number in range(6):
        one = assignment(f"chat{number}", prompt_of(28, 7 + 100 * number), 1, ttft_s=1.6)
        roomy.batcher.admit(one)
        beside.append(slow_step(roomy, took_s=0.01).keys() - {f"chat{number}"})
    assert beside[::2] == 3 * [set()]
    assert beside[1::2] == 3 * [{"batch", "prompt"}]


@pytest.mark.parametrize(
    ("rank", "tpot_s", "ttft_s"), [(2, 9.0, 1.6), (0, None, 1.6), (2, None, None)]
)
def test_who_is_promised_something_or_not_lower_stands_aside_for_nobody(
    roomy: ToyShard, rank: int, tpot_s: float | None, ttft_s: float | None
) -> None:
    """Nor does anybody for who is promised no first token."""
    with_batch(roomy, rank, tpot_s)
    chat(roomy, tokens=28, ttft_s=ttft_s)
    assert slow_step(roomy, took_s=0.01).keys() >= {"batch", "prompt"}


def test_a_stream_of_a_lower_class_stands_aside_however_many_were_before_it(
    roomy: ToyShard,
) -> None:
    """While a prompt that was overtaken as often as the line allows stands aside for nobody."""
    with_batch(roomy)
    for number in range(3 * OVERTAKERS):
        one = assignment(f"chat{number}", prompt_of(1, number), max_tokens=1, ttft_s=1.6)
        roomy.batcher.admit(one)
        roomy.batcher.cancel(f"chat{number}")
    chat(roomy, tokens=28)
    assert slow_step(roomy, took_s=0.01).keys() == {"chat", "prompt"}
    assert slow_step(roomy, took_s=0.01).keys() == {"batch", "prompt"}


@pytest.mark.parametrize(("pages", "seqs"), [(26, 3), (2000, 2)])
def test_nobody_stands_aside_for_who_cannot_start(
    make_shard: MakeShard, pages: int, seqs: int
) -> None:
    """As pages are short, or places are: streams of all classes go on, whoever waits."""
    shard = make_shard(pages=pages, seqs=seqs, budget=400, context=100)
    for number in range(2):
        prompt = prompt_of(40, 100 * number)
        shard.batcher.admit(assignment(f"batch{number}", prompt, max_tokens=9, rank=2))
    shard.step()
    chat(shard, tokens=60)
    assert slow_step(shard, took_s=0.01) == {"batch0": 1, "batch1": 1}


def test_nobody_stands_aside_for_who_is_behind_one_that_lacks_pages(make_shard: MakeShard) -> None:
    """Of a class above, which is promised nothing; and streams below hold what it waits for."""
    shard = make_shard(pages=40, seqs=8, budget=64, context=100)
    for number in range(2):
        prompt = prompt_of(30, 100 * number)
        shard.batcher.admit(assignment(f"batch{number}", prompt, max_tokens=50, rank=2))
    shard.batcher.admit(assignment("first", prompt_of(4, 3000), max_tokens=60))
    shard.step()
    shard.batcher.admit(assignment("large", prompt_of(90, 1000), max_tokens=4))
    shard.batcher.admit(assignment("chat", prompt_of(4, 2000), max_tokens=4, rank=1, ttft_s=1.6))
    for _ in range(4):
        assert slow_step(shard, took_s=0.01) == {"batch0": 1, "batch1": 1, "first": 1}


@pytest.mark.parametrize(
    ("pages", "seqs", "prompt", "chat_prompt", "chat_output"),
    [(400, 1, 8, 8, 3), (400, 2, 8, 8, 3), (20, 8, 60, 8, 8), (40, 8, 100, 20, 6)],
)
def test_where_places_or_pages_are_short_nobody_is_overtaken_without_bound(
    make_shard: MakeShard, pages: int, seqs: int, prompt: int, chat_prompt: int, chat_output: int
) -> None:
    """Some chats always wait, and one who is promised nothing; each class has its overtakers."""
    shard = make_shard(pages=pages, seqs=seqs, budget=64, context=4 * pages)
    chats = 0

    def keep_chats_waiting() -> None:
        nonlocal chats
        while shard.batcher.stats().waiting < 4:
            tokens = prompt_of(chat_prompt, 1000 * chats + 1)
            shard.batcher.admit(assignment(f"chat{chats}", tokens, chat_output, ttft_s=1.6))
            chats += 1

    keep_chats_waiting()
    shard.batcher.admit(assignment("batch", prompt_of(prompt, 7), max_tokens=3, rank=2))
    while not shard.output("batch")[0]:
        keep_chats_waiting()
        shard.step()
        assert chats < 2 * OVERTAKERS + 32


@settings(max_examples=50)
@given(
    chats=st.lists(st.tuples(st.integers(1, 160), st.floats(0.001, 9.0)), min_size=9, max_size=9),
    tpot_s=st.sampled_from([None, 0.01, 1.0]),
    ttft_s=st.sampled_from([None, 0.1, 16.0]),
)
def test_whatever_comes_and_however_slow_it_is_a_prompt_of_the_lowest_class_moves_on(
    chats: list[tuple[int, float]], tpot_s: float | None, ttft_s: float | None
) -> None:
    shard = ToyShard(pages=400, budget=200, context=400)
    stream = assignment("stream", (1, 2, 3), max_tokens=99, tpot_s=tpot_s, ttft_s=ttft_s)
    shard.batcher.admit(stream)
    left, waited = 250, False
    shard.batcher.admit(assignment("batch", prompt_of(left, 1), max_tokens=1, rank=2))
    for tokens, took_s in chats:
        chat(shard, tokens, ttft_s)
        count = slow_step(shard, took_s).get("batch", 0)
        assert count >= min(LEAST, left) or not (count or waited)
        left, waited = left - count, not count
    shard.close()
