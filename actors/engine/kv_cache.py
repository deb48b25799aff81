"""The KV pages of one shard as tensors: who owns them is decided elsewhere, what they hold here.

Layout: each layer has one tensor of keys and one of values, `[num_blocks, block_size * kv_heads *
head_dim]`, tokens outermost within a page. One page is one contiguous row, so the pages of a whole
batch are gathered by a single `index_select` of long rows, and what comes out reads as
`[sequences, tokens, kv_heads, head_dim]` without a copy. Measured on two cores with AMX, bf16, 30
layers of 3 key heads of 64, 16 sequences of 200 tokens. Gathering: pages as rows into reused memory
2.2 ms, pages as `[block_size, kv_heads, head_dim]` 4.5 ms (6.0 ms into fresh memory), advanced
indexing 11 ms. Gathering and attending from scattered pages: 10.5 ms, and 11.9 ms with keys and
values joined in one tensor. SDPA reads tokens-first keys as fast as heads-first ones (5.1, 5.3 ms).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engine.memory import huge_zeros
from actors.engine.multipliers import usable
from actors.engine.tiling import TileScratch
from cluster.steps import PageCopy


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one token of one layer keeps: `kv_heads` keys of `key_dim` and values of `value_dim`.

    Where the model hands over more heads than that, those of other ranks too, kept are those from
    `first_head` on.
    """

    kv_heads: int
    key_dim: int
    value_dim: int
    first_head: int = 0

    @property
    def elements(self) -> int:
        return self.kv_heads * (self.key_dim + self.value_dim)


class InPlace(Enum):
    """Which rows of a step read their pages where they lie; the others gather them.

    By our own kernel on a CPU (`kernels`): decodes, or all. By torch's on a GPU (`varlen`): all,
    but for layers it cannot do, as they come or each by itself.
    """

    NONE = "none"
    DECODES = "decodes"
    ALL = "all"
    RAGGED = "ragged"
    RAGGED_ROWS = "ragged rows"

    @property
    def ragged(self) -> bool:
        """Whether it is torch's kernel."""
        return self in (InPlace.RAGGED, InPlace.RAGGED_ROWS)

    @property
    def by_kernel(self) -> bool:
        """Whether it is our own, which keeps the step's keys and values too."""
        return self in (InPlace.DECODES, InPlace.ALL)

    @property
    def repeats(self) -> bool:
        """Whether a row comes out the same, bit for bit, whatever its step holds beside it."""
        return self in (InPlace.ALL, InPlace.RAGGED_ROWS)


