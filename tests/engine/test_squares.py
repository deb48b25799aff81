"""Whoever multiplies squares, their sums are those of float64 within what float32 keeps."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numba
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engine import dots, tiles
from actors.engine.kv_cache import seen
from actors.engine.squares import BLOCK, ROWS, TOKENS

STRIDE = 40
"""Of rows that have more in them than is multiplied."""

BEHIND = 64
"""Numbers before the sums, and after them, which nobody may touch."""


@pytest.fixture(params=[tiles, dots], ids=["tiles", "dots"])
def multiplier(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    if not module.usable():
        pytest.skip("this processor cannot")
    return module


def multiply_with(
    multiplier: ModuleType, resumed: bool
) -> Callable[[NDArray[np.float32], NDArray[np.uint16], NDArray[np.uint16]], None]:
    """Sums up three squares."""
    begin, multiply, end = multiplier.begin, multiplier.multiply, multiplier.end
    shapes = tiles.shapes()

    def run(sums: NDArray[np.float32], rows: NDArray[np.uint16], cols: NDArray[np.uint16]) -> None:
        begin(shapes)
        multiply(sums, BEHIND, resumed, rows, 0, STRIDE, BLOCK * STRIDE, cols, 0, 3)
        end()

    compiled: Callable[..., None] = numba.njit(run)
    return compiled


def paired(columns: Tensor) -> Tensor:
    """`[TOKENS, BLOCK]` as `squares` has columns."""
    return columns.reshape(TOKENS // 2, 2, 2, ROWS).permute(2, 0, 3, 1).flatten()


@pytest.mark.parametrize("resumed", [False, True])
def test_squares_are_added_to_what_was_there(multiplier: ModuleType, resumed: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, BLOCK, STRIDE, generator=generator).bfloat16()
    columns = torch.randn(3, TOKENS, BLOCK, generator=generator).bfloat16()
    sums = torch.randn(BEHIND + BLOCK * BLOCK + BEHIND, generator=generator)
    expected = sums.double()
    there = expected[BEHIND:-BEHIND]
    there *= resumed
    there += (rows[:, :, :TOKENS].double() @ columns.double()).sum(0).flatten()

    multiply_with(multiplier, resumed)(
        sums.numpy(), seen(rows.flatten()), seen(torch.cat([paired(each) for each in columns]))
    )

    torch.testing.assert_close(sums.double(), expected, rtol=1e-5, atol=1e-5)
