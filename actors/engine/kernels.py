"""Paged attention on a CPU, reading pages where they lie: compiled by numba, one row at a time.

A row is one query token. It reads its own keys in order, in float32, with a running maximum and sum
(online softmax: Milakov and Gimelshein, 2018, "Online normalizer calculation for softmax"), and
nothing of what it computes depends on the rows beside it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

# Read by numba when it is imported, so nothing else imports it. By default it would be the CPUs
# this process is bound to now, but a shard is widened when another leaves the machine.
os.environ.setdefault("NUMBA_NUM_THREADS", str(os.cpu_count() or 1))

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

numba.config.THREADING_LAYER = "omp"  # torch's own pool of threads, not a second one beside it

_FLOAT, _WORD, _HALF = ir.FloatType(), ir.IntType(32), ir.IntType(16)
_LOG2_E = np.float32(1.4426950408889634)
_LEAST = np.float32(-1e30)
_RELAXED = {"reassoc", "contract", "nsz", "arcp"}

Array = NDArray[Any]
T = TypeVar("T")


def use_threads(count: int) -> None:
    """Compute with `count` threads, as far as the machine has CPUs."""
    numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))


@intrinsic  # type: ignore[untyped-decorator]
def _widen(_context: Any, stored: types.Type) -> Any:
    """A stored number as float32: bfloat16, seen as uint16, is its upper half."""

    def widen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        if stored != types.uint16:
            return args[0]
        return builder.bitcast(builder.shl(builder.zext(args[0], _WORD), _WORD(16)), _FLOAT)

    return types.float32(stored), widen


@intrinsic  # type: ignore[untyped-decorator]
def _narrow(_context: Any, number: types.Type, like: types.Type) -> Any:
    """A float32 as it is stored beside `like`; to bfloat16 rounded to nearest, ties to even."""

    def narrow(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        if like != types.uint16:
            return args[0]
        bits = builder.bitcast(args[0], _WORD)
        odd = builder.and_(builder.lshr(bits, _WORD(16)), _WORD(1))
        rounded = builder.add(bits, builder.add(odd, _WORD(0x7FFF)))
        return builder.trunc(builder.lshr(rounded, _WORD(16)), _HALF)

    return like(number, like), narrow


@intrinsic  # type: ignore[untyped-decorator]
def _power_of_two(_context: Any, exponent: types.Type) -> Any:
    """2 ** `exponent`, an int32 from -126 to 127, as float32."""

    def power(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.shl(builder.add(args[0], _WORD(127)), _WORD(23)), _FLOAT)

    return types.float32(types.int32), power


_helper: Callable[[T], T] = numba.njit(
    nogil=True, cache=True, fastmath=_RELAXED, error_model="numpy"
)


@_helper
def _exp(number: np.float32) -> Any:
    """e ** `number` for numbers up to 0, within 2e-7; numba's own would not be vectorized.

    2 ** x by its Taylor polynomial of degree 6 around the nearest integer.
    """
    power = max(number * _LOG2_E, np.float32(-126.0))
    whole = np.floor(power + np.float32(0.5))
    rest = power - whole
    series = np.float32(1.5403530e-4)
    series = series * rest + np.float32(1.3333558e-3)
    series = series * rest + np.float32(9.6181291e-3)
    series = series * rest + np.float32(5.5504109e-2)
    series = series * rest + np.float32(2.4022651e-1)
    series = series * rest + np.float32(6.9314718e-1)
    series = series * rest + np.float32(1.0)
    return series * _power_of_two(np.int32(whole))


@_helper
def _widen_page(page: Array, head: int, begin: int, end: int, wide: Array) -> None:
    """Tokens `begin` to `end` of one head of a page, as float32."""
    for t in range(begin, end):
        for d in range(page.shape[2]):
            wide[t, d] = _widen(page[t, head, d])


@_helper
def _score(
    asked: Array, wide: Array, begin: int, end: int, softcap: np.float32, scores: Array
) -> Any:
    """Fill `scores` with one query's products with the keys; returns the largest."""
    most = _LEAST
    for t in range(begin, end):
        score = np.float32(0.0)
        for d in range(asked.shape[0]):
            score += asked[d] * wide[t, d]
        if softcap > 0:
            score = softcap * np.float32(np.tanh(score / softcap))
        scores[t] = score
        most = max(most, score)
    return most