def readable_in_place(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether there is a kernel for it."""
    return device.type == "cpu" and dtype in (torch.float32, torch.bfloat16)


def page_bytes(layers: Mapping[int, LayerShape], block_size: int, dtype: torch.dtype) -> int:
    """Memory of one page over all layers, bytes."""
    return block_size * dtype.itemsize * sum(shape.elements for shape in layers.values())


class KVCache:
    """Pages of keys and values for every attention layer of one model.

    `in_place` is by default what is fastest on a CPU. What lies in a page behind its sequence may
    be of another one, and no finite number: who gathers it makes it zero, since a masked position
    has weight zero, and zero times NaN is NaN.
    `tiles` is what `prompts` works in, where the processor can and a row need not repeat.
    Behind the last page lies the `spare` one, which nobody owns: rows that only fill up a step
    write there.
    """

    def __init__(
        self,
        layers: Mapping[int, LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        in_place: InPlace | None = None,
    ) -> None:
        kernel = readable_in_place(device, dtype)
        self.in_place = in_place or (InPlace.DECODES if kernel else InPlace.NONE)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = dtype
        self.device = device
        self._layers = {
            index: _LayerPages(shape, num_blocks, block_size, dtype, device)
            for index, shape in layers.items()
        }
        self._scratch = _Scratch(dtype, device)
        self.tiles = TileScratch() if self._has_tiles() else None

    def _has_tiles(self) -> bool:
        few = self.in_place is InPlace.DECODES
        return few and self.dtype == torch.bfloat16 and usable()

    @property
    def spare(self) -> int:
        return self.num_blocks

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Keep `key` and `value`, `[tokens, kv_heads, dim]`, at `slots` (page * block_size + i)."""
        pages = self._layers[layer]
        pages.key_slots.index_copy_(0, slots, key)
        pages.value_slots.index_copy_(0, slots, value)

    def shape(self, layer: int) -> LayerShape:
        return self._layers[layer].shape

    def pages(self, layer: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """All keys and values of a layer, `[pages, block_size, kv_heads, dim]`; see `seen`."""
        return self._layers[layer].seen

    def paged(self, layer: int) -> tuple[Tensor, Tensor]:
        """The same as tensors."""
        return self._layers[layer].paged

    def gather(
        self, layer: int, pages: Tensor, sequences: int, beyond: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of `pages` (an equal number for each of `sequences`, in a row); zeros at
        the places `beyond`, counted over all of them.

        Returns `[sequences, kv_heads, tokens, dim]` each, valid until the next gather.
        """
        source = self._layers[layer]
        shape = source.shape
        keys = self._scratch.select("key", source.keys, pages)
        values = self._scratch.select("value", source.values, pages)
        if beyond is not None:
            keys.view(-1, shape.kv_heads * shape.key_dim).index_fill_(0, beyond, 0)
            values.view(-1, shape.kv_heads * shape.value_dim).index_fill_(0, beyond, 0)
        return (
            keys.view(sequences, -1, shape.kv_heads, shape.key_dim).transpose(1, 2),
            values.view(sequences, -1, shape.kv_heads, shape.value_dim).transpose(1, 2),
        )

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy whole pages, all reads before all writes."""
        if not copies:
            return
        sources = torch.tensor([copy.source for copy in copies], device=self.device)
        targets = torch.tensor([copy.target for copy in copies], device=self.device)
        for layer in self._layers.values():
            layer.keys[targets] = layer.keys[sources]
            layer.values[targets] = layer.values[sources]

    @property
    def page_bytes(self) -> int:
        """Memory of one page over all layers, bytes."""
        return sum(rows.shape[1] for rows in self.rows())

    def read_pages(self, pages: Sequence[int]) -> NDArray[np.uint8]:
        """What `pages` hold, in memory of the host: `[len(pages), page_bytes]`, a page a row, layer
        by layer, each layer's keys before its values."""
        host: NDArray[np.uint8] = self.gather_bytes(pages).cpu().numpy()
        return host

    def gather_bytes(self, pages: Sequence[int]) -> Tensor:
        """The same, on the device of the pages."""
        index = torch.tensor(pages, dtype=torch.int64, device=self.device)
        read = torch.empty(len(pages), self.page_bytes, dtype=torch.uint8, device=self.device)
        start = 0
        for rows in self.rows():
            torch.index_select(rows, 0, index, out=read[:, start : start + rows.shape[1]])
            start += rows.shape[1]
        return read

    def stage(self, data: NDArray[np.uint8]) -> Tensor:
        """What `read_pages` gave, on the device of the pages."""
        # Copied where it is read-only, as in shared memory, since torch takes no such array.
        return torch.from_numpy(np.require(data, requirements="W")).to(self.device)

    def scatter_bytes(self, pages: Sequence[int], data: Tensor) -> None:
        """Make `pages` hold what `gather_bytes` gave.

        Raises ValueError where `data` is not `[len(pages), page_bytes]`.
        """
        if data.shape != (len(pages), self.page_bytes):
            raise ValueError(f"{(*data.shape,)} bytes for {len(pages)} pages of {self.page_bytes}")
        start, index = 0, torch.tensor(pages, dtype=torch.int64, device=self.device)
        for rows in self.rows():
            _put(rows, index, data[:, start : start + rows.shape[1]])
            start += rows.shape[1]

    def rows(self) -> Iterator[Tensor]:
        """All pages of a layer's keys, then of its values, as bytes: `[num_blocks + 1, row]`."""
        for layer in self._layers.values():
            yield layer.keys.view(torch.uint8)
            yield layer.values.view(torch.uint8)


class _LayerPages:
    """The two tensors of one layer, and the same memory seen token by token."""

    def __init__(
        self,
        shape: LayerShape,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        def pages(dim: int) -> Tensor:
            row = block_size * shape.kv_heads * dim
            return _zeros((num_blocks + 1) * row, dtype, device).view(num_blocks + 1, row)

        self.shape = shape
        self.keys = pages(shape.key_dim)
        self.values = pages(shape.value_dim)
        self.key_slots = self.keys.view(-1, shape.kv_heads, shape.key_dim)
        self.value_slots = self.values.view(-1, shape.kv_heads, shape.value_dim)
        paged = (num_blocks + 1, block_size, shape.kv_heads, -1)
        self.paged = (self.keys.view(paged), self.values.view(paged))
        if readable_in_place(device, dtype):
            self.seen = (seen(self.paged[0]), seen(self.paged[1]))


def seen(tensor: Tensor) -> NDArray[Any]:
    """The memory of a CPU tensor as numpy sees it, which lacks bfloat16: as uint16."""
    array: NDArray[Any] = (
        tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
    ).numpy()
    return array


def _put(rows: Tensor, pages: Tensor, data: Tensor) -> None:
    """Copy `data` to `pages` of `rows`. On a CPU numpy does it at 2.4 GB/s, torch at 0.6."""
    if rows.device.type == "cpu":
        rows.numpy()[pages.numpy()] = data.numpy()
    else:
        rows[pages] = data


def _zeros(elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`torch.zeros` on a CPU writes every page at once: an idle shard would hold its whole pool."""
    if device.type != "cpu":
        return torch.zeros(elements, dtype=dtype, device=device)
    return huge_zeros(elements, dtype)


class _Scratch:
    """Reused memory for gathered pages: a fresh allocation this large costs a page fault per 4 KiB.

    It grows to the largest gather seen, at most one layer's pages of one attention group.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._empty = torch.empty(0, dtype=dtype, device=device)
        self._buffers: dict[str, Tensor] = {}

    def select(self, name: str, source: Tensor, rows: Tensor) -> Tensor:
        size = len(rows) * source.shape[1]
        buffer = self._buffers.get(name, self._empty)
        if buffer.numel() < size:
            buffer = self._buffers[name] = self._empty.new_empty(size)
        out = buffer[:size].view(len(rows), source.shape[1])
        return torch.index_select(source, 0, rows, out=out)
