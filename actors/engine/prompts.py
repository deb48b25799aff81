"""Paged attention of prompts on a CPU that multiplies bfloat16: 32 rows of a head at a time.

As FlashAttention does it (Dao et al., 2022, arXiv:2205.14135), turned on its side: of a block's
scores each column is a row of the prompt. So a softmax goes down the lanes of vectors, with no sum
across them, and its weights come out as the next product reads them. First the keys and values that
are seen are copied from their pages, the values turned; then threads take blocks, the longest
first, until none is left. Measured (docs/performance.md): 0.4 to 0.6 of the time of torch's.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types

from actors.engine.jit import Array, helper
from actors.engine.multipliers import begin as begin_work
from actors.engine.multipliers import end as end_work
from actors.engine.packing import take_next, turn_halves
from actors.engine.prompt_blocks import (
    add_values,
    answer,
    ask,
    copy_tile,
    hide,
    multiply_all,
    score,
    weigh,
)
from actors.engine.softmax import LEAST, LOG2_E
from actors.engine.squares import BLOCK, PART, ROWS, TOKENS, padded
from actors.engine.tiling import Part, TileScratch

_ONE = np.float32(1.0)


@helper
def _attend_block(
    query: Array,
    head: int,
    row: int,
    rows: int,
    position: int,
    begin: int,
    keys: Array,
    values: Array,
    at: int,
    kv_heads: int,
    key_width: int,
    value_width: int,
    window: int,
    scale: np.float32,
    halves: Array,
    floats: Array,
    out: Array,
) -> None:
    """Up to `BLOCK` rows of a head, the first at `position`; the tile `at` has token `begin`."""
    asked, weights = halves[: BLOCK * key_width], halves[BLOCK * key_width :]
    scores, added = floats[: PART * BLOCK], floats[PART * BLOCK :][: BLOCK * value_width]
    sums = floats[PART * BLOCK + BLOCK * value_width :]
    asked[:] = 0
    added[:] = 0
    sums[:BLOCK] = LEAST
    sums[BLOCK:] = 0
    for half in range(2):
        ask(query, head, row + half * ROWS, min(ROWS, rows - half * ROWS), asked, half)
    first = max(begin, (position - window + 1) // TOKENS * TOKENS) if window > 0 else begin
    end = position + rows
    while first < end:
        count = min(PART, -(-(end - first) // TOKENS) * TOKENS)
        tile = at + (first - begin) // TOKENS * kv_heads
        apart = kv_heads * TOKENS
        score(keys, tile * TOKENS * key_width, apart * key_width, count, key_width, asked, scores)
        for half in range(2):
            hide(scores, count, first, position + half * ROWS, half, window)
            weigh(scores, count, half, scale, sums, weights)
        multiply_all(added, value_width, sums, 2 * BLOCK)
        add_values(
            values,
            tile * TOKENS * value_width,
            apart * value_width,
            count,
            value_width,
            weights,
            added,
        )
        first += count
    for column in range(BLOCK):
        sums[column] = _ONE / sums[BLOCK + column]
    multiply_all(added, value_width, sums, 0)
    for half in range(2):
        count = min(ROWS, rows - half * ROWS)
        answer(added, value_width, half, head, row + half * ROWS, count, weights, out)


@helper
def _bring_near(
    keys: Array,
    values: Array,
    key_dim: int,
    value_dim: int,
    block_size: int,
    kv_heads: int,
    head: int,
    table: Array,
    first: int,
    count: int,
    loose: Array,
    near_keys: Array,
    near_values: Array,
    item: int,
) -> None:
    """Copy one head of `count` tokens from `first` on to the tile `item`, the values turned."""
    key_width, value_width = padded(key_dim), padded(value_dim)
    stride, begin, to = kv_heads * key_dim, head * key_dim, item * TOKENS * key_width
    copy_tile(
        keys, table, first, count, block_size, stride, begin, key_dim, near_keys, to, key_width
    )
    stride, begin, to = kv_heads * value_dim, head * value_dim, item * TOKENS * value_width
    copy_tile(
        values, table, first, count, block_size, stride, begin, value_dim, loose, 0, value_width
    )
    for d in range(0, value_width, ROWS):
        turn_halves(loose, d, value_width, near_values, to + d * TOKENS, TOKENS)


def _attend_prompts(
    query: Array,
    keys: Array,
    values: Array,
    tables: Array,
    first_page: Array,
    blocks: Array,
    tiles: Array,
    window: int,
    scale: np.float32,
    near_keys: Array,
    near_values: Array,
    halves: Array,
    floats: Array,
    shapes: Array,
    taken: Array,
    out: Array,
) -> None:
    """Fill `out` with the attention of the rows of `blocks`, whose keys and values are kept.

    The first five and `out` as in `kernels`, bfloat16 seen as uint16; `window` 0: all before it.
    `blocks` and `tiles` as in `tiling`, and the rest its scratch.
    """
    heads, key_dim, value_dim = query.shape[1], query.shape[3], out.shape[3]
    block_size, kv_heads = keys.shape[1:3]
    flat_keys, flat_values = keys.reshape(-1), values.reshape(-1)
    taken[:] = 0
    for thread in numba.prange(len(halves)):
        item = take_next(taken, 0)
        while item < len(tiles) * kv_heads:
            row, first, count = tiles[item // kv_heads]
            _bring_near(
                flat_keys,
                flat_values,
                key_dim,
                value_dim,
                block_size,
                kv_heads,
                item % kv_heads,
                tables[first_page[row] :],
                first,
                count,
                halves[thread],
                near_keys,
                near_values,
                item,
            )
            item = take_next(taken, 0)
    for thread in numba.prange(len(halves)):
        begin_work(shapes)
        item = take_next(taken, 1)
        while item < len(blocks) * heads:
            position, row, rows, begin, tile = blocks[item // heads]
            head = item % heads
            _attend_block(
                query,
                head,
                row,
                rows,
                position,
                begin,
                near_keys,
                near_values,
                tile * kv_heads + head // (heads // kv_heads),
                kv_heads,
                padded(key_dim),
                padded(value_dim),
                window,
                scale,
                halves[thread],
                floats[thread],
                out,
            )
            item = take_next(taken, 1)
        end_work()


def attend_prompts(
    query: Array,
    keys: Array,
    values: Array,
    ways: tuple[Array, Array],
    parts: tuple[Part, ...],
    window: int,
    scale: float,
    scratch: TileScratch,
    out: Array,
) -> None:
    """What `_attend_prompts` says, one part after the other. Compiled when it is first met."""
    dims, by = (query.shape[3], out.shape[3]), np.float32(scale * LOG2_E)
    for part in parts:
        near = scratch.near(len(part.tiles) * keys.shape[2], *dims)
        _compiled()(
            query,
            keys,
            values,
            *ways,
            part.blocks,
            part.tiles,
            window,
            by,
            *near,
            *scratch.own(*dims),
            out,
        )


@cache
def _compiled() -> Any:
    given, kept = types.Array(types.uint16, 4, "A"), types.Array(types.uint16, 4, "C")
    numbers, pairs = types.Array(types.int64, 1, "C"), types.Array(types.int64, 2, "C")
    flat, halves = types.Array(types.uint16, 1, "C"), types.Array(types.uint16, 2, "C")
    floats, bytes_ = types.Array(types.float32, 2, "C"), types.Array(types.uint8, 1, "C")
    ways, scratch = (numbers, numbers), (flat, flat, halves, floats, bytes_, numbers)
    signature = types.void(
        given, kept, kept, *ways, pairs, pairs, types.int64, types.float32, *scratch, kept
    )
    return numba.njit([signature], parallel=True, nogil=True, cache=True)(_attend_prompts)
