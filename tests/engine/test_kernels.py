"""Attention over pages where they lie equals attention computed token by token in float64.

A row's own key and value are in its page only afterwards: to keep them is the kernel's work too.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engine.kernels import attend_rows
from actors.engine.kv_cache import seen
from tests.engine.shapes import Shape

SHAPES = [
    Shape(9, 3, 64, 64, 16),
    Shape(8, 2, 64, 64, 16),  # as many queries share a key head as are computed at once
    Shape(7, 1, 64, 64, 16),  # more do, and the rest are fewer
    Shape(4, 2, 16, 16, 4),
    Shape(4, 4, 40, 24, 5),  # neither dimension, nor the page, fills the vectors
    Shape(3, 1, 7, 9, 3),
]
LENGTHS = (1, 5, 16, 33, 70)
ROWS = list(range(len(LENGTHS)))

UNTOUCHED = 5.0

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


class Pages:
    """Random pages, and rows that each see `LENGTHS` tokens of scattered ones."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)

        def numbers(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator).to(dtype)

        self.shape = shape
        self.width = -(-max(LENGTHS) // shape.block_size)
        count = len(LENGTHS) * self.width + 2
        self.keys = numbers(count, shape.block_size, shape.kv_heads, shape.key_dim)
        self.values = numbers(count, shape.block_size, shape.kv_heads, shape.value_dim)
        self.query = numbers(len(LENGTHS), shape.heads, shape.key_dim)
        self.tables = torch.randperm(count, generator=generator)[: len(LENGTHS) * self.width]

    def attend(
        self,
        rows: list[int],
        window: int = 0,
        softcap: float = 0.0,
        attending: int | None = None,
    ) -> Tensor:
        """Of the first `attending` rows, by default all; where the others' would be is `UNTOUCHED`.

        Their last keys and values are taken out of the pages before.
        """
        size = (1, len(rows), self.shape.heads, self.shape.value_dim)
        out = torch.full(size, UNTOUCHED, dtype=self.keys.dtype)
        last = np.array([LENGTHS[row] - 1 for row in rows])
        first_page = np.array([row * self.width for row in rows])
        attend_rows(
            seen(self.query[rows].transpose(0, 1)[None]),
            *(seen(new) for new in self.take_out(rows)),
            seen(self.keys),
            seen(self.values),
            self.slots(rows),
            self.tables.numpy(),
            first_page,
            last,
            len(rows) if attending is None else attending,
            window,
            np.float32(self.shape.key_dim**-0.5),
            np.float32(softcap),
            seen(out),
        )
        return out[0]

    def slots(self, rows: list[int]) -> NDArray[np.int64]:
        """Where the last token of each row lies."""
        last = torch.tensor([LENGTHS[row] - 1 for row in rows])
        at = torch.tensor(rows) * self.width + last // self.shape.block_size
        slots: NDArray[np.int64] = (
            self.tables[at] * self.shape.block_size + last % self.shape.block_size
        ).numpy()
        return slots

    def take_out(self, rows: list[int]) -> list[Tensor]:
        """Key and value of the last token of each row, which are in its pages no more."""
        taken = []
        for kept in (self.keys, self.values):
            flat, slots = kept.flatten(0, 1), torch.from_numpy(self.slots(rows))
            taken.append(flat[slots].transpose(0, 1)[None])
            flat[slots] = 7.0
        return taken

    def expected(self, row: int, window: int, softcap: float) -> Tensor:
        pages = self.tables[row * self.width : (row + 1) * self.width]
        visible = slice(max(0, LENGTHS[row] - window) if window else 0, LENGTHS[row])
        group = self.shape.heads // self.shape.kv_heads
        keys, values = (
            kept[pages].flatten(0, 1)[visible].double().repeat_interleave(group, 1)
            for kept in (self.keys, self.values)
        )
        scores = torch.einsum("hd,thd->ht", self.query[row].double(), keys)
        scores *= self.shape.key_dim**-0.5
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        return torch.einsum("ht,thd->hd", scores.softmax(-1), values)


@pytest.fixture(params=TOLERANCE, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    kind: torch.dtype = request.param
    return kind


@pytest.fixture(params=SHAPES, ids=str)
def pages(request: pytest.FixtureRequest, dtype: torch.dtype) -> Pages:
    return Pages(request.param, dtype)


@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (13, 0.0), (0, 2.0), (4, 1.5)])
def test_each_row_attends_to_the_tokens_it_sees(
    pages: Pages, dtype: torch.dtype, window: int, softcap: float
) -> None:
    expected = torch.stack([pages.expected(row, window, softcap) for row in ROWS])
    out = pages.attend(ROWS, window, softcap)
    assert (out.double() - expected).abs().max() <= TOLERANCE[dtype]


def test_a_step_s_keys_and_values_are_kept_and_no_others_are_touched(pages: Pages) -> None:
    keys, values = pages.keys.clone(), pages.values.clone()
    pages.attend(ROWS)
    assert torch.equal(pages.keys, keys)
    assert torch.equal(pages.values, values)


def test_of_rows_that_do_not_attend_keys_and_values_are_kept_and_no_more(pages: Pages) -> None:
    keys, values = pages.keys.clone(), pages.values.clone()
    everyone = pages.attend(ROWS)
    out = pages.attend(ROWS, attending=2)
    assert torch.equal(out[:2], everyone[:2])
    assert bool((out[2:] == UNTOUCHED).all())
    assert torch.equal(pages.keys, keys)
    assert torch.equal(pages.values, values)


def test_a_row_alone_and_among_others_is_the_same_to_the_last_bit(pages: Pages) -> None:
    together = pages.attend(ROWS)
    for row in ROWS:
        assert torch.equal(pages.attend([row])[0], together[row])
