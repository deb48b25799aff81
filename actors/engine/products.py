"""Squares of products as machine code for the compiler's programs, on processors without AMX.

A program asks for a few rows times `COLUMNS` columns at a time. Sums of up to eight rows stay in
registers over a stretch of depth, and every product is of one row's word in all lanes and of
sixteen columns': a pair of bfloat16 (`VDPBF16PS`) or four integers (`VPDPBUSD`, both in Intel's
Architecture Instruction Set Extensions Programming Reference). A row's numbers are summed in the
same order whatever rows are beside it.

With few rows it is memory that decides, so columns are asked for ahead of their turn. The rows of
a square share that out: memory would rest while all but the first eight are multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any

from llvmlite import binding, ir
from numba.core.cgutils import alloca_once, for_range, for_range_slice

from actors.engine.emit import (
    FLOATS,
    LANES,
    LONG,
    POINTER,
    WORD,
    WORDS,
    ask_for,
    call,
    least,
    loaded,
    multiplied_pairs,
    spread,
)

COLUMNS = 48
"""Of a square. With eight rows, their sums and the columns take 27 of 32 registers."""

ROWS = (8, 4, 2, 1)
"""Whose sums are in registers at once: the most that are left of a square's."""

WORD_BYTES = 4

LINE = COLUMNS * WORD_BYTES
"""Bytes of the columns at one word of depth."""

LINES = range(0, LINE, LANES * WORD_BYTES)
"""Where its vectors begin."""

STRETCH = 96
"""Words of depth. Their columns fit the smallest first cache, beside the rows."""

AHEAD = 128 * LINE
"""Bytes in advance that columns are asked for: beyond the stretch, which is there already."""

OBJECT = "products.o"

BIT = ir.IntType(1)
NOTHING = ir.VoidType()


@dataclass(frozen=True, slots=True)
class Numbers:
    """What is multiplied: how many make a word, what they are summed in, and how."""

    name: str
    in_word: int
    sums: Any
    multiplied: Callable[..., Any]


def _multiplied_bytes(builder: Any, total: Any, word: Any, columns: Any) -> Any:
    """Add to each lane of `total` the products of one row's four bytes and a column's integers."""
    return call(builder, "llvm.x86.avx512.vpdpbusd.512", WORDS, total, word, columns)


PAIRS = Numbers("shoal_multiply_pairs", 2, FLOATS, multiplied_pairs)
BYTES = Numbers("shoal_multiply_bytes", 4, WORDS, _multiplied_bytes)


def write_object(folder: Path) -> None:
    """Write `OBJECT`, for this processor, to `folder`. Of each kind of `Numbers` it holds

        void name(int64_t rows, int64_t columns, int64_t depth, int64_t row_stride,
                  int64_t column_stride, int64_t sum_stride, bool resumed,
                  const number *row, const number *column, sum *sum)

    Strides are in numbers. Columns lie as `[depth / in_word, COLUMNS, in_word]`, where a pair is of
    bfloat16 and rows of bytes have no sign. `resumed` sums are added to, others written.
    """
    module = ir.Module("products")
    for numbers in (PAIRS, BYTES):
        _emit_square(module, numbers)
    (folder / OBJECT).write_bytes(_machine_code(str(module)))


def _machine_code(text: str) -> bytes:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=3,
        reloc="pic",
        codemodel="default",
    )
    module = binding.parse_assembly(text)
    options = binding.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = False  # there are no registers for it
    passes = binding.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    code: bytes = machine.emit_object(module)
    return code


