"""`squares` by AMX: products of 16 rows by 32 bfloat16, summed up in float32 in tiles.

A tile is a register of 16 rows of 64 bytes; there are eight. `_multiply` adds to tile `sums` the
product of `rows`, `[16, 32]`, and `columns`, `[16, 16]` pairs of numbers, whose pair `i` of a
column meets the numbers `2i` and `2i + 1` of a row. Intel's Architecture Instruction Set Extensions
Programming Reference, chapter 3. A thread sets its tiles up before, and lets them go afterwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from actors.engine.emit import BYTE, HALF, LONG, POINTER, call, emitted, place
from actors.engine.jit import Array, helper
from actors.engine.squares import BLOCK, HALF_BLOCK, ROWS, SQUARE, TOKENS

_NOTHING = ir.VoidType()


def usable() -> bool:
    """Whether this processor has them, and the system lets this process use them."""
    return bool(torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx())


def shapes() -> Array:
    """What `begin` reads: all eight tiles 16 rows of 64 bytes."""
    settings = np.zeros(64, np.uint8)
    settings[0] = 1  # the palette
    settings[16:32].view(np.uint16)[:] = 64
    settings[48:56] = ROWS
    return settings


@emitted
def begin(_context: Any, shapes: types.Array) -> Any:
    """Give this thread's tiles their `shapes`."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first = place(context, builder, signature.args[0], args[0], LONG(0), BYTE)
        call(builder, "llvm.x86.ldtilecfg", _NOTHING, first)
        return context.get_dummy_value()

    return types.void(shapes), emit


@emitted
def end(_context: Any) -> Any:
    """This thread needs its tiles no more."""

    def emit(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        call(builder, "llvm.x86.tilerelease", _NOTHING)
        return context.get_dummy_value()

    return types.void(), emit


def _on_tiles(name: str) -> Any:
    """An operation on tiles alone, whose numbers have to be literal."""

    def emit(context: Any, builder: Any, signature: Any, _args: Any) -> Any:
        call(builder, name, _NOTHING, *(BYTE(tile.literal_value) for tile in signature.args))
        return context.get_dummy_value()

    return emit


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _zero(_context: Any, tile: types.Type) -> Any:
    """Fill a tile with zeros."""
    literal = isinstance(tile, types.IntegerLiteral)
    return (types.void(tile), _on_tiles("llvm.x86.tilezero")) if literal else None


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _multiply(_context: Any, sums: types.Type, rows: types.Type, columns: types.Type) -> Any:
    """Add the product of two tiles to a third."""
    tiles = (sums, rows, columns)
    literal = all(isinstance(tile, types.IntegerLiteral) for tile in tiles)
    return (types.void(*tiles), _on_tiles("llvm.x86.tdpbf16ps")) if literal else None


def _moving(name: str) -> Any:
    """Between a tile and rows in memory, the first at `array`'s element `at`, `stride` apart."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        tile, array, size = signature.args[0], signature.args[1], signature.args[1].dtype.bitwidth
        first = builder.bitcast(place(context, builder, array, args[1], args[2], HALF), POINTER)
        bytes_apart = builder.mul(args[3], LONG(size // 8))
        call(builder, name, _NOTHING, BYTE(tile.literal_value), first, bytes_apart)
        return context.get_dummy_value()

    @intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
    def move(
        _context: Any, tile: types.Type, array: types.Type, at: types.Type, stride: types.Type
    ) -> Any:
        literal = isinstance(tile, types.IntegerLiteral)
        return (types.void(tile, array, types.intp, types.intp), emit) if literal else None

    return move


_load_tile = _moving("llvm.x86.tileloadd64")
_store_tile = _moving("llvm.x86.tilestored64")


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
    """The sums are those of the tiles 0 to 3 until all is added."""
    if resumed:
        _resume(sums, at)
    else:
        _clear()
    for square in range(count):
        _add(rows, row + square * apart, stride, columns, column + square * SQUARE)
    _keep(sums, at)


@helper
def _clear() -> None:
    _zero(0)
    _zero(1)
    _zero(2)
    _zero(3)


@helper
def _resume(sums: Array, at: int) -> None:
    _load_tile(0, sums, at, BLOCK)
    _load_tile(1, sums, at + ROWS, BLOCK)
    _load_tile(2, sums, at + ROWS * BLOCK, BLOCK)
    _load_tile(3, sums, at + ROWS * BLOCK + ROWS, BLOCK)


@helper
def _add(rows: Array, row: int, stride: int, columns: Array, column: int) -> None:
    _load_tile(4, rows, row, stride)
    _load_tile(5, rows, row + ROWS * stride, stride)
    _load_tile(6, columns, column, TOKENS)
    _load_tile(7, columns, column + HALF_BLOCK, TOKENS)
    _multiply(0, 4, 6)
    _multiply(1, 4, 7)
    _multiply(2, 5, 6)
    _multiply(3, 5, 7)


@helper
def _keep(sums: Array, at: int) -> None:
    _store_tile(0, sums, at, BLOCK)
    _store_tile(1, sums, at + ROWS, BLOCK)
    _store_tile(2, sums, at + ROWS * BLOCK, BLOCK)
    _store_tile(3, sums, at + ROWS * BLOCK + ROWS, BLOCK)
