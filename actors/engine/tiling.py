"""How the chunks of a step are cut up for `prompts`, and the memory it works in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from actors.engine.squares import BLOCK, PART, TOKENS, padded
from actors.engine.tiles import shapes

Ints = NDArray[np.int64]
Halves = NDArray[np.uint16]
Floats = NDArray[np.float32]

MOST_TOKENS = 65_536
"""Tokens whose keys and values are near at once: bounds the scratch memory."""


@dataclass(frozen=True, slots=True)
class Span:
    """A chunk's `rows` from `row` on, the first at the position `start` of its sequence, whose
    pages are `table`."""

    row: int
    rows: int
    start: int
    table: Ints

    @property
    def end(self) -> int:
        """The position after its last row."""
        return self.start + self.rows

    def first_seen(self, window: int | None) -> int:
        """The first token of the first tile that one of its rows sees."""
        return 0 if window is None else max(0, self.start - window + 1) // TOKENS * TOKENS

    def tokens(self, window: int | None) -> int:
        return self.end - self.first_seen(window)


@dataclass(frozen=True, slots=True)
class Part:
    """Spans whose keys and values are near at once.

    `tiles`, `[tiles, 3]`: a row whose sequence it is, its first token, and how many there are, up
    to `TOKENS`. `blocks`, `[blocks, 5]`: the first row's position, its number, how many rows, up to
    `BLOCK`, and the first token and the number of the first tile that is there for them. The last
    of their sequences come first: without a window, those that see most.
    """

    blocks: Ints
    tiles: Ints


def cut(spans: Sequence[Span], window: int | None) -> tuple[Part, ...]:
    """Parts of up to `MOST_TOKENS`, or of one span, in layers whose rows see `window` back."""
    return tuple(_part(group, window) for group in _groups(spans, window))


def _groups(spans: Sequence[Span], window: int | None) -> Iterator[list[Span]]:
    group: list[Span] = []
    tokens = 0
    for span in spans:
        tokens += span.tokens(window)
        if group and tokens > MOST_TOKENS:
            yield group
            group, tokens = [], span.tokens(window)
        group.append(span)
    if group:
        yield group


def _part(spans: list[Span], window: int | None) -> Part:
    tiles: list[tuple[int, ...]] = []
    blocks: list[tuple[int, ...]] = []
    for span in spans:
        begin = span.first_seen(window)
        blocks += (
            (span.start + row, span.row + row, min(BLOCK, span.rows - row), begin, len(tiles))
            for row in range(0, span.rows, BLOCK)
        )
        tiles += (
            (span.row, token, min(TOKENS, span.end - token))
            for token in range(begin, span.end, TOKENS)
        )
    blocks.sort(key=_seen, reverse=True)
    return Part(np.array(blocks), np.array(tiles))


def _seen(block: tuple[int, ...]) -> int:
    position, _row, _rows, begin, _tile = block
    return position - begin


class TileScratch:
    """Reused memory: the keys and values of a part, which grows to the largest seen, and what each
    thread works in."""

    def __init__(self) -> None:
        self._keys: Halves = np.empty(0, np.uint16)
        self._values: Halves = np.empty(0, np.uint16)
        self._halves: Halves = np.empty((0, 0), np.uint16)
        self._floats: Floats = np.empty((0, 0), np.float32)
        self._shapes = shapes()
        self._taken: Ints = np.zeros(2, np.int64)

    def near(self, tiles: int, key_dim: int, value_dim: int) -> tuple[Halves, Halves]:
        """For so many tiles of keys and of values, one head each."""
        keys, values = (tiles * TOKENS * padded(dim) for dim in (key_dim, value_dim))
        self._keys, self._values = _large(self._keys, keys), _large(self._values, values)
        return self._keys, self._values

    def own(self, key_dim: int, value_dim: int) -> tuple[Halves, Floats, NDArray[np.uint8], Ints]:
        """A row for each thread of what `prompts` keeps in bfloat16 and in float32, the tiles'
        shapes, and counters."""
        threads = torch.get_num_threads()
        halves = BLOCK * padded(key_dim) + max(PART * BLOCK, TOKENS * padded(value_dim))
        floats = PART * BLOCK + BLOCK * padded(value_dim) + 3 * BLOCK
        if self._halves.shape[1] != halves or len(self._halves) < threads:
            self._halves = np.empty((threads, halves), np.uint16)
        if self._floats.shape[1] != floats or len(self._floats) < threads:
            self._floats = np.empty((threads, floats), np.float32)
        return self._halves[:threads], self._floats[:threads], self._shapes, self._taken


def _large(memory: Halves, size: int) -> Halves:
    """As much at least; by half more than that, where it has to grow: it will again."""
    return memory if len(memory) >= size else np.empty(size * 3 // 2, np.uint16)
