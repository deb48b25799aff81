"""Parts of the attention of one block of rows, in `squares`: what `prompts` is made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from actors.engine.jit import Array, helper
from actors.engine.lanes import fill, larger, load, store
from actors.engine.multipliers import multiply
from actors.engine.packing import (
    copy,
    count_from,
    exp2,
    store_pairs,
    turn_pairs,
    turn_sums,
    where_up_to,
)
from actors.engine.softmax import LEAST
from actors.engine.squares import BLOCK, HALF_BLOCK, ROWS, TOKENS


@helper
def copy_tile(
    pages: Array,
    table: Array,
    first: int,
    count: int,
    block_size: int,
    stride: int,
    begin: int,
    dim: int,
    target: Array,
    to: int,
    width: int,
) -> None:
    """Copy one head of `count` tokens from `first` on to rows of `width`, of which there are
    `TOKENS`: what is no token, or beyond `dim`, is zero."""
    for token in range(TOKENS):
        row = to + token * width
        copied = dim if token < count else 0
        if copied:
            slot = table[(first + token) // block_size] * block_size + (first + token) % block_size
            copy(pages, slot * stride + begin, dim, target, row)
        for d in range(copied, width):
            target[row + d] = 0


@helper
def ask(query: Array, head: int, row: int, count: int, asked: Array, half: int) -> None:
    """Lay out up to 16 rows of a head as columns, in the first or second `half` of `asked`."""
    dim = query.shape[3]
    apart = query.strides[2] // query.itemsize
    begin = head * (query.strides[1] // query.itemsize) + row * apart
    if count >= ROWS and dim % TOKENS == 0 and query.strides[3] == query.itemsize:
        for d in range(0, dim, TOKENS):
            turn_pairs(query, begin + d, apart, asked, d * BLOCK + half * HALF_BLOCK, TOKENS)
        return
    for r in range(count):
        for d in range(dim):
            pair = d // TOKENS * 2 * HALF_BLOCK + half * HALF_BLOCK + d % TOKENS // 2 * TOKENS
            asked[pair + 2 * r + d % 2] = query[0, head, row + r, d]


@helper
def score(
    keys: Array, at: int, apart: int, count: int, width: int, asked: Array, scores: Array
) -> None:
    """Fill `scores`, `[count, BLOCK]`, by tiles of keys `[TOKENS, width]`, `apart` apart."""
    deep = width // TOKENS
    for token in range(0, count, TOKENS):
        tile = at + token // TOKENS * apart
        multiply(scores, token * BLOCK, False, keys, tile, width, TOKENS, asked, 0, deep)


@helper
def hide(scores: Array, count: int, first: int, position: int, half: int, window: int) -> None:
    """Of tokens from `first` on, make those least that a row does not see; rows from `position`.

    Without a window every row sees what is up to the first.
    """
    least = fill(LEAST)
    places = count_from(np.float32(position))
    for token in range(0 if window > 0 else max(0, position + 1 - first), count):
        at = token * BLOCK + half * ROWS
        score = where_up_to(fill(np.float32(first + token)), places, load(scores, at), least)
        if window > 0:
            past = fill(np.float32(first + token + window - 1))
            score = where_up_to(places, past, score, least)
        store(scores, at, score)


@helper
def _largest_of_four(scores: Array, at: int) -> Any:
    """Of four tokens' scores: one after the other, each comparison would wait for the last."""
    first = larger(load(scores, at), load(scores, at + BLOCK))
    second = larger(load(scores, at + 2 * BLOCK), load(scores, at + 3 * BLOCK))
    return larger(first, second)


@helper
def weigh(
    scores: Array, count: int, half: int, scale: np.float32, sums: Array, weights: Array
) -> None:
    """Turn scores into `weights`, `TOKENS` tokens a tile, relative to the largest so far.

    `sums` are rows of `BLOCK`: the largest so far, the sum of all weights, and what is to be
    multiplied with what was summed up before.
    """
    by = fill(scale)
    before = load(sums, half * ROWS)
    most = before
    for at in range(half * ROWS, count * BLOCK, 4 * BLOCK):
        most = larger(most, _largest_of_four(scores, at))
    shrunk = exp2((before - most) * by)
    least = most * by
    added = fill(np.float32(0.0))
    for token in range(0, count, 2):
        at = token * BLOCK + half * ROWS
        first = exp2(load(scores, at) * by - least)
        second = exp2(load(scores, at + BLOCK) * by - least)
        added = added + (first + second)
        tile = token // TOKENS * 2 * HALF_BLOCK + half * HALF_BLOCK
        store_pairs(weights, tile + token % TOKENS * ROWS, first, second)
    store(sums, half * ROWS, most)
    store(sums, BLOCK + half * ROWS, load(sums, BLOCK + half * ROWS) * shrunk + added)
    store(sums, 2 * BLOCK + half * ROWS, shrunk)


@helper
def multiply_all(out: Array, width: int, factors: Array, at: int) -> None:
    """Multiply each column of `out`, `[width, BLOCK]`, by its factor."""
    first, second = load(factors, at), load(factors, at + ROWS)
    for d in range(0, width * BLOCK, BLOCK):
        store(out, d, load(out, d) * first)
        store(out, d + ROWS, load(out, d + ROWS) * second)


@helper
def add_values(
    values: Array, at: int, apart: int, count: int, width: int, weights: Array, out: Array
) -> None:
    """Add to `out`, `[width, BLOCK]`, tiles of turned values, `apart` apart, by their weights."""
    deep = count // TOKENS
    for d in range(0, width, BLOCK):
        tile = at + d * TOKENS
        multiply(out, d * BLOCK, True, values, tile, TOKENS, apart, weights, 0, deep)


@helper
def answer(
    sums: Array, width: int, half: int, head: int, row: int, count: int, turned: Array, out: Array
) -> None:
    """Write up to 16 columns of `sums`, `[width, BLOCK]`, to a head of `out`."""
    dim = out.shape[3]
    if count >= ROWS and dim % ROWS == 0:
        apart = out.shape[2] * dim
        for d in range(0, dim, ROWS):
            to = row * apart + head * dim + d
            turn_sums(sums, d * BLOCK + half * ROWS, BLOCK, out, to, apart)
        return
    for d in range(0, width, ROWS):
        turn_sums(sums, d * BLOCK + half * ROWS, BLOCK, turned, d * ROWS, ROWS)
    for r in range(count):
        for d in range(dim):
            out[0, row + r, head, d] = turned[d // ROWS * ROWS * ROWS + r * ROWS + d % ROWS]
