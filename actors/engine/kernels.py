"""Paged attention on a CPU, reading pages where they lie: compiled by numba, one row at a time.

A row is one query token. It scores all the keys it sees, turns the scores into weights, and adds
the values up: in float32, in the order of the tokens, and nothing of what it computes depends on
the rows beside it. What a token costs is little beside the way of its key and value from memory, so
pages are asked for in advance, a line beside each that is read, and all heads of a row, which lie
side by side there, are read together. Measured in docs/performance.md.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types

from actors.engine.emit import LANES
from actors.engine.jit import Array, helper
from actors.engine.lanes import QUERIES, narrow, widen
from actors.engine.packing import take_next
from actors.engine.page_sums import TOKENS, add_values, address, score
from actors.engine.softmax import LEAST, cap, weigh

AHEAD = 32
"""Tokens that are asked for before they are read."""

ROWS_A_THREAD = 4
"""With fewer rows, threads share out the heads of each."""


@helper
def _queries_of(unit: int, parts: int, group: int) -> Any:
    """The first of a unit's query heads, and how many: they share a key head with the others of
    their `group`, which is computed in `parts`."""
    part = unit % parts * QUERIES
    return unit // parts * group + part, min(QUERIES, group - part)


@helper
def _scale_query(query: Array, scale: np.float32, asked: Array) -> None:
    """Fill `asked` with the query heads as float32, times `scale`."""
    for g in range(query.shape[0]):
        for d in range(query.shape[1]):
            asked[g, d] = widen(query[g, d]) * scale


@helper
def _store(sums: Array, weight: Array, out: Array) -> None:
    """Fill `out` with each head's weighted sum over its weight, as it is stored."""
    for g in range(out.shape[0]):
        share = np.float32(1.0) / weight[g]
        for d in range(out.shape[1]):
            out[g, d] = narrow(sums[g, d] * share, out[g, d])


@helper
def _turn_to(page: int, block_size: int, table: Array, first: int, last: int) -> Any:
    """Of the tokens `first..last` the first on the `page`-th page, how many are there, and the slot
    of the first."""
    begin = max(first, page * block_size)
    count = min(last + 1, (page + 1) * block_size) - begin
    return begin, count, table[page] * block_size + begin - page * block_size


@helper
def _reading(pages: Array, shape: Any, dim: int, table: Array, turn: Any) -> Any:
    """What a turn reads of flat `pages`: where its first head lies on the first page there is,
    bytes between tokens, and its own pages, by the `table` from one to another."""
    block_size, kv_heads = shape
    head, first, last = turn
    apart = kv_heads * dim * pages.itemsize
    at = address(pages) + head * dim * pages.itemsize
    return at, apart, table, first // block_size, last // block_size + 1


