"""Numbers laid out as tiles want them, and what more a softmax beside tiles needs of vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import raw_memcpy

from actors.engine.emit import (
    FLOATS,
    HALF,
    HALVES,
    LANES,
    LONG,
    RELAXED,
    WORD,
    WORDS,
    call,
    emitted,
    loaded,
    place,
    rounded,
    same,
    spread,
    transposed,
)
from actors.engine.lanes import Lanes, lanes_type

PAIRS = 2 * LANES
"""bfloat16 numbers in a vector of pairs."""

_MASK = ir.IntType(LANES)
_AS_SET = WORD(4)  # rounding as the processor is set to
_DOWNWARDS = WORD(1)


def _series(degree: int) -> list[float]:
    """2 ** x for x from 0 to 1 as a polynomial, its highest term first; of degree 4 within 1e-5.

    It is 1 at 0, so that what is not changed stays the same bit for bit.
    """
    nodes = (np.cos(np.pi * (np.arange(200) + 0.5) / 200) + 1) / 2
    fit = np.polynomial.Chebyshev.fit(nodes, (2.0**nodes - 1) / nodes, degree - 1, domain=[0, 1])
    return [*map(float, fit.convert(kind=np.polynomial.Polynomial).coef[::-1]), 1.0]


_SERIES = _series(4)


@emitted
def exp2(_context: Any, _lanes: Lanes) -> Any:
    """2 ** `lanes`, for numbers up to 0, within 1e-5: what bfloat16 keeps of it is 4e-3."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        every = _MASK(-1)
        rest = call(
            builder,
            "llvm.x86.avx512.mask.reduce.ps.512",  # x - floor(x)
            FLOATS,
            args[0],
            _DOWNWARDS,
            same(0.0),
            every,
            _AS_SET,
        )
        series = same(_SERIES[0])
        for term in _SERIES[1:]:
            series = builder.fadd(
                builder.fmul(series, rest, flags=RELAXED), same(term), flags=RELAXED
            )
        return call(
            builder,
            "llvm.x86.avx512.mask.scalef.ps.512",  # series * 2 ** floor(x)
            FLOATS,
            series,
            args[0],
            same(0.0),
            every,
            _AS_SET,
        )

    return lanes_type(lanes_type), emit


@emitted
def count_from(_context: Any, _number: types.Type) -> Any:
    """`number`, and the 15 after it."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        steps = ir.Constant(FLOATS, [float(i) for i in range(LANES)])
        return builder.fadd(spread(builder, args[0]), steps)

    return lanes_type(types.float32), emit


@emitted
def where_up_to(_context: Any, _left: Lanes, _right: Lanes, _then: Lanes, _other: Lanes) -> Any:
    """`then` in the lanes in which `left` is at most `right`, `other` elsewhere."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        left, right, then, other = args
        return builder.select(builder.fcmp_ordered("<=", left, right), then, other)

    return lanes_type(*[lanes_type] * 4), emit


@emitted
def store_pairs(_context: Any, array: types.Array, at: types.Type, _a: Lanes, _b: Lanes) -> Any:
    """Write 16 pairs of one number of each, rounded to bfloat16, to `array` from `at` on."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        half = same(0x8000, WORDS)
        low, high = (builder.add(builder.bitcast(lanes, WORDS), half) for lanes in args[2:])
        low = builder.lshr(low, same(16, WORDS))
        high = builder.and_(high, same(0xFFFF0000, WORDS))
        there = place(context, builder, signature.args[0], args[0], args[1], WORDS)
        builder.store(builder.or_(low, high), there).align = 2
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes_type, lanes_type), emit


def _turning(count: int, kind: ir.VectorType, turn: Callable[[Any, list[Any]], list[Any]]) -> Any:
    """From `count` rows of a `kind`, `stride` apart, to those that `turn` makes, `apart` apart."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows = _rows(context, builder, signature, args, count, kind)
        _put(context, builder, signature, args, turn(builder, rows))
        return context.get_dummy_value()

    @emitted
    def turned(
        _context: Any,
        source: types.Array,
        _at: Any,
        _stride: Any,
        target: types.Array,
        _to: Any,
        _apart: Any,
    ) -> Any:
        return types.void(source, *[types.intp] * 2, target, *[types.intp] * 2), emit

    return turned


def _paired(builder: Any, rows: list[Any]) -> list[Any]:
    words = [builder.zext(row, WORDS) for row in rows]
    return [
        builder.or_(low, builder.shl(high, same(16, WORDS)))
        for low, high in zip(words[::2], words[1::2], strict=True)
    ]


@emitted
def copy(
    _context: Any, source: types.Array, _at: Any, count: Any, target: types.Array, _to: Any
) -> Any:
    """Copy `count` bfloat16 numbers of `source` from `at` on to `target` from `to` on."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, at, count, target, to = args
        begin = place(context, builder, signature.args[0], source, at, HALF)
        there = place(context, builder, signature.args[3], target, to, HALF)
        raw_memcpy(builder, there, begin, count, HALF.width // 8)
        return context.get_dummy_value()

    return types.void(source, types.intp, types.intp, target, types.intp), emit


@emitted
def take_next(_context: Any, counters: types.Array, at: types.Type) -> Any:
    """A counter's number, which is one more for whoever asks next, of any thread."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        there = place(context, builder, signature.args[0], args[0], args[1], LONG)
        return builder.atomic_rmw("add", there, LONG(1), "monotonic")

    return types.int64(counters, types.intp), emit


def _rows(
    context: Any, builder: Any, signature: Any, args: Any, count: int, kind: ir.VectorType
) -> list[Any]:
    source, at, stride, *_ = args
    rows = []
    for i in range(count):
        first = builder.add(at, builder.mul(stride, LONG(i)))
        there = place(context, builder, signature.args[0], source, first, kind)
        rows.append(loaded(builder, there, HALF.width // 8))
    return rows


def _put(context: Any, builder: Any, signature: Any, args: Any, rows: list[Any]) -> None:
    *_, target, to, apart = args
    for i, row in enumerate(rows):
        first = builder.add(to, builder.mul(apart, LONG(i)))
        there = place(context, builder, signature.args[3], target, first, row.type)
        builder.store(row, there).align = HALF.width // 8


turn_pairs = _turning(LANES, WORDS, transposed)
"""16 rows of 16 pairs to as many, rows for columns."""

turn_halves = _turning(
    PAIRS, HALVES, lambda builder, rows: transposed(builder, _paired(builder, rows))
)
"""32 rows of 16 bfloat16 to 16 rows of 32, rows for columns."""

turn_sums = _turning(
    LANES,
    FLOATS,
    lambda builder, rows: [rounded(builder, row) for row in transposed(builder, rows)],
)
"""16 rows of 16 float32 to as many of bfloat16, rows for columns."""
