"""A step as numbers alone, which go from one rank of a shard to the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from cluster.steps import Chunk, PageCopy

Ints = NDArray[np.int64]

COMPANY = 16
"""Rows that a product needs so that each rounds as it does among more: fewer are computed in other
ways by some libraries (with AVX512-BF16 one in bfloat16, up to eleven in float32)."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One step as numbers alone, from which any rank of a shard makes the same row.

    Of each chunk, in the order of the rows: its first position, its tokens' number and its pages'
    number; then the tokens and the pages of all. `copies`: pages to copy before, all sources, then
    all targets.
    """

    copies: Ints
    starts: Ints
    counts: Ints
    sizes: Ints
    tokens: Ints
    tables: Ints


def step_layout(chunks: list[Chunk], copies: Sequence[PageCopy]) -> Layout:
    tables = [np.array(chunk.sequence.blocks, dtype=np.int64) for chunk in chunks]
    return Layout(
        copies=_ints(chain((c.source for c in copies), (c.target for c in copies))),
        starts=_ints(chunk.start for chunk in chunks),
        counts=_ints(chunk.rows for chunk in chunks),
        sizes=_ints(len(table) for table in tables),
        tokens=_tokens(chunks),
        tables=np.concatenate(tables),
    )


def accompanied(layout: Layout, spare: int) -> Layout:
    """With rows behind that make it `COMPANY`, each the first of a sequence on the page `spare`."""
    missing = max(0, COMPANY - int(layout.counts.sum()))
    zeros, ones = np.zeros(missing, dtype=np.int64), np.ones(missing, dtype=np.int64)
    return Layout(
        layout.copies,
        np.append(layout.starts, zeros),
        np.append(layout.counts, ones),
        np.append(layout.sizes, ones),
        np.append(layout.tokens, zeros),
        np.append(layout.tables, ones * spare),
    )


def _tokens(chunks: list[Chunk]) -> Ints:
    parts = ((c.sequence.tokens[c.start : c.start + c.count], c.guesses) for c in chunks)
    return _ints(chain.from_iterable(chain.from_iterable(parts)))


def _ints(numbers: Iterable[int]) -> Ints:
    return np.fromiter(numbers, dtype=np.int64)
