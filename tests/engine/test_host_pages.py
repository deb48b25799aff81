"""Pages in host memory: what went there comes back as it was, instead of being computed again."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from actors.engine.host_pages import HostPages
from actors.engine.kv_cache import KVCache, LayerShape
from actors.engine.transfer import PageTransfer
from actors.parcels import Layout
from cluster.blocks import BlockPool, page_hashes
from cluster.hand_over import PageSize
from cluster.host_tier import HostTier
from cluster.messages import Request
from cluster.steps import PageLoad, PageSave
from tests.engine.driving import (
    assignment,
    engine_of,
    random_prompt,
    request,
    run,
    tokens_of,
)
from tests.engine.families import greedy

PAGE = 4


def cache_of(pages: int) -> KVCache:
    layers = {0: LayerShape(2, 4, 4), 1: LayerShape(1, 8, 4)}
    cache = KVCache(layers, pages, PAGE, torch.float32, torch.device("cpu"))
    for page in range(pages):
        cache.scatter_bytes([page], torch.full((1, cache.page_bytes), page, dtype=torch.uint8))
    return cache


def contents(cache: KVCache) -> list[int]:
    """Of each page, where it is one number all through."""
    rows = cache.gather_bytes(range(cache.num_blocks))
    assert bool((rows == rows[:, :1]).all())
    numbers: list[int] = rows[:, 0].tolist()
    return numbers


@pytest.mark.parametrize("segment", [1, 2**26])
def test_pages_come_back_to_other_pages_as_they_were(
    segment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.engine.host_pages.SEGMENT_BYTES", segment)
    cache = cache_of(6)
    host = HostPages(cache)
    host.save([PageSave(4, 7), PageSave(2, 0)])
    host.save([PageSave(5, 1)])
    host.load([PageLoad(7, 0), PageLoad(1, 4), PageLoad(0, 5)])
    assert contents(cache) == [4, 1, 2, 3, 5, 2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="memory can be pinned here")
def test_where_no_memory_can_be_pinned_other_memory_keeps_the_pages() -> None:
    cache = cache_of(3)
    host, before = HostPages(cache), contents(cache)
    host._pins = True
    host.save([PageSave(page, page) for page in range(3)])
    host.load([PageLoad(slot, 2 - slot) for slot in range(3)])
    assert contents(cache) == before[::-1]


def test_what_makes_room_for_another_shards_pages_is_saved_before_they_are_written() -> None:
    cache, pool = cache_of(2), BlockPool(2, PAGE, prefix_caching=True, host=HostTier(4))
    host = HostPages(cache)
    into = PageTransfer(pool, cache, host, Layout(b"", PageSize(PAGE, cache.page_bytes)))
    pages, (old, new) = pool.allocate(1) or [], page_hashes(range(2 * PAGE), PAGE, b"")
    pool.seal(pages[0], old)
    pool.release(pages)
    pool.allocate(1)
    into.take((new,), (new,), np.full((1, cache.page_bytes), 9, np.uint8))
    assert contents(cache)[pages[0]] == 9
    assert pool.open((old,)) == pages
    host.move(pool.drain_moves())
    assert contents(cache)[pages[0]] == pages[0]


def crowd(count: int, output: int) -> list[Request]:
    source = random.Random(7)
    return [request(f"r{i}", random_prompt(source, 22), output) for i in range(count)]


def test_prompts_that_left_a_small_pool_come_back_and_are_not_computed_again() -> None:
    """Twelve prompts, one after the other, twice, in a pool that holds four of them."""
    wanted = crowd(12, output=3)
    engine = engine_of("llama", num_blocks=28, host_gib=0.01)
    for one in wanted:
        run(engine, [one])
    computed = engine.stats().tokens_computed
    for one in wanted:
        again = run(engine, [one])
        assert tokens_of(again, one.request_id) == greedy("llama", list(one.prompt), 3)
    stats = engine.stats()
    assert stats.pages_loaded >= 8 * 5
    # Of each prompt the last page, which is not full, and two of the three tokens of output.
    assert stats.tokens_computed - computed == 12 * (2 + 2)


def test_the_preempted_go_on_from_host_memory_with_the_same_tokens() -> None:
    wanted = crowd(6, output=40)
    engine = engine_of("llama", num_blocks=20, host_gib=0.01)
    output = run(engine, wanted)
    stats = engine.stats()
    assert stats.pages_loaded > 0
    for one in wanted:
        assert tokens_of(output, one.request_id) == greedy("llama", list(one.prompt), 40)
    once = sum(len(one.prompt) + 40 - 1 for one in wanted)
    assert once < stats.tokens_computed <= once + stats.preemptions * (PAGE - 1)


def test_batch_is_paused_for_a_chat_and_ends_with_the_same_tokens() -> None:
    batch, chat = crowd(4, output=40), request("chat", random_prompt(random.Random(8), 9), 60)
    engine = engine_of("llama", num_blocks=40, host_gib=0.01)
    for one in batch:
        engine.admit(assignment(one, rank=2))
    for _ in range(12):
        engine.step()
    engine.admit(assignment(chat))
    output = run(engine, [])
    stats = engine.stats()
    assert stats.pauses > 0
    assert tokens_of(output, "chat") == greedy("llama", list(chat.prompt), 60)
    assert stats.tokens_computed <= sum(
        len(one.prompt) + one.stopping.max_tokens - 1 for one in (*batch, chat)
    ) + (stats.pauses + stats.preemptions) * (PAGE - 1)
