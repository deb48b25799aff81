"""Attention of prompts by tiles equals attention in float64, within what bfloat16 keeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from actors.engine.kv_cache import seen
from actors.engine.multipliers import usable
from actors.engine.prompts import attend_prompts
from actors.engine.tiling import Span, TileScratch, cut
from tests.engine.shapes import Shape

pytestmark = pytest.mark.skipif(not usable(), reason="neither AMX nor AVX512-BF16 here")

TOLERANCE = 2e-2
"""Of numbers of about one, as bfloat16 has 8 bits."""


SHAPES = [
    Shape(9, 3, 64, 64, 16),
    Shape(2, 1, 128, 128, 32),
    Shape(4, 4, 40, 24, 5),  # neither dimension, nor the page, fills a tile
    Shape(3, 1, 7, 9, 3),
    Shape(2, 2, 48, 48, 16),  # half a tile
]

SPANS = [
    [(0, 32)],
    [(0, 9)],
    [(0, 33), (0, 16)],
    [(5, 47), (300, 70), (0, 17)],  # some see more than one part of the softmax
]


class Prompts:
    """Chunks `(start, rows)` of sequences on scattered pages; rows before theirs read alone."""

    def __init__(self, shape: Shape, spans: list[tuple[int, int]], alone: int = 3) -> None:
        generator = torch.Generator().manual_seed(0)

        def numbers(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator).bfloat16()

        self.shape, self.alone = shape, alone
        counts = [alone, *(rows for _, rows in spans)]
        pages = [1, *(-(-(start + rows) // shape.block_size) for start, rows in spans)]
        first_rows, first_pages = np.cumsum([0, *counts]), np.cumsum([0, *pages])
        size = (sum(pages) + 2, shape.block_size, shape.kv_heads)
        self.keys, self.values = numbers(*size, shape.key_dim), numbers(*size, shape.value_dim)
        self.query = numbers(1, sum(counts), shape.heads, shape.key_dim).transpose(1, 2)
        self.tables = torch.randperm(size[0], generator=generator)[: sum(pages)]
        self.first_page = np.repeat(first_pages[:-1], counts)
        starts = [0, *(start for start, _ in spans)]
        self.positions = np.concatenate(
            [np.arange(start, start + rows) for start, rows in zip(starts, counts, strict=True)]
        )
        self.spans = [
            Span(int(row), rows, start, self.tables.numpy()[first:])
            for row, first, (start, rows) in zip(
                first_rows[1:-1], first_pages[1:-1], spans, strict=True
            )
        ]

    def attend(self, window: int | None = None, scratch: TileScratch | None = None) -> Tensor:
        rows = self.query.shape[2]
        out = torch.full((1, rows, self.shape.heads, self.shape.value_dim), 5.0).bfloat16()
        attend_prompts(
            seen(self.query),
            seen(self.keys),
            seen(self.values),
            (self.tables.numpy(), self.first_page),
            cut(self.spans, window),
            window or 0,
            self.shape.key_dim**-0.5,
            scratch or TileScratch(),
            seen(out),
        )
        return out[0]

    def expected(self, row: int, window: int | None) -> Tensor:
        """Of one row, `[heads, value_dim]`, in float64."""
        last, group = int(self.positions[row]), self.shape.heads // self.shape.kv_heads
        first = 0 if window is None else max(0, last - window + 1)
        pages = self.tables[self.first_page[row] :]
        pages = pages[: last // self.shape.block_size + 1]
        keys, values = (
            kept[pages].flatten(0, 1)[first : last + 1].double().repeat_interleave(group, 1)
            for kept in (self.keys, self.values)
        )
        scores = torch.einsum("hd,thd->ht", self.query[0, :, row].double(), keys)
        weights = torch.softmax(scores * self.shape.key_dim**-0.5, dim=-1)
        return torch.einsum("ht,thd->hd", weights, values)


@pytest.mark.parametrize("window", [None, 1, 20, 100])
@pytest.mark.parametrize("spans", SPANS)
@pytest.mark.parametrize("shape", SHAPES)
def test_each_row_attends_to_what_it_sees(
    shape: Shape, spans: list[tuple[int, int]], window: int | None
) -> None:
    prompts = Prompts(shape, spans)
    out = prompts.attend(window).double()
    expected = torch.stack(
        [prompts.expected(row, window) for row in range(prompts.alone, len(out))]
    )
    torch.testing.assert_close(out[prompts.alone :], expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_rows_that_read_alone_are_left_alone() -> None:
    prompts = Prompts(SHAPES[0], SPANS[-1])
    assert (prompts.attend()[: prompts.alone] == 5.0).all()


@pytest.mark.parametrize("first", [32, 45, 240])
def test_a_row_is_the_same_whatever_is_computed_beside_it(first: int) -> None:
    """But for the products before: of those, oneDNN promises nothing."""
    together, by_itself = Prompts(SHAPES[0], [(0, 300)], 0), Prompts(SHAPES[0], [(0, 300)], 0)
    by_itself.spans = [replace(by_itself.spans[0], row=first, rows=300 - first, start=first)]
    assert torch.equal(together.attend()[first:], by_itself.attend()[first:])


def test_any_number_of_threads_computes_the_same() -> None:
    prompts, threads = Prompts(SHAPES[0], SPANS[-1]), torch.get_num_threads()
    expected = prompts.attend()
    torch.set_num_threads(3)
    try:
        assert torch.equal(prompts.attend(), expected)
    finally:
        torch.set_num_threads(threads)


def test_what_sees_too_much_for_the_scratch_goes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = Prompts(SHAPES[0], SPANS[-1])
    expected = prompts.attend()
    monkeypatch.setattr("actors.engine.tiling.MOST_TOKENS", 60)
    assert len(cut(prompts.spans, None)) == 3
    assert torch.equal(prompts.attend(), expected)


def test_scores_far_apart_stay_numbers() -> None:
    prompts = Prompts(SHAPES[0], [(0, 300)])
    prompts.keys *= 300
    out = prompts.attend().double()
    expected = torch.stack([prompts.expected(row, None) for row in range(3, len(out))])
    assert out.isfinite().all()
    torch.testing.assert_close(out[3:], expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_scratch_is_used_again_whatever_was_in_it() -> None:
    scratch = TileScratch()
    Prompts(SHAPES[1], SPANS[-1]).attend(scratch=scratch)
    prompts = Prompts(SHAPES[2], SPANS[2])
    assert torch.equal(prompts.attend(scratch=scratch), prompts.attend())