@helper
def _coming(reading: Any, following: Any, page: int, block_size: int) -> Any:
    """The address of what is read `AHEAD` tokens after this page, if need be of what follows, and
    the bytes between its tokens."""
    at, apart, table, _, end = reading
    to = page + max(1, AHEAD // block_size)
    if to >= end:
        at, apart, table, begin, last = following
        to = min(to - end + begin, last - 1)
    return at + table[to] * block_size * apart, apart


@helper
def _attend_heads(
    query: Array,
    keys: Array,
    values: Array,
    shape: Any,
    heads: int,
    table: Array,
    turn: Any,
    next_table: Array,
    next_turn: Any,
    scale: np.float32,
    softcap: np.float32,
    out: Array,
) -> None:
    """A turn: a row's query heads, `[queries, dim]`, which share `heads` key heads, over the tokens
    that it sees. What the next turn reads first is asked for at the end.
    """
    key_dim, value_dim, group = query.shape[1], out.shape[1], query.shape[0] // heads
    block_size, kv_heads = shape
    head, first, last = turn
    seen, parts = last + 1 - first, -(-group // QUERIES)
    units = heads * parts
    asked = np.zeros((units, QUERIES, key_dim), np.float32)
    scores = np.empty((units, seen + 2 * TOKENS, QUERIES), np.float32)
    weight = np.empty((units, LANES), np.float32)
    sums = np.zeros((units, QUERIES, value_dim), np.float32)
    for unit in range(units):
        begin, count = _queries_of(unit, parts, group)
        _scale_query(query[begin : begin + count], scale, asked[unit])
    own_keys = _reading(keys, shape, key_dim, table, turn)
    own_values = _reading(values, shape, value_dim, table, turn)
    stride = kv_heads * key_dim
    for page in range(first // block_size, last // block_size + 1):
        coming, apart = _coming(own_keys, own_values, page, block_size)
        begin, count, slot = _turn_to(page, block_size, table, first, last)
        for unit in range(units):
            past = unit // parts * key_dim
            at, there = slot * stride + head * key_dim + past, coming + past * keys.itemsize
            to = begin - first
            score(asked[unit], keys, at, stride, count, there, apart, scores[unit], to)
    for unit in range(units):
        if softcap > 0:
            cap(scores[unit], seen, softcap)
        scores[unit, seen:] = LEAST
        weigh(scores[unit, : -(-seen // TOKENS) * TOKENS], weight[unit])
    next_keys = _reading(keys, shape, key_dim, next_table, next_turn)
    stride = kv_heads * value_dim
    for page in range(first // block_size, last // block_size + 1):
        coming, apart = _coming(own_values, next_keys, page, block_size)
        begin, count, slot = _turn_to(page, block_size, table, first, last)
        for unit in range(units):
            past = unit // parts * value_dim
            at, there = slot * stride + head * value_dim + past, coming + past * values.itemsize
            by = begin - first
            add_values(scores[unit], by, values, at, stride, count, there, apart, sums[unit])
    for unit in range(units):
        begin, count = _queries_of(unit, parts, group)
        _store(sums[unit], weight[unit], out[begin : begin + count])


@helper
def _turn_of(item: int, heads: int, kv_heads: int, positions: Array, window: int) -> Any:
    """The row of an item, and its turn: the first key head, the first and the last token seen."""
    row, head = item // (kv_heads // heads), item % (kv_heads // heads) * heads
    last = positions[row]
    return row, (head, max(0, last - window + 1) if window > 0 else 0, last)


def _attend_rows(
    query: Array,
    key: Array,
    value: Array,
    keys: Array,
    values: Array,
    slots: Array,
    tables: Array,
    first_page: Array,
    positions: Array,
    attending: int,
    window: int,
    scale: np.float32,
    softcap: np.float32,
    together: int,
    threads: int,
    taken: Array,
    out: Array,
) -> None:
    """Keep each row's key and value, and fill `out` with the attention of the first `attending`.

    `query`, `key` and `value` are `[1, heads, rows, dim]` as a model hands them over, `out`
    `[1, rows, heads, dim]`, and `keys` and `values` `[pages, block_size, kv_heads, dim]`: all
    float32, or all bfloat16 seen as uint16. Row `r` is kept at `slots[r]`, a page times
    `block_size` and a place there. It is at `positions[r]` of its sequence, whose page `i` is
    `tables[first_page[r] + i]`. `window` 0: it sees all before it. `softcap` 0: none.
    Each of `threads` takes as many of a row's key heads as are read `together`, one turn after the
    other until none is left, so that one which has to wait for its CPU keeps nobody waiting.
    `taken` counts them.
    """
    block_size, kv_heads = shape = keys.shape[1:3]
    group = query.shape[1] // kv_heads
    flat_keys, flat_values = keys.reshape(-1), values.reshape(-1)
    for row in numba.prange(len(slots)):
        page, place = slots[row] // block_size, slots[row] % block_size
        keys[page, place] = key[0, :, row]
        values[page, place] = value[0, :, row]
    taken[:] = 0
    items = attending * (kv_heads // together)
    for _thread in numba.prange(threads):
        item = take_next(taken, 0)
        while item < items:
            coming = take_next(taken, 0)
            row, turn = _turn_of(item, together, kv_heads, positions, window)
            following = min(coming, items - 1)
            next_row, next_turn = _turn_of(following, together, kv_heads, positions, window)
            mine = slice(turn[0] * group, (turn[0] + together) * group)
            _attend_heads(
                query[0, mine, row],
                flat_keys,
                flat_values,
                shape,
                together,
                tables[first_page[row] :],
                turn,
                tables[first_page[next_row] :],
                next_turn,
                scale,
                softcap,
                out[0, row, mine],
            )
            item = coming


def attend_rows(query: Array, key: Array, *others: Any) -> None:
    """What `_attend_rows` says, by as many threads as numba has, compiled for the kind of number
    when it is first met."""
    *given, out = others
    threads, kv_heads, attending = numba.get_num_threads(), key.shape[1], given[7]
    together = kv_heads if attending >= ROWS_A_THREAD * threads else 1
    by = together, threads, np.zeros(1, np.int64)
    _compiled(query.dtype)(query, key, *given, *by, out)


@cache
def _compiled(kind: np.dtype[Any]) -> Any:
    """One program however a model's tensors lie in memory: no step waits for another."""
    element = numba.from_dtype(kind)
    given, kept = types.Array(element, 4, "A"), types.Array(element, 4, "C")
    numbers, one, number = types.Array(types.int64, 1, "C"), types.int64, types.float32
    ways = (numbers, numbers, numbers, numbers)
    by = (number, number, one, one, numbers)
    signature = types.void(given, given, given, kept, kept, *ways, one, one, *by, kept)
    return numba.njit([signature], parallel=True, nogil=True, cache=True)(_attend_rows)
