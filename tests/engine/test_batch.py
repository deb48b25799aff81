"""The ragged row and its reads, page by page."""

from __future__ import annotations

from dataclasses import replace

import torch

from actors.engine.batch import Read, StepBatch, build_batch
from actors.engine.kv_cache import InPlace, KVCache, LayerShape
from actors.engine.layouts import COMPANY
from cluster.steps import Chunk, PageCopy, Sequence, StepPlan
from tests.engine.driving import request

CPU = torch.device("cpu")
SHAPE = LayerShape(kv_heads=2, key_dim=3, value_dim=5)


def cache_of(
    num_blocks: int = 40, block_size: int = 4, in_place: InPlace = InPlace.NONE
) -> KVCache:
    return KVCache({0: SHAPE}, num_blocks, block_size, torch.float32, CPU, in_place)


def chunk(start: int, count: int, blocks: list[int]) -> Chunk:
    tokens = list(range(100, 100 + start + count))
    return Chunk(Sequence(request("r", tokens), 0, tokens, blocks=blocks), start, count, True)


def batch_of(*chunks: Chunk, in_place: InPlace = InPlace.NONE) -> StepBatch:
    return build_batch(StepPlan(chunks), cache_of(in_place=in_place))


def pages(read: Read) -> list[int]:
    assert read.pages is not None
    return list(read.pages.tolist())


def visible(read: Read, sequence: int = 0, query: int = 0) -> list[int]:
    """The key places, counted over the read's pages of one sequence, that a query sees."""
    assert read.mask is not None
    return (read.mask[sequence, 0, query] == 0).nonzero()[:, 0].tolist()


def test_decodes_come_first_and_longest_first() -> None:
    batch = batch_of(chunk(0, 3, [9]), chunk(5, 1, [1, 2]), chunk(9, 1, [3, 4, 5]))
    assert batch.first_row == {2: 0, 1: 1, 0: 2}
    assert batch.positions.tolist() == [[9, 5, 0, 1, 2]]
    assert batch.tokens.tolist() == [[109, 105, 100, 101, 102]]


def test_slots_follow_the_block_table() -> None:
    batch = batch_of(chunk(2, 4, [7, 3]))
    assert batch.slots.tolist() == [30, 31, 12, 13]


def test_decodes_read_in_place_where_a_kernel_can() -> None:
    chunks = [chunk(0, 9, [9, 8, 7]), chunk(5, 1, [1, 2]), chunk(9, 1, [3, 4, 5])]
    batch = batch_of(*chunks, in_place=InPlace.DECODES)
    assert batch.alone == 2
    assert [read.rows for read in batch.reads(None)] == [slice(2, 11)]
    assert batch_of(*chunks, in_place=InPlace.ALL).alone == COMPANY


