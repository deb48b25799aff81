"""Paged attention on a CPU, reading pages where they lie: compiled by numba, one row at a time.

A row is one query token. It scores all the keys it sees, turns the scores into weights, and adds
the values up: in float32, in the order of the tokens, and nothing of what it computes depends on
the rows beside it. Measured (docs/performance.md): the vectors of `lanes` halve its time, asking
for the next page in advance halves it again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

# Both are read by numba when it is imported, so nothing else imports it. By default the threads
# would be the CPUs this process is bound to now, but a shard is widened when another leaves the
# machine; and compiled kernels would be taken for new as long as this file is, whatever `lanes` is.
os.environ.setdefault("NUMBA_NUM_THREADS", str(os.cpu_count() or 1))
os.environ.setdefault(
    "NUMBA_CACHE_DIR",
    str(
        Path(__file__).with_name("__pycache__")
        / hashlib.sha256(Path(__file__).with_name("lanes.py").read_bytes()).hexdigest()[:12]
    ),
)

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from actors.engine.lanes import (
    LANES,
    fill,
    larger,
    largest,
    load,
    narrow,
    nearest,
    power_of_two,
    prefetch,
    store,
    total,
    widen,
)

numba.config.THREADING_LAYER = "omp"  # torch's own pool of threads, not a second one beside it

_ZERO = np.float32(0.0)
_LEAST = np.float32(-1e30)
_LOG2_E = np.float32(1.4426950408889634)
_EXP_SERIES = tuple(
    np.float32(term)
    for term in (1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1.0)
)
_LINE = 64
"""Bytes that come from memory at once."""

Array = NDArray[Any]
T = TypeVar("T")


def use_threads(count: int) -> None:
    """Have torch and these kernels compute with `count` threads, as far as there are CPUs.

    torch comes last: numba, as it starts, gives OpenMP in this thread all the CPUs there are.
    """
    numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))
    torch.set_num_threads(count)


_helper: Callable[[T], T] = numba.njit(
    nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz", "arcp"}, error_model="numpy"
)


@_helper
def _exp(numbers: Any) -> Any:
    """e ** `numbers`, lane by lane, for numbers up to 0, within 2e-7.

    2 ** x by its Taylor polynomial of degree 6 around the nearest integer.
    """
    power = larger(numbers * fill(_LOG2_E), fill(np.float32(-126.0)))
    whole = nearest(power)
    rest = power - whole
    series = fill(np.float32(1.5403530e-4))
    for term in _EXP_SERIES:
        series = series * rest + fill(term)
    return series * power_of_two(whole)


@_helper
def _fetch(pages: Array, at: int, stride: int, count: int, dim: int) -> None:
    """Ask for `count` tokens of `dim` elements, `stride` apart from `at` on."""
    step = _LINE // pages.itemsize
    for token in range(count):
        for d in range(0, dim, step):
            prefetch(pages, at + token * stride + d)


@_helper
def _score(
    asked: Array, keys: Array, at: int, stride: int, count: int, scores: Array, first: int
) -> None:
    """Fill `scores[:, first:first + count]`: products of each query with `count` keys.

    Those lie in `keys`, which is flat, `stride` elements apart from `at` on.
    """
    group, dim = asked.shape
    whole = dim // LANES * LANES
    for token in range(count):
        for g in range(group):
            products = fill(_ZERO)
            for d in range(0, whole, LANES):
                products += load(asked, g * dim + d) * load(keys, at + d)
            score = total(products)
            for d in range(whole, dim):
                score += asked[g, d] * widen(keys[at + d])
            scores[g, first + token] = score
        at += stride


@_helper
def _cap(scores: Array, count: int, softcap: np.float32) -> None:
    for g in range(scores.shape[0]):
        for token in range(count):
            scores[g, token] = softcap * np.float32(np.tanh(scores[g, token] / softcap))


@_helper
def _weigh(scores: Array, g: int) -> Any:
    """Turn a query's scores into weights relative to the largest; returns their sum."""
    begin, end = g * scores.shape[1], (g + 1) * scores.shape[1]
    most = fill(_LEAST)
    for at in range(begin, end, LANES):
        most = larger(most, load(scores, at))
    most = fill(largest(most))
    added = fill(_ZERO)
    for at in range(begin, end, LANES):
        weights = _exp(load(scores, at) - most)
        store(scores, at, weights)
        added += weights
    return total(added)