@_helper
def _weigh(scores: Array, begin: int, end: int, most: np.float32) -> Any:
    """Turn scores into weights relative to `most`; returns their sum."""
    added = np.float32(0.0)
    for t in range(begin, end):
        scores[t] = _exp(scores[t] - most)
        added += scores[t]
    return added


@_helper
def _add_values(scores: Array, wide: Array, begin: int, end: int, total: Array) -> None:
    for t in range(begin, end):
        share = scores[t]
        for d in range(total.shape[0]):
            total[d] += share * wide[t, d]


@_helper
def _scale_query(query: Array, scale: np.float32, asked: Array) -> None:
    """Fill `asked` with the query heads as float32, times `scale`."""
    for g in range(query.shape[0]):
        for d in range(query.shape[1]):
            asked[g, d] = _widen(query[g, d]) * scale


@_helper
def _store(total: Array, weight: Array, out: Array) -> None:
    """Fill `out` with each head's weighted sum over its weight, as it is stored."""
    for g in range(out.shape[0]):
        share = np.float32(1.0) / weight[g]
        for d in range(out.shape[1]):
            out[g, d] = _narrow(total[g, d] * share, out[g, d])


@_helper
def _attend_row(
    query: Array,
    keys: Array,
    values: Array,
    table: Array,
    head: int,
    first: int,
    last: int,
    scale: np.float32,
    softcap: np.float32,
    out: Array,
) -> None:
    """One row's query heads that share the key head `head`, `[group, dim]`, over `first..last`."""
    group, key_dim = query.shape
    block_size, _, value_dim = values.shape[1:]
    asked = np.empty((group, key_dim), np.float32)
    wide = np.empty((block_size, max(key_dim, value_dim)), np.float32)
    scores = np.empty((group, block_size), np.float32)
    largest = np.full(group, _LEAST, np.float32)
    weight = np.zeros(group, np.float32)
    total = np.zeros((group, value_dim), np.float32)
    _scale_query(query, scale, asked)
    for page in range(first // block_size, last // block_size + 1):
        begin = max(0, first - page * block_size)
        end = min(block_size, last + 1 - page * block_size)
        _widen_page(keys[table[page]], head, begin, end, wide)
        for g in range(group):
            most = max(largest[g], _score(asked[g], wide, begin, end, softcap, scores[g]))
            kept = _exp(largest[g] - most)
            largest[g] = most
            weight[g] = weight[g] * kept + _weigh(scores[g], begin, end, most)
            for d in range(value_dim):
                total[g, d] *= kept
        _widen_page(values[table[page]], head, begin, end, wide)
        for g in range(group):
            _add_values(scores[g], wide, begin, end, total[g])
    _store(total, weight, out)


@numba.njit(parallel=True, nogil=True, cache=True)  # type: ignore[untyped-decorator]
def attend_rows(
    query: Array,
    keys: Array,
    values: Array,
    tables: Array,
    first_page: Array,
    positions: Array,
    window: int,
    scale: np.float32,
    softcap: np.float32,
    out: Array,
) -> None:
    """Fill `out` with the attention of each row of `query` over its own pages.

    `query` and `out` are `[rows, heads, dim]`, `keys` and `values` `[pages, block_size, kv_heads,
    dim]`, all float32, or all bfloat16 seen as uint16. Row `r` is at `positions[r]`, and its page
    `i` is `tables[first_page[r] + i]`. `window` 0: it sees all before it. `softcap` 0: none.
    """
    rows, heads = query.shape[:2]
    kv_heads = keys.shape[2]
    group = heads // kv_heads
    for item in numba.prange(rows * kv_heads):
        row, head = item // kv_heads, item % kv_heads
        mine = slice(head * group, (head + 1) * group)
        last = positions[row]
        first = max(0, last - window + 1) if window > 0 else 0
        _attend_row(
            query[row, mine],
            keys,
            values,
            tables[first_page[row] :],
            head,
            first,
            last,
            scale,
            softcap,
            out[row, mine],
        )
