"""Paged attention on a CPU, reading pages where they lie: compiled by numba, one row at a time.

A row is one query token. It scores all the keys it sees, turns the scores into weights, and adds
the values up: in float32, in the order of the tokens, and nothing of what it computes depends on
the rows beside it. Measured (docs/performance.md): the vectors of `lanes` halve its time, asking
for the next page in advance halves it again.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types

from actors.engine.emit import LANES
from actors.engine.jit import Array, helper
from actors.engine.lanes import (
    QUERIES,
    fill,
    load,
    narrow,
    prefetch,
    store,
    store_totals,
    widen,
)
from actors.engine.packing import take_next
from actors.engine.softmax import LEAST, cap, weigh

_ZERO = np.float32(0.0)
_LINE = 64
"""Bytes that come from memory at once."""

AHEAD = 48
"""Tokens that are asked for before they are read."""


@helper
def _fetch(pages: Array, page: int, block_size: int, kv_heads: int, head: int, dim: int) -> None:
    """Ask for the head's part of a page, as its tokens lie in the flat `pages`."""
    stride = kv_heads * dim
    at = page * block_size * stride + head * dim
    step = _LINE // pages.itemsize
    for token in range(block_size):
        for d in range(0, dim, step):
            prefetch(pages, at + token * stride + d)