@_helper
def _add_values(
    weights: Array, first: int, values: Array, at: int, stride: int, count: int, sums: Array
) -> None:
    """Add to `sums`, `[group, dim]`, `count` values by their weights from token `first` on.

    They lie in `values` as the keys do in `_score`.
    """
    group, dim = sums.shape
    whole = dim // LANES * LANES
    for g in range(group):
        for d in range(0, whole, LANES):
            added = load(sums, g * dim + d)
            for token in range(count):
                weight = fill(weights[g, first + token])
                added += weight * load(values, at + token * stride + d)
            store(sums, g * dim + d, added)
        for token in range(count):
            for d in range(whole, dim):
                sums[g, d] += weights[g, first + token] * widen(values[at + token * stride + d])


@_helper
def _scale_query(query: Array, scale: np.float32, asked: Array) -> None:
    """Fill `asked` with the query heads as float32, times `scale`."""
    for g in range(query.shape[0]):
        for d in range(query.shape[1]):
            asked[g, d] = widen(query[g, d]) * scale


@_helper
def _store(sums: Array, weight: Array, out: Array) -> None:
    """Fill `out` with each head's weighted sum over its weight, as it is stored."""
    for g in range(out.shape[0]):
        share = np.float32(1.0) / weight[g]
        for d in range(out.shape[1]):
            out[g, d] = narrow(sums[g, d] * share, out[g, d])


@_helper
def _visible(page: int, block_size: int, first: int, last: int) -> Any:
    """Of the tokens `first..last`: the first on the `page`-th page, and how many are there."""
    begin = max(first, page * block_size)
    return begin, min(last + 1, (page + 1) * block_size) - begin


@_helper
def _attend_row(
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
    """One row's query heads that share the key head `head`, `[group, dim]`, over `first..last`."""
    group, key_dim = query.shape
    value_dim = out.shape[1]
    key_stride, value_stride = kv_heads * key_dim, kv_heads * value_dim
    first_page, last_page = first // block_size, last // block_size
    asked = np.empty((group, key_dim), np.float32)
    scores = np.full((group, -(-(last + 1 - first) // LANES) * LANES), _LEAST, np.float32)
    weight = np.empty(group, np.float32)
    sums = np.zeros((group, value_dim), np.float32)
    _scale_query(query, scale, asked)
    for page in range(first_page, last_page + 1):
        begin, count = _visible(page, block_size, first, last)
        coming = table[min(page + 1, last_page)] * block_size
        _fetch(keys, coming * key_stride + head * key_dim, key_stride, block_size, key_dim)
        slot = table[page] * block_size + begin - page * block_size
        at = slot * key_stride + head * key_dim
        _score(asked, keys, at, key_stride, count, scores, begin - first)
    if softcap > 0:
        _cap(scores, last + 1 - first, softcap)
    for g in range(group):
        weight[g] = _weigh(scores, g)
    for page in range(first_page, last_page + 1):
        begin, count = _visible(page, block_size, first, last)
        coming = table[min(page + 1, last_page)] * block_size
        _fetch(
            values, coming * value_stride + head * value_dim, value_stride, block_size, value_dim
        )
        slot = table[page] * block_size + begin - page * block_size
        at = slot * value_stride + head * value_dim
        _add_values(scores, begin - first, values, at, value_stride, count, sums)
    _store(sums, weight, out)


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
    block_size, kv_heads = keys.shape[1:3]
    flat_keys, flat_values = keys.reshape(-1), values.reshape(-1)
    group = heads // kv_heads
    for item in numba.prange(rows * kv_heads):
        row, head = item // kv_heads, item % kv_heads
        mine = slice(head * group, (head + 1) * group)
        last = positions[row]
        first = max(0, last - window + 1) if window > 0 else 0
        _attend_row(
            query[row, mine],
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
            out[row, mine],
        )
