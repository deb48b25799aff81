"""`squares` by AVX512-BF16: in each lane of a vector the product of two pairs, added to a float32.

`VDPBF16PS` in Intel's Architecture Instruction Set Extensions Programming Reference, which AMD's
processors have from Zen 4 on. Eight rows at a time: their sums are sixteen vectors, half of the
registers, and every product is of one row's pair in all lanes and of sixteen columns'.
"""

from __future__ import annotations

from typing import Any

import torch
from numba import types

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
    spread,
)
from actors.engine.jit import Array, helper
from actors.engine.lanes import fill, store
from actors.engine.squares import BLOCK, HALF_BLOCK, TOKENS

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
def clear(sums: Array, at: int) -> None:
    for i in range(at, at + BLOCK * BLOCK, LANES):
        store(sums, i, fill(0.0))


@helper
def resume(_sums: Array, _at: int) -> None:
    """They are in memory all the time."""


@helper
def add(
    sums: Array, at: int, rows: Array, row: int, stride: int, columns: Array, column: int
) -> None:
    for first in range(0, BLOCK, AT_ONCE):
        _add_rows(sums, at + first * BLOCK, rows, row + first * stride, stride, columns, column)


@helper
def keep(_sums: Array, _at: int) -> None:
    pass


@emitted
def _add_rows(
    _context: Any,
    sums: types.Array,
    _at: Any,
    rows: types.Array,
    _row: Any,
    _stride: Any,
    columns: types.Array,
    _column: Any,
) -> Any:
    """`add` for `AT_ONCE` rows, without a loop."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        sums, at, rows, row, stride, columns, column = args

        def there(number: int, array: Any, first: Any, further: int, kind: Any) -> Any:
            begin = builder.add(first, LONG(further))
            return place(context, builder, signature.args[number], array, begin, kind)

        places = [there(0, sums, at, i * LANES, FLOATS) for i in range(2 * AT_ONCE)]
        firsts = [builder.add(row, builder.mul(stride, LONG(i))) for i in range(AT_ONCE)]
        totals = [loaded(builder, each, 4) for each in places]
        for pair in range(0, TOKENS, 2):
            halves = [
                loaded(builder, there(5, columns, column, half + pair * LANES, WORDS), 2)
                for half in (0, HALF_BLOCK)
            ]
            for i, first in enumerate(firsts):
                word = spread(builder, loaded(builder, there(2, rows, first, pair, WORD), 2))
                for half in range(2):
                    total = totals[2 * i + half]
                    totals[2 * i + half] = multiplied_pairs(builder, total, word, halves[half])
        for each, total in zip(places, totals, strict=True):
            builder.store(total, each).align = 4
        return context.get_dummy_value()

    return types.void(sums, types.intp, rows, types.intp, types.intp, columns, types.intp), emit
