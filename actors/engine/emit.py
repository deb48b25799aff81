"""What our numba functions are emitted with: LLVM's types, places in arrays, vectors shuffled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16

BYTE, HALF, WORD, LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))
FLOAT = ir.FloatType()
FLOATS, WORDS, HALVES = (ir.VectorType(kind, LANES) for kind in (FLOAT, WORD, HALF))
POINTER = BYTE.as_pointer()
RELAXED = ("reassoc", "contract", "nsz", "arcp")  # a product and a sum may become one operation


class _BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite does not name."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


PAIRS = ir.VectorType(_BFloat(), 2 * LANES)

emitted: Callable[[Callable[..., Any]], Callable[..., Any]] = intrinsic


def place(context: Any, builder: Any, array_type: Any, array: Any, at: Any, kind: Any) -> Any:
    """The address of `array`'s element `at`, counted as in flat memory, as of a `kind`."""
    seen = context.make_array(array_type)(context, builder, array)
    return builder.bitcast(builder.gep(seen.data, [at]), kind.as_pointer())


def call(builder: Any, name: str, result: Any, *operands: Any) -> Any:
    """LLVM's own function `name`."""
    form = ir.FunctionType(result, [operand.type for operand in operands])
    return builder.call(cgutils.get_or_insert_function(builder.module, form, name), operands)


def shuffle(builder: Any, left: Any, right: Any, picked: list[int]) -> Any:
    """The elements `picked` of two vectors laid end to end."""
    return builder.shuffle_vector(
        left, right, ir.Constant(ir.VectorType(WORD, len(picked)), picked)
    )


def same(number: float, kind: Any = FLOATS) -> Any:
    """One constant of a `kind`, in all lanes where it has lanes."""
    lanes = isinstance(kind, ir.VectorType)
    return ir.Constant(kind, [number] * LANES if lanes else number)


def spread(builder: Any, number: Any) -> Any:
    """One number in all lanes."""
    nothing = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
    first = builder.insert_element(nothing, number, WORD(0))
    return builder.shuffle_vector(first, nothing, same(0, WORDS))


def loaded(builder: Any, there: Any, align: int) -> Any:
    """What lies at an address that is a multiple of `align` bytes, as all of its kind need not."""
    found = builder.load(there)
    found.align = align
    return found


def widened(builder: Any, halves: Any) -> Any:
    """bfloat16 as float32, one or sixteen."""
    words, floats = (WORDS, FLOATS) if halves.type == HALVES else (WORD, FLOAT)
    return builder.bitcast(builder.shl(builder.zext(halves, words), same(16, words)), floats)


def rounded(builder: Any, floats: Any) -> Any:
    """float32 as bfloat16, one or sixteen: to the nearest, ties to even."""
    words, halves = (WORDS, HALVES) if floats.type == FLOATS else (WORD, HALF)
    bits = builder.bitcast(floats, words)
    odd = builder.and_(builder.lshr(bits, same(16, words)), same(1, words))
    near = builder.add(bits, builder.add(odd, same(0x7FFF, words)))
    return builder.trunc(builder.lshr(near, same(16, words)), halves)


def floats_at(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    """The sixteen elements of an array of float32, or of bfloat16, from `at` on, as float32."""
    bits = array_type.dtype.bitwidth
    stored = FLOATS if bits == WORD.width else HALVES
    found = loaded(builder, place(context, builder, array_type, array, at, stored), bits // 8)
    return found if stored == FLOATS else widened(builder, found)


def transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Sixteen vectors of sixteen, rows for columns: halves, then quarters change places, ..."""
    rows = list(rows)
    for width in (1, 2, 4, 8):
        upper = [i if not i & width else LANES + i - width for i in range(LANES)]
        lower = [i + width if not i & width else LANES + i for i in range(LANES)]
        for i in (i for i in range(LANES) if not i & width):
            pair = rows[i], rows[i | width]
            rows[i], rows[i | width] = (
                shuffle(builder, *pair, upper),
                shuffle(builder, *pair, lower),
            )
    return rows


def least(builder: Any, one: Any, other: Any) -> Any:
    """The smaller of two whole numbers."""
    return builder.select(builder.icmp_signed("<", one, other), one, other)


def multiplied_pairs(builder: Any, total: Any, word: Any, columns: Any) -> Any:
    """Add to each lane of `total` the products of one row's pair and a column's."""
    operands = (builder.bitcast(each, PAIRS) for each in (word, columns))
    return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", FLOATS, total, *operands)


def ask_for(builder: Any, there: Any) -> None:
    """Have the cache line at an address brought near; it need not exist."""
    call(builder, "llvm.prefetch.p0", ir.VoidType(), there, WORD(0), WORD(3), WORD(1))