def test_where_rows_have_to_repeat_a_small_step_is_filled_up_on_the_spare_page() -> None:
    batch = batch_of(chunk(3, 2, [9, 8]), chunk(9, 1, [3, 4, 5]), in_place=InPlace.ALL)
    assert batch.tokens.shape[1] == COMPANY
    assert batch.first_row[0] == 1
    assert batch.first_row[1] == 0
    assert set((batch.slots[3:] // batch.cache.block_size).tolist()) == {batch.cache.spare}
    large = batch_of(chunk(0, 20, [3, 4, 5, 6, 7, 8, 9]), in_place=InPlace.ALL)
    assert large.tokens.shape[1] == 20


def test_guesses_are_rows_behind_the_known_token_and_read_in_place_with_it() -> None:
    decode = replace(chunk(5, 1, [1, 2]), guesses=(7, 8))
    batch = batch_of(chunk(0, 9, [9, 8, 7]), decode, in_place=InPlace.DECODES)
    assert batch.tokens[0, :3].tolist() == [105, 7, 8]
    assert batch.positions[0, :3].tolist() == [5, 6, 7]
    assert batch.alone == 3


def test_every_row_finds_the_pages_of_its_sequence() -> None:
    paths = batch_of(chunk(3, 2, [9, 8]), chunk(9, 1, [3, 4, 5]), in_place=InPlace.ALL).paths
    pages = [paths.tables[first:][:2].tolist() for first in paths.first_page]
    assert pages[:3] == [[3, 4], [9, 8], [9, 8]]
    assert paths.positions[:3].tolist() == [9, 3, 4]


def test_decodes_of_similar_length_share_a_read_padded_to_the_longest() -> None:
    batch = batch_of(chunk(9, 1, [3, 4, 5]), chunk(5, 1, [1, 2]))
    (read,) = batch.reads(None)
    assert (read.rows, read.sequences) == (slice(0, 2), 2)
    assert pages(read) == [3, 4, 5, 1, 2, 0]
    assert visible(read, 0) == list(range(10))
    assert visible(read, 1) == list(range(6))


def test_what_is_read_beyond_a_sequence_is_known_and_gathered_as_zeros() -> None:
    batch = batch_of(chunk(9, 1, [3, 4, 5]), chunk(5, 1, [1, 2]))
    (read,) = batch.reads(None)
    assert read.beyond is not None
    assert read.pages is not None
    assert read.beyond.tolist() == [10, 11, *range(12 + 6, 24)]
    batch.cache.write(
        0, torch.arange(160), torch.full((160, 2, 3), torch.nan), torch.ones(160, 2, 5)
    )
    keys, values = batch.cache.gather(0, read.pages, 2, read.beyond)
    assert [bool(token.isnan().all()) for token in keys[1, 0]] == [True] * 6 + [False] * 6
    assert not keys[1, 0, 6:].any()
    assert values[0, 1, :, 0].tolist() == [1.0] * 10 + [0.0] * 2


def test_a_much_shorter_decode_is_read_apart() -> None:
    batch = batch_of(chunk(19, 1, [1, 2, 3, 4, 5]), chunk(5, 1, [6, 7]))
    assert [pages(read) for read in batch.reads(None)] == [[1, 2, 3, 4, 5], [6, 7]]


def test_a_prompt_s_first_chunk_reads_no_pages() -> None:
    assert batch_of(chunk(0, 6, [1, 2])).reads(None) == (Read(slice(0, 6), 1),)


def test_a_later_chunk_reads_all_before_it_and_is_causal() -> None:
    (read,) = batch_of(chunk(3, 3, [8, 9])).reads(None)
    assert pages(read) == [8, 9]
    assert [visible(read, query=q) for q in range(3)] == [[*range(n)] for n in (4, 5, 6)]


def test_a_window_leaves_out_pages_and_keys_beyond_it() -> None:
    (read,) = batch_of(chunk(17, 1, [1, 2, 3, 4, 5])).reads(6)
    assert pages(read) == [4, 5]
    assert [12 + place for place in visible(read)] == [12, 13, 14, 15, 16, 17]


def test_a_first_chunk_longer_than_the_window_reads_through_the_mask() -> None:
    (read,) = batch_of(chunk(0, 6, [1, 2])).reads(4)
    assert visible(read, query=5) == [2, 3, 4, 5]


def test_pages_reserved_beyond_the_known_tokens_are_not_read() -> None:
    (read,) = batch_of(chunk(3, 1, [1, 2, 3])).reads(None)
    assert pages(read) == [1]


def test_what_is_written_is_gathered_in_order() -> None:
    cache = cache_of()
    key, value = torch.randn(6, 2, 3), torch.randn(6, 2, 5)
    cache.write(0, torch.tensor([30, 31, 12, 13, 14, 15]), key, value)
    keys, values = cache.gather(0, torch.tensor([7, 3]), 1)
    assert torch.equal(keys[0].transpose(0, 1)[2:], key)
    assert torch.equal(values[0].transpose(0, 1)[2:], value)


def test_a_page_is_copied_whole() -> None:
    cache = cache_of()
    key, value = torch.randn(4, 2, 3), torch.randn(4, 2, 5)
    cache.write(0, torch.arange(8, 12), key, value)
    cache.copy_pages([PageCopy(source=2, target=5)])
    keys, values = cache.gather(0, torch.tensor([2, 5]), 2)
    assert torch.equal(keys[0], keys[1])
    assert torch.equal(values[0], values[1])
