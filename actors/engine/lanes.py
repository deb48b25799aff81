"""Sixteen float32 numbers as one value in a numba function, for loops it does not vectorize itself.

Numba has no vectors, but who emits LLVM's can hand them from one function to the next: they live
in registers. Arrays are read and written as flat memory, at an element's number. bfloat16, which
numba lacks as numpy does, is seen as uint16: the upper half of a float32.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

LANES = 16

_FLOAT, _WORD, _HALF = ir.FloatType(), ir.IntType(32), ir.IntType(16)
_FLOATS, _WORDS, _HALVES = (ir.VectorType(kind, LANES) for kind in (_FLOAT, _WORD, _HALF))
_RELAXED = ("reassoc", "contract", "nsz", "arcp")  # a product and a sum may become one operation


_emitted: Callable[[Callable[..., Any]], Callable[..., Any]] = intrinsic


class Lanes(types.Type):  # type: ignore[misc]
    """The type of such a value."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


lanes_type = Lanes()


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        super().__init__(manager, lanes, _FLOATS)


def _define_operator(operation: Any, instruction: str) -> None:
    @infer_global(operation)
    class _Typing(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: Any, _keywords: Any) -> Any:
            return signature(lanes_type, *args) if args == (lanes_type, lanes_type) else None

    @lower_builtin(operation, lanes_type, lanes_type)  # type: ignore[untyped-decorator]
    def _emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*args, flags=_RELAXED)


_define_operator(operator.add, "fadd")
_define_operator(operator.iadd, "fadd")
_define_operator(operator.sub, "fsub")
_define_operator(operator.mul, "fmul")


@_emitted
def widen(_context: Any, stored: types.Type) -> Any:
    """A stored number as float32."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        if stored != types.uint16:
            return args[0]
        return builder.bitcast(builder.shl(builder.zext(args[0], _WORD), _WORD(16)), _FLOAT)

    return types.float32(stored), emit


@_emitted
def narrow(_context: Any, number: types.Type, like: types.Type) -> Any:
    """A float32 as it is stored beside `like`; to bfloat16 rounded to nearest, ties to even."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        if like != types.uint16:
            return args[0]
        bits = builder.bitcast(args[0], _WORD)
        odd = builder.and_(builder.lshr(bits, _WORD(16)), _WORD(1))
        rounded = builder.add(bits, builder.add(odd, _WORD(0x7FFF)))
        return builder.trunc(builder.lshr(rounded, _WORD(16)), _HALF)

    return like(number, like), emit


@_emitted
def load(_context: Any, array: types.Array, at: types.Type) -> Any:
    """The 16 elements of `array` from `at` on, as float32."""
    stored = array.dtype

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = _FLOATS if stored == types.float32 else _HALVES
        numbers = builder.load(_place(context, builder, signature, args, kind))
        numbers.align = stored.bitwidth // 8
        return numbers if stored == types.float32 else _widened(builder, numbers)

    return lanes_type(array, types.intp), emit


@_emitted
def store(_context: Any, array: types.Array, at: types.Type, _lanes: Lanes) -> Any:
    """Write them to the float32 `array` from `at` on."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        written = builder.store(args[2], _place(context, builder, signature, args, _FLOATS))
        written.align = 4
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes_type), emit


@_emitted
def prefetch(_context: Any, array: types.Array, at: types.Type) -> Any:
    """Have the cache line with element `at` of `array` brought near; it need not exist."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        form = ir.FunctionType(ir.VoidType(), [pointer, _WORD, _WORD, _WORD])
        function = cgutils.get_or_insert_function(builder.module, form, "llvm.prefetch.p0")
        place = builder.bitcast(_place(context, builder, signature, args, _HALF), pointer)
        builder.call(function, [place, _WORD(0), _WORD(3), _WORD(1)])  # read; all levels; data
        return context.get_dummy_value()

    return types.void(array, types.intp), emit


@_emitted
def fill(_context: Any, _number: types.Type) -> Any:
    """One number in all lanes."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        nothing = ir.Constant(_FLOATS, ir.Undefined)
        first = builder.insert_element(nothing, args[0], _WORD(0))
        return builder.shuffle_vector(first, nothing, ir.Constant(_WORDS, [0] * LANES))

    return lanes_type(types.float32), emit


@_emitted
def larger(_context: Any, _left: Lanes, _right: Lanes) -> Any:
    """The larger of two, lane by lane."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return lanes_type(lanes_type, lanes_type), emit


@_emitted
def nearest(_context: Any, _lanes: Lanes) -> Any:
    """The nearest whole numbers."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return _call(builder, f"llvm.nearbyint.v{LANES}f32", _FLOATS, args[0])

    return lanes_type(lanes_type), emit


@_emitted
def power_of_two(_context: Any, _exponents: Lanes) -> Any:
    """2 ** `exponents`, which are whole numbers from -126 to 127."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        whole = builder.fptosi(args[0], _WORDS)
        raised = builder.add(whole, ir.Constant(_WORDS, [127] * LANES))
        return builder.bitcast(builder.shl(raised, ir.Constant(_WORDS, [23] * LANES)), _FLOATS)

    return lanes_type(lanes_type), emit


@_emitted
def total(_context: Any, _lanes: Lanes) -> Any:
    """The sum over the lanes."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        name = f"llvm.vector.reduce.fadd.v{LANES}f32"
        form = ir.FunctionType(_FLOAT, [_FLOAT, _FLOATS])
        function = cgutils.get_or_insert_function(builder.module, form, name)
        return builder.call(function, [_FLOAT(0.0), args[0]], fastmath=_RELAXED)

    return types.float32(lanes_type), emit


@_emitted
def largest(_context: Any, _lanes: Lanes) -> Any:
    """The largest of the lanes."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return _call(builder, f"llvm.vector.reduce.fmax.v{LANES}f32", _FLOAT, args[0])

    return types.float32(lanes_type), emit


def _place(context: Any, builder: Any, signature: Any, args: Any, kind: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.bitcast(builder.gep(array.data, [args[1]]), kind.as_pointer())


def _widened(builder: Any, halves: Any) -> Any:
    words = builder.zext(halves, _WORDS)
    return builder.bitcast(builder.shl(words, ir.Constant(_WORDS, [16] * LANES)), _FLOATS)


def _call(builder: Any, name: str, result: Any, operand: Any) -> Any:
    form = ir.FunctionType(result, [_FLOATS])
    return builder.call(cgutils.get_or_insert_function(builder.module, form, name), [operand])
