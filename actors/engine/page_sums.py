"""What a row does with the tokens of one page: it scores keys, and adds values up.

For four queries at once, as vectors in registers. Beside each token another one is asked for, which
is to be read later: so memory has as much to do while much is computed as while little is.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from numba import types
from numba.core.cgutils import alloca_once, for_range, for_range_slice

from actors.engine.emit import (
    FLOAT,
    FLOATS,
    HALF,
    LANES,
    LONG,
    POINTER,
    RELAXED,
    ask_for,
    emitted,
    floats_at,
    least,
    loaded,
    place,
    same,
    shuffle,
    spread,
)
from actors.engine.jit import Array, helper
from actors.engine.lanes import QUERIES, widen

TOKENS = LANES // QUERIES
"""Of which the scores fill a vector."""

_LINE = 64
"""Bytes that come from memory at once."""


@emitted
def address(_context: Any, array: types.Array) -> Any:
    """Where the first element of `array` lies."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first = place(context, builder, signature.args[0], args[0], LONG(0), HALF)
        return builder.ptrtoint(first, LONG)

    return types.intp(array), emit


def _ask_at(builder: Any, there: Any) -> None:
    ask_for(builder, builder.inttoptr(there, POINTER))


def _variable(builder: Any, value: Any = None) -> Any:
    """A vector, 0 at first, that LLVM makes a register of."""
    variable = alloca_once(builder, FLOATS)
    builder.store(same(0.0) if value is None else value, variable)
    return variable


def _add_product(builder: Any, total: Any, left: Any, right: Any) -> None:
    product = builder.fmul(left, right, flags=RELAXED)
    builder.store(builder.fadd(builder.load(total), product, flags=RELAXED), total)


def _summed_up(builder: Any, vectors: list[Any]) -> Any:
    """In each lane the sum of one of sixteen vectors, by 45 operations where one after the other
    would take 128: of two vectors at a time, folded, the halves stand side by side."""
    for width in (8, 4, 2, 1):
        half = len(vectors) // 2
        vectors = [_folded(builder, vectors[k], vectors[k + half], width) for k in range(half)]
    return vectors[0]


def _folded(builder: Any, left: Any, right: Any, width: int) -> Any:
    """Of each `2 * width` lanes of two vectors both halves added: the left's, then the right's."""
    halves = [
        [
            side + start + half + i
            for start in range(0, LANES, 2 * width)
            for side in (0, LANES)
            for i in range(width)
        ]
        for half in (0, width)
    ]
    return builder.fadd(*(shuffle(builder, left, right, each) for each in halves), flags=RELAXED)


