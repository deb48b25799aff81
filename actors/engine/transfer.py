"""Pages that leave an engine and come into one, by their names; and which engines' pages agree."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from actors.engine.host_pages import HostPages
from actors.engine.kv_cache import KVCache, LayerShape, page_bytes
from actors.parcels import Layout
from cluster.blocks import BlockPool
from cluster.config import ModelConfig
from cluster.hand_over import PageSize
from cluster.messages import PageHash

Given = tuple[tuple[PageHash, ...], NDArray[np.uint8]]
"""Names of pages, and what they hold, a page a row."""

OUT_OF_MEMORY = (RuntimeError, MemoryError)
"""What torch and numpy raise. A device that is broken raises such an error again in the next step,
which ends the shard; a transfer, which can be done without, does not."""

logger = logging.getLogger(__name__)


class PageTransfer:
    """Gives findable pages away and takes pages in as findable ones; between two steps only.

    What came in is a cached prefix like any other: nobody holds it, and it may be reused at once.
    What stood in its place goes to the `host` first, where that keeps any.
    """

    def __init__(self, pool: BlockPool, cache: KVCache, host: HostPages, layout: Layout) -> None:
        self.layout = layout
        self._pool = pool
        self._cache = cache
        self._host = host

    def lacking(self, hashes: Sequence[PageHash]) -> tuple[PageHash, ...]:
        """Those of `hashes` that are not here, nor in host memory."""
        return tuple(one for one in hashes if not self._pool.reach((one,)))

    def give(self, layout: Layout, hashes: Sequence[PageHash]) -> Given:
        """Those of `hashes` that are here or in host memory, as far as there is room to bring them
        back, and what they hold; none in another layout, nor where memory runs out."""
        found = self._within_room(hashes) if layout == self.layout else ()
        try:
            self._host.check_room(len(found))
        except OUT_OF_MEMORY as error:  # before any book changes
            return self._refuse(error)
        pages = self._pool.open(found)
        self._host.move(self._pool.drain_moves())
        try:
            return found, self._cache.read_pages(pages)
        except OUT_OF_MEMORY as error:
            return self._refuse(error)
        finally:
            self._pool.release(pages)

    def take(
        self, chain: Sequence[PageHash], hashes: Sequence[PageHash], data: NDArray[np.uint8]
    ) -> int:
        """Keep those pages called `hashes` that are not here yet, as many as there is room for;
        returns how many.

        They are of `chain`, whose other pages are not given up for them, and whose last ones are
        given up first.
        """
        new = [row for row, name in enumerate(hashes) if not self._pool.reach((name,))]
        try:
            # To choose rows copies them.
            staged = self._cache.stage(data[new] if len(new) < len(data) else data)
            self._host.check_room(len(new))
        except OUT_OF_MEMORY as error:  # before any book changes
            logger.warning("pages that came are not kept: %s", error)
            return 0
        held = [page for one in chain for page in self._pool.match((one,))]
        self._pool.take(held)
        fresh = self._pool.allocate(min(len(new), self._pool.available)) or []
        if fresh:
            self._host.move(self._pool.drain_moves())
            self._cache.scatter_bytes(fresh, staged[: len(fresh)])
        for page, row in zip(fresh, new, strict=False):
            self._pool.seal(page, hashes[row])
        self._pool.release([*held, *fresh])
        return len(fresh)

    def _refuse(self, error: Exception) -> Given:
        logger.warning("pages are not given away: %s", error)
        return (), np.empty((0, self.layout.size.nbytes), np.uint8)

    def _within_room(self, hashes: Sequence[PageHash]) -> tuple[PageHash, ...]:
        """Those that either tier has, from the first on; what nobody holds takes room."""
        room, found = self._pool.available, []
        for name in dict.fromkeys(hashes):
            if self._pool.reach((name,)):
                room -= 1 - self._pool.held((name,))
                if room < 0:
                    break
                found.append(name)
        return tuple(found)


def layout_of(
    loaded: PreTrainedModel, layers: Mapping[int, LayerShape], model: ModelConfig
) -> Layout:
    """Of the pages that an engine of `loaded` fills: the same for the same weights, of the same
    configuration, in the same precision, and where they are cut and computed the same way.

    Weights are told apart by sums of their bits, which reads them once, at 5 GB/s on one core.
    No two trainings agree in all of them.
    """
    size = PageSize(
        model.cache.block_size, page_bytes(layers, model.cache.block_size, loaded.dtype)
    )
    digest = blake2b(digest_size=16)
    shape = (size, loaded.dtype, model.deterministic, sorted(layers.items(), key=_index))
    digest.update(repr((shape, _architecture(loaded))).encode())
    for name, weights in loaded.state_dict().items():
        digest.update(name.encode())
        digest.update(_sums(weights))
    return Layout(digest.digest(), size)


def _index(layer: tuple[int, LayerShape]) -> int:
    return layer[0]


def _architecture(loaded: PreTrainedModel) -> dict[str, object]:
    """The configuration without where it was found and by what it was written."""
    told = loaded.config.to_dict()
    return {
        name: value
        for name, value in told.items()
        if not name.startswith("_") and name != "transformers_version"
    }


def _sums(weights: Tensor) -> bytes:
    """Of each MiB, taken as 64-bit integers; what is left over, as it is."""
    flat = weights.detach().contiguous().view(-1).view(torch.uint8)
    if flat.storage_offset() % 8:
        flat = flat.clone()
    whole = flat.numel() // 8 * 8
    words = torch.split(flat[:whole].view(torch.int64), 2**17)
    sums: bytes = torch.stack([part.sum() for part in words]).cpu().numpy().tobytes()
    rest: bytes = flat[whole:].cpu().numpy().tobytes()
    return sums + rest
