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
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, models, register_model

from actors.engine.emit import (
    FLOATS,
    LANES,
    RELAXED,
    WORDS,
    call,
    emitted,
    floats_at,
    place,
    rounded,
    same,
    shuffle,
    spread,
    widened,
)

QUERIES = 4
"""Where scores lie, the lanes are those of four queries with a token, then with the next."""


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

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return floats_at(context, builder, signature.args[0], *args)

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


def _across_tokens(builder: Any, lanes: Any, join: Callable[[Any, Any], Any]) -> Any:
    for shift in (8, 4):
        turned = [(i + shift) % LANES for i in range(LANES)]
        lanes = join(lanes, shuffle(builder, lanes, lanes, turned))
    return lanes


def _larger(builder: Any, left: Any, right: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", left, right), left, right)
