"""Sixteen float32 numbers as one value in a numba function, for loops it does not vectorize itself.

Numba has no vectors, but who emits LLVM's can hand them from one function to the next: they live
in registers. Arrays are read and written as flat memory, at an element's number. bfloat16, which
numba lacks as numpy does, is seen as uint16: the upper half of a float32.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

from numba import types
from numba.core.cgutils import alloca_once, for_range, for_range_slice
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, models, register_model

from actors.engine.emit import (
    FLOAT,
    FLOATS,
    HALF,
    HALVES,
    LANES,
    LONG,
    POINTER,
    RELAXED,
    WORDS,
    ask_for,
    call,
    emitted,
    loaded,
    place,
    rounded,
    same,
    shuffle,
    spread,
    widened,
)

QUERIES = 4
"""Where scores lie, the lanes are those of four queries with a token, then with the next."""

TOKENS = LANES // QUERIES
"""Of which the scores fill a vector."""


LINE = 64
"""Bytes that come from memory at once."""


class Lanes(types.Type):  # type: ignore[misc]
    """The type of such a value."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


lanes_type = Lanes()


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        super().__init__(manager, lanes, FLOATS)


def _define_operator(operation: Any, instruction: str) -> None:
    @infer_global(operation)
    class _Typing(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: Any, _keywords: Any) -> Any:
            return signature(lanes_type, *args) if args == (lanes_type, lanes_type) else None

    @lower_builtin(operation, lanes_type, lanes_type)  # type: ignore[untyped-decorator]
    def _emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*args, flags=RELAXED)


_define_operator(operator.add, "fadd")
_define_operator(operator.iadd, "fadd")
_define_operator(operator.sub, "fsub")
_define_operator(operator.mul, "fmul")


@emitted
def widen(_context: Any, stored: types.Type) -> Any:
    """A stored number as float32."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        if stored != types.uint16:
            return args[0]
        return widened(builder, args[0])

    return types.float32(stored), emit


@emitted
def narrow(_context: Any, number: types.Type, like: types.Type) -> Any:
    """A float32 as it is stored beside `like`; to bfloat16 rounded to nearest, ties to even."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        if like != types.uint16:
            return args[0]
        return rounded(builder, args[0])

    return like(number, like), emit