@helper
def _fetch_first(
    keys: Array,
    block_size: int,
    kv_heads: int,
    table: Array,
    head: int,
    first: int,
    last: int,
    dim: int,
) -> None:
    """Ask for the first pages that `_attend_head` will read."""
    begin = first // block_size
    for page in range(begin, min(begin + _ahead(block_size), last // block_size + 1)):
        _fetch(keys, table[page], block_size, kv_heads, head, dim)


@helper
def _ahead(block_size: int) -> int:
    return max(1, AHEAD // block_size)


@helper
def _score(
    asked: Array, keys: Array, at: int, stride: int, count: int, scores: Array, first: int
) -> None:
    """Fill `scores[first:first + count]`: products of each query with `count` keys.

    Those lie in `keys`, which is flat, `stride` elements apart from `at` on.
    """
    dim = asked.shape[1]
    whole = dim // LANES * LANES
    for token in range(first, first + count):
        a, b, c, d = fill(_ZERO), fill(_ZERO), fill(_ZERO), fill(_ZERO)
        for i in range(0, whole, LANES):
            key = load(keys, at + i)
            a += load(asked, i) * key
            b += load(asked, dim + i) * key
            c += load(asked, 2 * dim + i) * key
            d += load(asked, 3 * dim + i) * key
        store_totals(scores, token * QUERIES, a, b, c, d)
        for i in range(whole, dim):
            for query in range(QUERIES):
                scores[token, query] += asked[query, i] * widen(keys[at + i])
        at += stride


@helper
def _add_values(
    weights: Array, first: int, values: Array, at: int, stride: int, count: int, sums: Array
) -> None:
    """Add to `sums`, `[QUERIES, dim]`, `count` values by their weights from token `first` on.

    They lie in `values` as the keys do in `_score`.
    """
    dim = sums.shape[1]
    whole = dim // LANES * LANES
    for i in range(0, whole, LANES):
        a, b = load(sums, i), load(sums, dim + i)
        c, d = load(sums, 2 * dim + i), load(sums, 3 * dim + i)
        for token in range(count):
            value = load(values, at + token * stride + i)
            a += fill(weights[first + token, 0]) * value
            b += fill(weights[first + token, 1]) * value
            c += fill(weights[first + token, 2]) * value
            d += fill(weights[first + token, 3]) * value
        store(sums, i, a)
        store(sums, dim + i, b)
        store(sums, 2 * dim + i, c)
        store(sums, 3 * dim + i, d)
    for token in range(count):
        for i in range(whole, dim):
            value = widen(values[at + token * stride + i])
            for query in range(QUERIES):
                sums[query, i] += weights[first + token, query] * value


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
def _attend_head(
    query: Array,
    keys: Array,
    values: Array,
    block_size: int,
    kv_heads: int,
    table: Array,
    head: int,
    first: int,
    last: int,
    scale: np.float32,
    softcap: np.float32,
    out: Array,
) -> None:
    """Up to `QUERIES` of a row's query heads, `[queries, dim]`, over the tokens `first..last`.

    They share the key head `head`. The first pages are asked for; the others are here, in time.
    """
    key_dim, value_dim = query.shape[1], out.shape[1]
    key_stride, value_stride = kv_heads * key_dim, kv_heads * value_dim
    seen = last + 1 - first
    asked = np.zeros((QUERIES, key_dim), np.float32)
    scores = np.full((-(-seen // QUERIES) * QUERIES, QUERIES), LEAST, np.float32)
    weight = np.empty(LANES, np.float32)
    sums = np.zeros((QUERIES, value_dim), np.float32)
    _scale_query(query, scale, asked)
    begin_page, end_page, ahead = first // block_size, last // block_size + 1, _ahead(block_size)
    pages = end_page - begin_page
    for page in range(begin_page, end_page):
        coming = page + ahead
        if coming < end_page:
            _fetch(keys, table[coming], block_size, kv_heads, head, key_dim)
        elif coming - pages < end_page:
            _fetch(values, table[coming - pages], block_size, kv_heads, head, value_dim)
        begin, count, slot = _turn_to(page, block_size, table, first, last)
        at = slot * key_stride + head * key_dim
        _score(asked, keys, at, key_stride, count, scores, begin - first)
    if softcap > 0:
        cap(scores, seen, softcap)
    weigh(scores, weight)
    for page in range(begin_page, end_page):
        coming = page + ahead
        if coming < end_page:
            _fetch(values, table[coming], block_size, kv_heads, head, value_dim)
        begin, count, slot = _turn_to(page, block_size, table, first, last)
        at = slot * value_stride + head * value_dim
        _add_values(scores, begin - first, values, at, value_stride, count, sums)
    _store(sums, weight, out)


@helper
def _turn_of(item: int, parts: int, kv_heads: int, positions: Array, window: int) -> Any:
    """The row and the key head of an item, and the first and the last token that the row sees."""
    row, head = item // parts // kv_heads, item // parts % kv_heads
    last = positions[row]
    return row, head, (max(0, last - window + 1) if window > 0 else 0), last


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
    Each of `threads` takes a row's head after the other until none is left, so that one which has
    to wait for its CPU keeps nobody waiting, and asks for the pages of the next while it computes
    one. `taken` counts them.
    """
    heads, key_dim = query.shape[1], query.shape[3]
    block_size, kv_heads = keys.shape[1:3]
    group = heads // kv_heads
    parts = -(-group // QUERIES)
    flat_keys, flat_values = keys.reshape(-1), values.reshape(-1)
    for row in numba.prange(len(slots)):
        page, place = slots[row] // block_size, slots[row] % block_size
        keys[page, place] = key[0, :, row]
        values[page, place] = value[0, :, row]
    taken[:] = 0
    items = attending * kv_heads * parts
    for _thread in numba.prange(threads):
        item = take_next(taken, 0)
        while item < items:
            coming = take_next(taken, 0)
            if coming < items:
                row, head, first, last = _turn_of(coming, parts, kv_heads, positions, window)
                table = tables[first_page[row] :]
                _fetch_first(flat_keys, block_size, kv_heads, table, head, first, last, key_dim)
            row, head, first, last = _turn_of(item, parts, kv_heads, positions, window)
            begin = head * group + item % parts * QUERIES
            mine = slice(begin, min(begin + QUERIES, (head + 1) * group))
            _attend_head(
                query[0, mine, row],
                flat_keys,
                flat_values,
                block_size,
                kv_heads,
                tables[first_page[row] :],
                head,
                first,
                last,
                scale,
                softcap,
                out[0, row, mine],
            )
            item = coming


def attend_rows(query: Array, *others: Any) -> None:
    """What `_attend_rows` says, by as many threads as numba has, compiled for the kind of number
    when it is first met."""
    *given, out = others
    by = numba.get_num_threads(), np.zeros(1, np.int64)
    _compiled(query.dtype)(query, *given, *by, out)


@cache
def _compiled(kind: np.dtype[Any]) -> Any:
    """One program however a model's tensors lie in memory: no step waits for another."""
    element = numba.from_dtype(kind)
    given, kept = types.Array(element, 4, "A"), types.Array(element, 4, "C")
    numbers, one, number = types.Array(types.int64, 1, "C"), types.int64, types.float32
    ways = (numbers, numbers, numbers, numbers)
    by = (number, number, one, numbers)
    signature = types.void(given, given, given, kept, kept, *ways, one, one, *by, kept)
    return numba.njit([signature], parallel=True, nogil=True, cache=True)(_attend_rows)
