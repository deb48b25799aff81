"""Rows that read their pages by torch's kernel come out as if the pages had been gathered."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.engine.batch import build_batch
from actors.engine.kv_cache import InPlace, KVCache, LayerShape
from actors.engine.varlen import (
    PAGE_MULTIPLE,
    by_chunk,
    by_row,
    pack,
    packed_size,
    table_of,
    unpack,
    usable,
    usable_on,
)
from benchmarks.gpu.attended import attended, full_cache, plan_of
from benchmarks.gpu.flash_on_cpu import flash_on_cpu

CPU = torch.device("cpu")
HOPPER, TURING = (9, 0), (7, 5)
HEAD = LayerShape(kv_heads=2, key_dim=64, value_dim=64)
DIM = 16
PAGES = 8
BFLOAT16 = 2e-2
"""What rounding to bfloat16 may change, as a share of the outputs' spread."""


@pytest.fixture
def splits() -> Iterator[list[int | None]]:
    with flash_on_cpu() as asked:
        yield asked


def test_half_precision_on_pages_of_256_is_what_the_kernel_can_do() -> None:
    assert usable(HOPPER, torch.bfloat16, 256, [HEAD])
    assert usable((8, 0), torch.float16, 256, [HEAD])


@pytest.mark.parametrize(
    ("capability", "dtype", "block_size", "layer"),
    [
        (TURING, torch.float16, 256, HEAD),
        (HOPPER, torch.float32, 256, HEAD),
        (HOPPER, torch.bfloat16, 16, HEAD),
        (HOPPER, torch.bfloat16, 256, LayerShape(2, 72, 64)),
        (HOPPER, torch.bfloat16, 256, LayerShape(2, 260, 260)),
        (HOPPER, torch.bfloat16, 256, LayerShape(2, 60, 60)),
    ],
)
def test_all_else_gathers_pages(
    capability: tuple[int, int], dtype: torch.dtype, block_size: int, layer: LayerShape
) -> None:
    assert not usable(capability, dtype, block_size, [HEAD, layer])


def test_a_device_is_asked_whether_it_has_the_kernel() -> None:
    asked = (CPU, torch.bfloat16, PAGE_MULTIPLE, [HEAD])
    assert not usable_on(*asked)
    with flash_on_cpu():
        assert usable_on(*asked)
    assert not usable_on(*asked)


def test_a_table_goes_on_with_a_sequences_last_page_where_others_are_longer() -> None:
    tables, first = np.array([7, 3, 9, 4, 5]), np.array([0, 3])
    assert table_of(tables, first, np.array([9, 5]), 4).tolist() == [[7, 3, 9], [4, 5, 5]]
    assert table_of(tables, first, np.array([4, 1]), 4).tolist() == [[7], [4]]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1), st.integers(1, 3))
def test_what_was_packed_is_unpacked(sizes: list[tuple[int, int]], width: int) -> None:
    counts = np.array([count for count, _ in sizes])
    lengths = counts + [before for _, before in sizes]
    table = np.arange(len(sizes) * width, dtype=np.int32).reshape(-1, width)
    packed = pack(table, lengths, counts)
    assert len(packed) == packed_size(len(sizes), width)
    part = unpack(torch.from_numpy(packed), len(sizes), slice(0, 1), 9, 18)
    assert part.starts.diff().tolist() == counts.tolist()
    assert part.keys.diff().tolist() == part.lengths.tolist() == lengths.tolist()
    assert part.table.tolist() == table.tolist()


def cache_of(heads: int, dtype: torch.dtype, in_place: InPlace) -> KVCache:
    return full_cache(LayerShape(heads, DIM, DIM), PAGES, dtype, CPU, in_place)


chunk_sizes = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 3) | st.just(40)), min_size=1, max_size=3
)


@pytest.mark.parametrize("kept", [1, 2, 4])
@pytest.mark.parametrize("in_place", [InPlace.RAGGED, InPlace.RAGGED_ROWS])
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chunk_sizes, st.none() | st.integers(1, 400))
def test_rows_attend_to_what_they_would_have_gathered(
    splits: list[int | None],
    in_place: InPlace,
    kept: int,
    chunks: list[tuple[int, int]],
    window: int | None,
) -> None:
    right = attended(cache_of(kept, torch.float32, InPlace.NONE), chunks, 4, window)
    ours = attended(cache_of(kept, torch.bfloat16, in_place), chunks, 4, window)
    assert (ours - right).abs().max() <= BFLOAT16 * right.abs().max()


def test_decodes_and_longer_chunks_are_parts_of_their_own() -> None:
    cache = cache_of(2, torch.bfloat16, InPlace.RAGGED)
    paths = build_batch(plan_of([(5, 3), (300, 1), (9, 1)]), cache).paths
    decodes, longer = by_chunk(
        cache, paths.tables, paths.first_page, paths.positions, np.array([1, 1, 3])
    )
    assert (decodes.rows, decodes.most_queries, decodes.most_keys) == (slice(0, 2), 1, 301)
    assert (longer.rows, longer.most_queries, longer.most_keys) == (slice(2, 5), 3, 8)
    assert decodes.lengths.tolist() == [301, 10]
    assert longer.starts.tolist() == [0, 3]


def test_each_row_by_itself_sees_the_keys_up_to_its_own() -> None:
    cache = cache_of(2, torch.bfloat16, InPlace.RAGGED_ROWS)
    plan = plan_of([(5, 3)])
    paths = build_batch(plan, cache).paths
    (rows,) = by_row(cache, paths.tables, paths.first_page, paths.positions)
    assert rows.lengths.tolist() == [6, 7, 8]
    assert rows.table.tolist() == [plan.chunks[0].sequence.blocks] * 3


DECODES = [(300, 1), (9, 1)]


def test_only_decodes_of_heads_that_share_keys_leave_the_splits_to_the_kernel(
    splits: list[int | None],
) -> None:
    attended(cache_of(2, torch.bfloat16, InPlace.RAGGED), DECODES, 4, None)
    attended(cache_of(4, torch.bfloat16, InPlace.RAGGED), DECODES, 4, None)
    attended(cache_of(2, torch.bfloat16, InPlace.RAGGED), DECODES, 4, 20)
    attended(cache_of(2, torch.bfloat16, InPlace.RAGGED), [(0, 5)], 4, None)
    assert splits == [None, 1, 1, 1]


def test_a_row_that_must_repeat_is_never_split(splits: list[int | None]) -> None:
    attended(cache_of(2, torch.bfloat16, InPlace.RAGGED_ROWS), DECODES, 4, None)
    assert splits == [1]
