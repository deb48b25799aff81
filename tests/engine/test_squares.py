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
"""Numbers before the sums, which nobody may touch."""


@pytest.fixture(params=[tiles, dots], ids=["tiles", "dots"])
def multiplier(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    if not module.usable():
        pytest.skip("this processor cannot")
    return module


def multiply_with(
    multiplier: ModuleType, before: str
) -> Callable[[NDArray[np.float32], NDArray[np.uint16], NDArray[np.uint16]], None]:
    """Adds two squares, after `clear` or `resume`."""
    begin, prepare, add = multiplier.begin, getattr(multiplier, before), multiplier.add
    keep, end = multiplier.keep, multiplier.end
    shapes = tiles.shapes()

    def run(sums: NDArray[np.float32], rows: NDArray[np.uint16], cols: NDArray[np.uint16]) -> None:
        begin(shapes)
        prepare(sums, BEHIND)
        add(sums, BEHIND, rows, 0, STRIDE, cols, 0)
        add(sums, BEHIND, rows, BLOCK * STRIDE, STRIDE, cols, BLOCK * TOKENS)
        keep(sums, BEHIND)
        end()

    compiled: Callable[..., None] = numba.njit(run)
    return compiled


def paired(columns: Tensor) -> Tensor:
    """`[TOKENS, BLOCK]` as `squares` has columns."""
    return columns.reshape(TOKENS // 2, 2, 2, ROWS).permute(2, 0, 3, 1).flatten()


@pytest.mark.parametrize(("before", "share"), [("clear", 0.0), ("resume", 1.0)])
def test_squares_are_added_to_what_was_there(
    multiplier: ModuleType, before: str, share: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, BLOCK, STRIDE, generator=generator).bfloat16()
    columns = torch.randn(2, TOKENS, BLOCK, generator=generator).bfloat16()
    sums = torch.randn(BEHIND + BLOCK * BLOCK, generator=generator)
    products = (rows[:, :, :TOKENS].double() @ columns.double()).sum(0).flatten()
    expected = torch.cat([sums[:BEHIND].double(), share * sums[BEHIND:].double() + products])

    multiply_with(multiplier, before)(
        sums.numpy(), seen(rows.flatten()), seen(torch.cat([paired(each) for each in columns]))
    )

    torch.testing.assert_close(sums.double(), expected, rtol=1e-5, atol=1e-5)
