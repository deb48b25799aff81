"""`squares` by AVX512-BF16: in each lane of a vector the product of two pairs, added to a float32.

`VDPBF16PS` in Intel's Architecture Instruction Set Extensions Programming Reference, which AMD's
processors have from Zen 4 on. Eight rows at a time: their sums are sixteen vectors, half of the
registers, and every product is of one row's pair in all lanes and of sixteen columns'.
"""

from __future__ import annotations

from typing import Any

import torch
from numba import types
from numba.core.cgutils import alloca_once, for_range

from actors.engine.emit import (
    FLOATS,
    LONG,
    WORD,
    WORDS,
    emitted,
    loaded,
    multiplied_pairs,
    place,
    same,
    spread,
)
from actors.engine.jit import Array, helper
from actors.engine.squares import BLOCK, SQUARE, TOKENS

AT_ONCE = 8
"""Rows whose sums are in registers."""

PAIRS = TOKENS // 2
"""Of numbers in a row, and of vectors in a half of a square."""


def usable() -> bool:
    """Whether this processor has them."""
    return bool(torch.cpu._is_avx512_bf16_supported())


@helper
def begin(_shapes: Array) -> None:
    """Registers need no preparation."""


@helper
def end() -> None:
    pass


@helper
def multiply(
    sums: Array,
    at: int,
    resumed: bool,
    rows: Array,
    row: int,
    stride: int,
    apart: int,
    columns: Array,
    column: int,
    count: int,
) -> None:
    for first in range(0, BLOCK, AT_ONCE):
        to, begin = at + first * BLOCK, row + first * stride
        _multiply_rows(sums, to, resumed, rows, begin, stride, apart, columns, column, count)


@emitted
def _multiply_rows(
    _context: Any,
    sums: types.Array,
    _at: Any,
    _resumed: Any,
    rows: types.Array,
    _row: Any,
    _stride: Any,
    _apart: Any,
    columns: types.Array,
    _column: Any,
    _count: Any,
) -> Any:
    """`multiply` for `AT_ONCE` rows, whose sums stay in registers from the first to the last."""

    def emit(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _, at, resumed, _, row, stride, apart, _, column, count = args
        first = place(context, builder, sums, args[0], at, FLOATS)
        places = [builder.gep(first, [LONG(i)]) for i in range(2 * AT_ONCE)]
        totals = [alloca_once(builder, FLOATS) for _ in places]  # LLVM makes registers of them
        for total, there in zip(totals, places, strict=True):
            builder.store(builder.select(resumed, loaded(builder, there, 4), same(0.0)), total)
        with for_range(builder, count) as loop:
            begin = builder.add(row, builder.mul(loop.index, apart))
            firsts = [builder.add(begin, builder.mul(stride, LONG(i))) for i in range(AT_ONCE)]
            words = [place(context, builder, rows, args[3], each, WORD) for each in firsts]
            square = builder.add(column, builder.mul(loop.index, LONG(SQUARE)))
            pairs = place(context, builder, columns, args[7], square, WORDS)
            _add_square(builder, totals, words, pairs)
        for total, there in zip(totals, places, strict=True):
            builder.store(builder.load(total), there).align = 4
        return context.get_dummy_value()

    numbers = [types.intp] * 3
    given = [sums, types.intp, types.boolean, rows, *numbers, columns, types.intp, types.intp]
    return types.void(*given), emit


def _add_square(builder: Any, totals: list[Any], rows: list[Any], columns: Any) -> None:
    """Add to `totals`, row by row, the products of every row and a square of `columns`."""
    for pair in range(PAIRS):
        halves = [
            loaded(builder, builder.gep(columns, [LONG(pair + half)]), 2) for half in (0, PAIRS)
        ]
        for i, row in enumerate(rows):
            word = spread(builder, loaded(builder, builder.gep(row, [LONG(pair)]), 2))
            for total, half in zip(totals[2 * i :], halves, strict=False):
                builder.store(multiplied_pairs(builder, builder.load(total), word, half), total)
