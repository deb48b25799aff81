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
    LANES,
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
from actors.engine.squares import BLOCK, HALF_BLOCK, SQUARE, TOKENS

AT_ONCE = 8
"""Rows whose sums are in registers."""


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
    """`multiply` for `AT_ONCE` rows: a loop over squares, none in them."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        sums, at, resumed, rows, row, stride, apart, columns, column, count = args

        def there(number: int, array: Any, first: Any, further: int, kind: Any) -> Any:
            begin = builder.add(first, LONG(further))
            return place(context, builder, signature.args[number], array, begin, kind)

        places = [there(0, sums, at, i * LANES, FLOATS) for i in range(2 * AT_ONCE)]
        totals = [alloca_once(builder, FLOATS) for _ in places]  # LLVM makes registers of them
        for variable, each in zip(totals, places, strict=True):
            before = builder.select(resumed, loaded(builder, each, 4), same(0.0))
            builder.store(before, variable)
        with for_range(builder, count) as loop:
            begin = builder.add(row, builder.mul(loop.index, apart))
            firsts = [builder.add(begin, builder.mul(stride, LONG(i))) for i in range(AT_ONCE)]
            here = builder.add(column, builder.mul(loop.index, LONG(SQUARE)))
            for pair in range(0, TOKENS, 2):
                words = [there(3, rows, first, pair, WORD) for first in firsts]
                halves = [
                    there(7, columns, here, half + pair * LANES, WORDS) for half in (0, HALF_BLOCK)
                ]
                _add_pair(builder, totals, words, halves)
        for variable, each in zip(totals, places, strict=True):
            builder.store(builder.load(variable), each).align = 4
        return context.get_dummy_value()

    numbers = [types.intp] * 3
    given = [sums, types.intp, types.boolean, rows, *numbers, columns, types.intp, types.intp]
    return types.void(*given), emit


def _add_pair(builder: Any, totals: list[Any], words: list[Any], halves: list[Any]) -> None:
    """Add to `totals`, row by row, what a pair of every row and of the columns make."""
    columns = [loaded(builder, half, 2) for half in halves]
    for i, there in enumerate(words):
        word = spread(builder, loaded(builder, there, 2))
        for half, column in enumerate(columns):
            total = totals[2 * i + half]
            builder.store(multiplied_pairs(builder, builder.load(total), word, column), total)
