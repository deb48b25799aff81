"""One step's chunks as one ragged row of tokens, and how attention reads the pages behind them.

Rows are ordered by the engine: single-token chunks (decodes) first, then other short ones (decodes
with guesses), longest context first, so that neighbours are of similar length and a group of
decodes is a slice. Everything is built with numpy once a step; nothing here runs once a token or
once a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from actors.engine.kv_cache import InPlace, KVCache
from actors.engine.layouts import Ints, Layout, accompanied, step_layout
from actors.engine.tiling import Part, Span, cut
from actors.engine.uploads import upload, upload_rows
from actors.engine.varlen import Ragged, by_chunk, by_row
from cluster.steps import Chunk, StepPlan

MAX_GROUP_TOKENS = 65_536
"""Context tokens gathered at once for one group of decodes: bounds the scratch memory."""

MOST_ALONE = 8
"""Rows of a chunk up to which each reads its pages in place, where decodes do: gathering the pages
costs more for so few, and what one row has read is still near when the next one does. A decode with
as many guesses as may be configured is one."""


@dataclass(frozen=True, slots=True)
class Read:
    """Attention of the rows `rows`: `sequences` sequences with an equal number of queries each.

    They read `pages` (for each sequence `len(pages) / sequences` of them, in order) under the
    additive `mask`, `[sequences, 1, queries, tokens]`; what lies `beyond` a sequence on its pages,
    by its place among all tokens read, is not its own. Without pages the rows attend to
    themselves, causally: a prompt's first chunk needs nothing that it has not just computed.
    """

    rows: slice
    sequences: int
    pages: Tensor | None = None
    mask: Tensor | None = None
    beyond: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Paths:
    """The way of each row to its pages: page `i` of row `r` is `tables[first_page[r] + i]`."""

    tables: Ints
    first_page: Ints
    positions: Ints


@dataclass(slots=True, eq=False, weakref_slot=True)
class StepBatch:
    """The ragged row: `tokens` and `positions` are `[1, rows]`, `slots` `[rows]`, all int64.

    `first_row[i]` is where chunk `i` of the plan starts. `number`, `[1]`, goes through the model;
    by it the attention finds the batch. The first `alone` rows read their pages in place, each by
    its path; for the others the attention asks for the reads of its layer's window.
    """

    cache: KVCache
    tokens: Tensor
    positions: Tensor
    slots: Tensor
    layout: Layout
    first_row: dict[int, int]
    number: Tensor
    paths: Paths
    alone: int
    parts: tuple[Ragged, ...] = ()
    _reads: dict[int | None, tuple[Read, ...]] = field(default_factory=dict)
    _tiles: dict[int | None, tuple[Part, ...]] = field(default_factory=dict)

    def ragged(self) -> tuple[Ragged, ...]:
        """How the rows read their pages by torch's kernel: `parts`, once they are known."""
        if not self.parts:
            paths, counts = self.paths, self.layout.counts
            way = (self.cache, paths.tables, paths.first_page, paths.positions)
            self.parts = by_row(*way) if self.cache.in_place.repeats else by_chunk(*way, counts)
        return self.parts

    def reads(self, window: int | None) -> tuple[Read, ...]:
        """How the rows read their pages in a layer whose queries see `window` tokens back."""
        if window not in self._reads:
            plan = _ReadPlanner(self.cache, window)
            self._reads[window] = tuple(plan.reads(_spans(self.layout, self.alone)))
        return self._reads[window]

    def tiles(self, window: int | None) -> tuple[Part, ...]:
        """The same for `prompts`."""
        if window not in self._tiles:
            self._tiles[window] = cut(_spans(self.layout, self.alone), window)
        return self._tiles[window]


_numbers = count(1)
_steps: WeakValueDictionary[int, StepBatch] = WeakValueDictionary()


def find_step(number: Tensor) -> StepBatch:
    """The living batch of that number. A tensor, as only tensors pass through a compiled model."""
    return _steps[int(number)]


def build_batch(plan: StepPlan, cache: KVCache) -> StepBatch:
    """Lay out the chunks of `plan` as one row."""
    order = sorted(range(len(plan.chunks)), key=lambda i: _row_order(plan.chunks[i]))
    layout = step_layout([plan.chunks[i] for i in order], plan.copies)
    if cache.in_place is InPlace.ALL:
        layout = accompanied(layout, cache.spare)
        order += range(len(order), len(layout.counts))
    return lay_out(layout, cache, order)


def lay_out(layout: Layout, cache: KVCache, order: Sequence[int]) -> StepBatch:
    """The row of `layout` over the pages of `cache`; `order[i]` is the number, in the plan, of the
    layout's chunk `i`."""
    starts, counts, sizes = layout.starts, layout.counts, layout.sizes
    rows, pages = np.cumsum(counts) - counts, np.cumsum(sizes) - sizes
    positions = np.arange(counts.sum()) + np.repeat(starts - rows, counts)
    paths = Paths(layout.tables, np.repeat(pages, counts), positions)
    slots = slots_of(paths, cache.block_size)
    tokens, places, kept_at = upload_rows((layout.tokens, positions, slots), cache.device)
    number = next(_numbers)
    batch = _steps[number] = StepBatch(
        cache=cache,
        tokens=tokens[None],
        positions=places[None],
        slots=kept_at,
        layout=layout,
        first_row=dict(zip(order, rows.tolist(), strict=True)),
        number=torch.tensor([number]),
        paths=paths,
        alone=_alone(cache.in_place, counts),
    )
    return batch


