"""Pages of a shard that host memory keeps: what was saved from the device, and is loaded back.

Memory comes in segments, each when a first slot of it is written to: slots are given out from the
first on, so an idle shard holds none. For a GPU they are pinned, a segment at a time, since pinning
touches all memory at once, and torch rounds what it pins up to a power of two. Pages then move
while the host goes on: all in the order of one stream, in which the step's computation stands, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from actors.engine.kv_cache import KVCache
from cluster.host_tier import Moves
from cluster.steps import PageLoad, PageSave

SEGMENT_BYTES = 2**26
"""A power of two, and so small that pinning it delays no step by much."""

Move = TypeVar("Move", PageSave, PageLoad)


class HostPages:
    """Slots of one page of `cache` each, as many as are written to; whose they are is decided
    elsewhere. Pages move through a buffer on the device of at most a segment's size.
    """

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._rows = max(1, SEGMENT_BYTES // cache.page_bytes)
        self._segments: dict[int, Tensor] = {}

    def move(self, moves: Moves) -> None:
        """All that is due, where no step does it."""
        saves, loads = moves
        self.save(saves)
        self.load(loads)

    @torch.inference_mode()
    def save(self, saves: Sequence[PageSave]) -> None:
        """Copy pages of the device to slots, no two to the same."""
        for batch in self._batches(saves):
            pages = self._cache.gather_bytes([one.page for one in batch])
            for page, one in zip(pages, batch, strict=True):
                self._slot(one.slot).copy_(page, non_blocking=True)

    @torch.inference_mode()
    def load(self, loads: Sequence[PageLoad]) -> None:
        """Copy slots that were saved to before to pages of the device, no two to the same."""
        for batch in self._batches(loads):
            pages = torch.empty(
                len(batch), self._cache.page_bytes, dtype=torch.uint8, device=self._cache.device
            )
            for page, one in zip(pages, batch, strict=True):
                page.copy_(self._slot(one.slot), non_blocking=True)
            self._cache.scatter_bytes([one.page for one in batch], pages)

    def _batches(self, moves: Sequence[Move]) -> Iterator[Sequence[Move]]:
        for start in range(0, len(moves), self._rows):
            yield moves[start : start + self._rows]

    def _slot(self, slot: int) -> Tensor:
        number, row = divmod(slot, self._rows)
        if number not in self._segments:
            self._segments[number] = torch.empty(
                self._rows,
                self._cache.page_bytes,
                dtype=torch.uint8,
                pin_memory=self._cache.device.type == "cuda",
            )
        return self._segments[number][row]