@emitted
def _score_tokens(
    _context: Any,
    asked: types.Array,
    _dim: types.Type,
    keys: types.Array,
    _at: types.Type,
    _stride: types.Type,
    _count: types.Type,
    _coming: types.Type,
    _apart: types.Type,
    scores: types.Array,
    _to: types.Type,
) -> Any:
    """Write the products of four queries with `TOKENS` keys to `scores`, from `to` on.

    The queries lie in `asked`, `dim` numbers each, and the keys from `at` on, `stride` apart. Of
    numbers that fill no vector nothing is counted. Where fewer keys are there, their last stands in
    the place of the others. Beside it what lies from the address `coming` on is asked for, as many
    rows as keys, `apart` bytes each.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        asked, dim, keys, at, stride, count, coming, apart, scores, to = args
        flat = partial(floats_at, context, builder)
        queries = [builder.mul(dim, LONG(q)) for q in range(QUERIES)]
        last = builder.sub(count, LONG(1))
        tokens = [
            builder.add(at, builder.mul(stride, least(builder, LONG(t), last)))
            for t in range(TOKENS)
        ]
        ahead = [builder.add(coming, builder.mul(apart, LONG(t))) for t in range(TOKENS)]
        size = signature.args[2].dtype.bitwidth // 8
        sums = [_variable(builder) for _ in range(TOKENS * QUERIES)]
        whole = builder.and_(dim, LONG(-LANES))
        with for_range_slice(builder, LONG(0), whole, LONG(LANES)) as (i, _):
            factors = [flat(signature.args[0], asked, builder.add(q, i)) for q in queries]
            for t, token in enumerate(tokens):
                _ask_at(builder, builder.add(ahead[t], builder.mul(i, LONG(size))))
                key = flat(signature.args[2], keys, builder.add(token, i))
                for q, factor in enumerate(factors):
                    _add_product(builder, sums[t * QUERIES + q], factor, key)
        totals = _summed_up(builder, [builder.load(each) for each in sums])
        there = place(context, builder, signature.args[8], scores, to, FLOATS)
        builder.store(totals, there).align = 4
        return context.get_dummy_value()

    one = types.intp
    return types.void(asked, one, keys, *[one] * 5, scores, one), emit


def _adding(vectors: int) -> Any:
    """Add to four queries' sums, `dim` apart from `to` on, so many vectors of `count` values.

    The values lie from `at` on, `stride` apart; the queries' weights of the first from `first` on.
    Beside it memory is asked for as in `_score_tokens`.
    """

    @emitted
    def add_values(
        _context: Any,
        weights: types.Array,
        _first: types.Type,
        values: types.Array,
        _at: types.Type,
        _stride: types.Type,
        _count: types.Type,
        _coming: types.Type,
        _apart: types.Type,
        sums: types.Array,
        _to: types.Type,
        _dim: types.Type,
    ) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            weights, first, values, at, stride, count, coming, apart, sums, to, dim = args
            size = signature.args[2].dtype.bitwidth // 8
            flat = partial(floats_at, context, builder)
            places = [
                builder.add(to, builder.add(builder.mul(dim, LONG(q)), LONG(v * LANES)))
                for q in range(QUERIES)
                for v in range(vectors)
            ]
            totals = [_variable(builder, flat(signature.args[8], sums, each)) for each in places]
            with for_range(builder, count) as loop:
                token = builder.add(at, builder.mul(stride, loop.index))
                ahead = builder.add(coming, builder.mul(apart, loop.index))
                for begin in range(0, vectors * LANES * size, _LINE):
                    _ask_at(builder, builder.add(ahead, LONG(begin)))
                read = [
                    flat(signature.args[2], values, builder.add(token, LONG(v * LANES)))
                    for v in range(vectors)
                ]
                weight = builder.add(first, builder.mul(loop.index, LONG(QUERIES)))
                for q in range(QUERIES):
                    own = builder.add(weight, LONG(q))
                    there = place(context, builder, signature.args[0], weights, own, FLOAT)
                    factor = spread(builder, loaded(builder, there, 4))
                    for v, value in enumerate(read):
                        _add_product(builder, totals[q * vectors + v], factor, value)
            for total, each in zip(totals, places, strict=True):
                there = place(context, builder, signature.args[8], sums, each, FLOATS)
                builder.store(builder.load(total), there).align = 4
            return context.get_dummy_value()

        one = types.intp
        return types.void(weights, one, values, *[one] * 5, sums, one, one), emit

    return add_values


_add_values = _adding(1)

_add_wide_values = _adding(2)
"""A sum that is added to at once has to wait for itself; eight of them need not."""


@helper
def score(
    asked: Array,
    keys: Array,
    at: int,
    stride: int,
    count: int,
    coming: int,
    apart: int,
    scores: Array,
    first: int,
) -> None:
    """Fill `scores[first:first + count]`: products of each query with `count` keys.

    Those lie in `keys`, which is flat, `stride` elements apart from `at` on. Beside it as many
    tokens are asked for from the address `coming` on, `apart` bytes each. What follows in `scores`,
    up to a whole vector, is not kept.
    """
    dim = asked.shape[1]
    for token in range(0, count, TOKENS):
        _score_tokens(
            asked,
            dim,
            keys,
            at + token * stride,
            stride,
            count - token,
            coming + token * apart,
            apart,
            scores,
            (first + token) * QUERIES,
        )
    for token in range(count):
        for i in range(dim // LANES * LANES, dim):
            key = widen(keys[at + token * stride + i])
            for query in range(QUERIES):
                scores[first + token, query] += asked[query, i] * key


@helper
def add_values(
    weights: Array,
    first: int,
    values: Array,
    at: int,
    stride: int,
    count: int,
    coming: int,
    apart: int,
    sums: Array,
) -> None:
    """Add to `sums`, `[QUERIES, dim]`, `count` values by their weights from token `first` on.

    They lie in `values` as the keys do in `score`, and so does what is asked for.
    """
    dim, weight, size = sums.shape[1], first * QUERIES, values.itemsize
    whole, wide = dim // LANES * LANES, dim // (2 * LANES) * (2 * LANES)
    for i in range(0, wide, 2 * LANES):
        _add_wide_values(
            weights, weight, values, at + i, stride, count, coming + i * size, apart, sums, i, dim
        )
    for i in range(wide, whole, LANES):
        _add_values(
            weights, weight, values, at + i, stride, count, coming + i * size, apart, sums, i, dim
        )
    for token in range(count):
        for i in range(whole, dim):
            value = widen(values[at + token * stride + i])
            for query in range(QUERIES):
                sums[query, i] += weights[first + token, query] * value
