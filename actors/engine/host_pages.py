"""Pages of a shard that host memory keeps: what was saved from the device, and is loaded back.

Memory comes in segments, each when a first slot of it is written to: slots are given out from the
first on, so an idle shard holds none. For a GPU they are pinned, a segment at a time, since pinning
touches all memory at once, and torch rounds what it pins up to a power of two. The step that needs
a new segment waits for the pinning. Copies are put into the one stream in which the step's
computation stands, too: pinned ones do not hold the host up, but what is computed waits for them.
Where no memory can be pinned, others are used, and the host waits as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engine.kv_cache import KVCache
from cluster.host_tier import Moves
from cluster.steps import PageLoad, PageSave

SEGMENT_BYTES = 2**26
"""A power of two, and so small that pinning it delays no step by much."""

PROBED = 16
"""Pages that tell how fast they come back."""

PROBES = 3
"""Of which the quickest counts: others may be busy meanwhile."""

Move = TypeVar("Move", PageSave, PageLoad)

logger = logging.getLogger(__name__)


class HostPages:
    """Slots of one page of `cache` each, as many as are written to; whose they are is decided
    elsewhere. Pages move through a buffer on the device of at most a segment's size.
    """

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._rows = max(1, SEGMENT_BYTES // cache.page_bytes)
        self._segments: dict[int, Tensor] = {}
        self._pins = cache.device.type == "cuda"

    def check_room(self, pages: int) -> None:
        """Raises RuntimeError where the device has no memory for the buffer through which so many
        pages move; torch keeps what it finds for them."""
        self._buffer(min(pages, self._rows))

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
            pages = self._buffer(len(batch))
            for page, one in zip(pages, batch, strict=True):
                page.copy_(self._slot(one.slot), non_blocking=True)
            self._cache.scatter_bytes([one.page for one in batch], pages)

    def memory(self, slot: int) -> NDArray[np.uint8]:
        """What `slot` holds, for another thread to read or write once `copies_done`."""
        held: NDArray[np.uint8] = self._slot(slot).numpy()
        return held

    def copies_done(self) -> Callable[[], None]:
        """Waits, on any thread, until all that was moved so far is where it belongs."""
        if self._cache.device.type != "cuda":
            return _nothing
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event.synchronize

    def loads_within(self, seconds: float) -> int:
        """Pages that come back in such a time, at least one: measured, so call it while nothing
        else is asked of pages and slots."""
        pages = range(min(PROBED, self._cache.num_blocks))
        self.save([PageSave(page, page) for page in pages])
        took = min(self._loading_s([PageLoad(page, page) for page in pages]) for _ in range(PROBES))
        self._segments.clear()
        return max(1, int(len(pages) * seconds / took))

    def _loading_s(self, loads: Sequence[PageLoad]) -> float:
        self.copies_done()()
        began = perf_counter()
        self.load(loads)
        self.copies_done()()
        return perf_counter() - began

    def _batches(self, moves: Sequence[Move]) -> Iterator[Sequence[Move]]:
        for start in range(0, len(moves), self._rows):
            yield moves[start : start + self._rows]

    def _slot(self, slot: int) -> Tensor:
        number, row = divmod(slot, self._rows)
        if number not in self._segments:
            self._segments[number] = self._segment()
        return self._segments[number][row]

    def _segment(self) -> Tensor:
        shape = self._rows, self._cache.page_bytes
        if self._pins:
            try:
                return torch.empty(shape, dtype=torch.uint8, pin_memory=True)
            except RuntimeError as error:  # the system may allow no more of it
                logger.warning("host memory for pages is not pinned, which is slower: %s", error)
                self._pins = False
        return torch.empty(shape, dtype=torch.uint8)

    def _buffer(self, pages: int) -> Tensor:
        shape = pages, self._cache.page_bytes
        return torch.empty(shape, dtype=torch.uint8, device=self._cache.device)


def _nothing() -> None:
    """On a CPU copies are done when the call returns."""