@emitted
def load(_context: Any, array: types.Array, at: types.Type) -> Any:
    """The 16 elements of `array` from `at` on, as float32."""
    stored = array.dtype

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = FLOATS if stored == types.float32 else HALVES
        there = place(context, builder, signature.args[0], args[0], args[1], kind)
        numbers = loaded(builder, there, stored.bitwidth // 8)
        return numbers if stored == types.float32 else widened(builder, numbers)

    return lanes_type(array, types.intp), emit


@emitted
def store(_context: Any, array: types.Array, at: types.Type, _lanes: Lanes) -> Any:
    """Write them to the float32 `array` from `at` on."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        written = builder.store(
            args[2], place(context, builder, signature.args[0], args[0], args[1], FLOATS)
        )
        written.align = 4
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes_type), emit


@emitted
def address(_context: Any, array: types.Array) -> Any:
    """Where the first element of `array` lies."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first = place(context, builder, signature.args[0], args[0], LONG(0), HALF)
        return builder.ptrtoint(first, LONG)

    return types.intp(array), emit


@emitted
def fill(_context: Any, _number: types.Type) -> Any:
    """One number in all lanes."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return spread(builder, args[0])

    return lanes_type(types.float32), emit


@emitted
def larger(_context: Any, _left: Lanes, _right: Lanes) -> Any:
    """The larger of two, lane by lane."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return _larger(builder, *args)

    return lanes_type(lanes_type, lanes_type), emit


@emitted
def nearest(_context: Any, _lanes: Lanes) -> Any:
    """The nearest whole numbers."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return call(builder, f"llvm.nearbyint.v{LANES}f32", FLOATS, args[0])

    return lanes_type(lanes_type), emit


@emitted
def power_of_two(_context: Any, _exponents: Lanes) -> Any:
    """2 ** `exponents`, which are whole numbers from -126 to 127."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        whole = builder.fptosi(args[0], WORDS)
        raised = builder.add(whole, same(127, WORDS))
        return builder.bitcast(builder.shl(raised, same(23, WORDS)), FLOATS)

    return lanes_type(lanes_type), emit


@emitted
def total(_context: Any, _lanes: Lanes) -> Any:
    """For each query the sum over the tokens, in the place of every token."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return _across_tokens(builder, args[0], partial(builder.fadd, flags=RELAXED))

    return lanes_type(lanes_type), emit


@emitted
def largest(_context: Any, _lanes: Lanes) -> Any:
    """For each query the largest of the tokens, in the place of every token."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return _across_tokens(builder, args[0], partial(_larger, builder))

    return lanes_type(lanes_type), emit


@emitted
def score_tokens(
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
        flat = partial(_vector, context, builder)
        queries = [builder.mul(dim, LONG(q)) for q in range(QUERIES)]
        last = builder.sub(count, LONG(1))
        tokens = [
            builder.add(at, builder.mul(stride, _least(builder, LONG(t), last)))
            for t in range(TOKENS)
        ]
        ahead = [builder.add(coming, builder.mul(apart, LONG(t))) for t in range(TOKENS)]
        size = signature.args[2].dtype.bitwidth // 8
        sums = [_variable(builder) for _ in range(TOKENS * QUERIES)]
        with for_range_slice(builder, LONG(0), _whole(builder, dim), LONG(LANES)) as (i, _):
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
            flat = partial(_vector, context, builder)
            places = [
                builder.add(to, builder.add(builder.mul(dim, LONG(q)), LONG(v * LANES)))
                for q in range(QUERIES)
                for v in range(vectors)
            ]
            totals = [_variable(builder, flat(signature.args[8], sums, at)) for at in places]
            with for_range(builder, count) as loop:
                token = builder.add(at, builder.mul(stride, loop.index))
                ahead = builder.add(coming, builder.mul(apart, loop.index))
                for begin in range(0, vectors * LANES * size, LINE):
                    _ask_at(builder, builder.add(ahead, LONG(begin)))
                read = [
                    flat(signature.args[2], values, builder.add(token, LONG(v * LANES)))
                    for v in range(vectors)
                ]
                weight = builder.add(first, builder.mul(loop.index, LONG(QUERIES)))
                for q in range(QUERIES):
                    at = builder.add(weight, LONG(q))
                    there = place(context, builder, signature.args[0], weights, at, FLOAT)
                    factor = spread(builder, loaded(builder, there, 4))
                    for v, value in enumerate(read):
                        _add_product(builder, totals[q * vectors + v], factor, value)
            for total, at in zip(totals, places, strict=True):
                there = place(context, builder, signature.args[8], sums, at, FLOATS)
                builder.store(builder.load(total), there).align = 4
            return context.get_dummy_value()

        one = types.intp
        return types.void(weights, one, values, *[one] * 5, sums, one, one), emit

    return add_values


add_values = _adding(1)
"""Add to four queries' sums, `dim` apart from `to` on, 16 numbers of each of `count` values.

The values lie from `at` on, `stride` apart; the queries' weights of the first from `first` on."""

add_wide_values = _adding(2)
"""The same, 32 numbers of each: a sum that is added to at once has to wait for itself."""


def _vector(context: Any, builder: Any, kind: types.Array, array: Any, at: Any) -> Any:
    """The 16 elements of `array` from `at` on, as float32."""
    stored = FLOATS if kind.dtype == types.float32 else HALVES
    numbers = loaded(
        builder, place(context, builder, kind, array, at, stored), kind.dtype.bitwidth // 8
    )
    return numbers if stored == FLOATS else widened(builder, numbers)


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


def _whole(builder: Any, dim: Any) -> Any:
    return builder.and_(dim, LONG(-LANES))


def _least(builder: Any, one: Any, other: Any) -> Any:
    return builder.select(builder.icmp_signed("<", one, other), one, other)


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


def _across_tokens(builder: Any, lanes: Any, join: Callable[[Any, Any], Any]) -> Any:
    for shift in (8, 4):
        turned = [(i + shift) % LANES for i in range(LANES)]
        lanes = join(lanes, shuffle(builder, lanes, lanes, turned))
    return lanes


def _larger(builder: Any, left: Any, right: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", left, right), left, right)