def _row_order(chunk: Chunk) -> tuple[bool, bool, int]:
    return chunk.rows > MOST_ALONE, chunk.rows > 1, -(chunk.start + chunk.rows)


def _alone(in_place: InPlace, counts: Ints) -> int:
    match in_place:
        case InPlace.ALL:
            return int(counts.sum())
        case InPlace.DECODES:
            return int(counts[counts <= MOST_ALONE].sum())
        case InPlace.NONE | InPlace.RAGGED | InPlace.RAGGED_ROWS:
            return 0


def _spans(layout: Layout, alone: int) -> tuple[Span, ...]:
    """Of the chunks whose rows do not read alone."""
    rows = np.cumsum(layout.counts) - layout.counts
    pages = np.cumsum(layout.sizes) - layout.sizes
    return tuple(
        Span(
            row=int(rows[chunk]),
            rows=int(layout.counts[chunk]),
            start=int(layout.starts[chunk]),
            table=layout.tables[pages[chunk] :][: layout.sizes[chunk]],
        )
        for chunk in np.flatnonzero(rows >= alone).tolist()
    )


def slots_of(paths: Paths, block_size: int) -> Ints:
    """Where each row's key and value live: its page times the page's size, plus its place there."""
    pages: Ints = paths.tables[paths.first_page + paths.positions // block_size]
    return pages * block_size + paths.positions % block_size


@dataclass(frozen=True, slots=True)
class _ReadPlanner:
    """Turns spans into reads for one window: decodes in groups, longer chunks one by one."""

    cache: KVCache
    window: int | None

    def reads(self, spans: tuple[Span, ...]) -> Iterator[Read]:
        decodes = [span for span in spans if span.rows == 1]
        for group in self._groups(decodes):
            yield self._paged(group)
        for span in spans[len(decodes) :]:
            yield self._own(span) if self._sees_itself_only(span) else self._paged([span])

    def _groups(self, decodes: list[Span]) -> Iterator[list[Span]]:
        """Neighbours whose pages differ at most by two: padding to the longest stays cheap."""
        group: list[Span] = []
        for span in decodes:
            if group and not self._joins(span, group):
                yield group
                group = []
            group.append(span)
        if group:
            yield group

    def _joins(self, span: Span, group: list[Span]) -> bool:
        longest = self._page_count(group[0])
        tokens = longest * self.cache.block_size * (len(group) + 1)
        return 2 * self._page_count(span) >= longest and tokens <= MAX_GROUP_TOKENS

    def _sees_itself_only(self, span: Span) -> bool:
        return span.start == 0 and (self.window is None or span.rows <= self.window)

    def _own(self, span: Span) -> Read:
        return Read(slice(span.row, span.row + span.rows), 1)

    def _paged(self, spans: list[Span]) -> Read:
        """Each span's visible pages, padded with the pool's first page to the longest."""
        width = max(self._page_count(span) for span in spans)
        pages = np.zeros((len(spans), width), dtype=np.int64)
        for row, span in zip(pages, spans, strict=True):
            visible = span.table[self._first_page(span) :][: self._page_count(span)]
            row[: len(visible)] = visible
        rows = slice(spans[0].row, spans[-1].row + spans[-1].rows)
        tokens = width * self.cache.block_size
        mask, beyond = self._mask(spans, tokens), self._beyond(spans, tokens)
        return Read(rows, len(spans), upload(pages.ravel(), self.cache.device), mask, beyond)

    def _beyond(self, spans: list[Span], tokens: int) -> Tensor | None:
        """Places, in `tokens` for each span, behind the last one that it has computed."""
        own = np.array([s.end - self._first_page(s) * self.cache.block_size for s in spans])
        places = np.flatnonzero(np.arange(tokens) >= own[:, None])
        return upload(places, self.cache.device) if len(places) else None

    def _mask(self, spans: list[Span], tokens: int) -> Tensor:
        """0 where query `q` sees key `k` (`q - window < k <= q`), -inf elsewhere."""
        first_key = np.array([self._first_page(s) * self.cache.block_size for s in spans])
        first_query = np.array([s.start for s in spans])
        keys = first_key[:, None, None] + np.arange(tokens)
        queries = first_query[:, None, None] + np.arange(spans[0].rows)[:, None]
        seen = keys <= queries
        if self.window is not None:
            seen &= keys > queries - self.window
        mask = upload(np.where(seen, np.float32(0), np.float32(-np.inf)), self.cache.device)
        return mask[:, None].to(self.cache.dtype)

    def _first_page(self, span: Span) -> int:
        if self.window is None:
            return 0
        return max(0, span.start - self.window + 1) // self.cache.block_size

    def _page_count(self, span: Span) -> int:
        return -(-span.end // self.cache.block_size) - self._first_page(span)