def _emit_square(module: Any, numbers: Numbers) -> None:
    """Stretches of depth, and in each of them all rows, the most at a time."""
    form = ir.FunctionType(NOTHING, [LONG] * 6 + [BIT] + [POINTER] * 3)
    function = ir.Function(module, form, numbers.name)
    rows, _, depth, row_stride, _, sum_stride, resumed, row, column, total = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    parts = {count: _emit_rows(module, numbers, count) for count in ROWS}
    strides = [
        builder.mul(row_stride, LONG(WORD_BYTES // numbers.in_word)),
        builder.mul(sum_stride, LONG(WORD_BYTES)),
    ]
    blocks = builder.sdiv(builder.add(rows, LONG(ROWS[0] - 1)), LONG(ROWS[0]))
    share = builder.sdiv(LONG(LINE), blocks)
    words = builder.sdiv(depth, LONG(numbers.in_word))
    with for_range_slice(builder, LONG(0), words, LONG(STRETCH)) as (first, _):
        length = least(builder, builder.sub(words, first), LONG(STRETCH))
        again = builder.or_(resumed, builder.icmp_signed(">", first, LONG(0)))
        words_here = _beyond(builder, row, first, LONG(WORD_BYTES))
        columns = _beyond(builder, column, first, LONG(LINE))
        next_ones = builder.gep(columns, [LONG(AHEAD)])
        for count, part in parts.items():
            with _blocks(builder, rows, count) as at:
                places = [
                    _beyond(builder, words_here, at, strides[0]),
                    columns,
                    _beyond(builder, total, at, strides[1]),
                    _beyond(builder, next_ones, builder.sdiv(at, LONG(ROWS[0])), share, length),
                ]
                builder.call(part, [*places, length, *strides, share, again])
    builder.ret_void()


@contextmanager
def _blocks(builder: Any, rows: Any, count: int) -> Iterator[Any]:
    """Of `rows`, the first row of each block of `count`; larger blocks took what they could."""
    taken = builder.and_(rows, LONG(-2 * count)) if count < ROWS[0] else LONG(0)
    last = builder.and_(rows, LONG(-count))
    with for_range_slice(builder, taken, last, LONG(count)) as (at, _):
        yield at


def _emit_rows(module: Any, numbers: Numbers, count: int) -> Any:
    """The function that adds up `count` rows over one stretch."""
    form = ir.FunctionType(NOTHING, [POINTER] * 4 + [LONG] * 4 + [BIT])
    function = ir.Function(module, form, f"{numbers.name}_{count}")
    function.linkage = "internal"
    row, column, total, asked, words, row_stride, sum_stride, share, resumed = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    rows = [_beyond(builder, row, LONG(r), row_stride) for r in range(count)]
    sums = [
        builder.bitcast(builder.gep(begin, [LONG(line)]), numbers.sums.as_pointer())
        for begin in (_beyond(builder, total, LONG(r), sum_stride) for r in range(count))
        for line in LINES
    ]
    totals = [alloca_once(builder, numbers.sums) for _ in sums]  # LLVM makes registers of them
    for variable, there in zip(totals, sums, strict=True):
        nothing = ir.Constant(numbers.sums, None)
        builder.store(builder.select(resumed, loaded(builder, there, 4), nothing), variable)
    with for_range(builder, words) as loop:
        for line in LINES:
            ask_for(builder, builder.gep(_beyond(builder, asked, loop.index, share), [LONG(line)]))
        here = [_beyond(builder, each, loop.index, LONG(WORD_BYTES)) for each in rows]
        _emit_word(builder, numbers, totals, here, _beyond(builder, column, loop.index, LONG(LINE)))
    for variable, there in zip(totals, sums, strict=True):
        builder.store(builder.load(variable), there).align = 4
    builder.ret_void()
    return function


def _emit_word(
    builder: Any, numbers: Numbers, totals: list[Any], rows: list[Any], column: Any
) -> None:
    """Add to `totals`, row by row, what one word of every row and of the columns make."""
    columns = [_loaded_as(builder, builder.gep(column, [LONG(line)]), WORDS) for line in LINES]
    variables = iter(totals)
    for row in rows:
        word = spread(builder, _loaded_as(builder, row, WORD))
        for each, total in zip(columns, islice(variables, len(LINES)), strict=True):
            builder.store(numbers.multiplied(builder, builder.load(total), word, each), total)


def _loaded_as(builder: Any, there: Any, kind: Any) -> Any:
    """Numbers need not lie at a multiple of anything."""
    return loaded(builder, builder.bitcast(there, kind.as_pointer()), 1)


def _beyond(builder: Any, there: Any, *factors: Any) -> Any:
    """The address so many bytes further on as the product of `factors`."""
    return builder.gep(there, [reduce(builder.mul, factors)])
