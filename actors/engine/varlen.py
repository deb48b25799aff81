"""Paged attention by torch's own kernel for GPUs: each sequence reads its pages through a table.

The kernel is FlashAttention 2, behind `torch.nn.attention.varlen`. What it cannot do (float32,
soft-capping, pages of other sizes, older torch) stays with the reads that gather pages
(`attention`). Two things are known of it that its documentation does not say:

- A page must hold a multiple of 256 tokens.
- Where it splits the keys of a sequence among thread blocks, it puts the parts together right only
  if there is one query a sequence, several query heads share a key head, and no window is asked for
  (pytorch issue 194167: otherwise rows after the first sequence's are not written). Only then is it
  left to choose the splits; a decode needs them, since a few sequences alone do not fill a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import attention
from torch.nn.attention.varlen import varlen_attn

from actors.engine.kv_cache import KVCache, LayerShape
from actors.engine.uploads import upload

Ints = NDArray[np.int64]
Words = NDArray[np.int32]

PAGE_MULTIPLE = 256
"""Tokens of a page: FlashAttention 2 in torch 2.12 and 2.13 refuses others."""

HEAD_MULTIPLE, LARGEST_HEAD = 8, 256

PRECISIONS = frozenset({torch.float16, torch.bfloat16})

AMPERE = (8, 0)
"""The least compute capability the kernel is made for."""

OPERATOR = "aten::_flash_attention_forward"


@dataclass(frozen=True, slots=True)
class Ragged:
    """Sequences with a row of queries each, `rows` of the step's, and how they find their keys.

    Sequence `i` has queries `starts[i] : starts[i + 1]` of those rows and sees `lengths[i]` keys,
    in the pages `table[i]`, its last query all of them. `keys` are the lengths summed up, from 0
    on. All int32. No sequence has more than `most_queries` and `most_keys`.
    """

    rows: slice
    starts: Tensor
    keys: Tensor
    lengths: Tensor
    table: Tensor
    most_queries: int
    most_keys: int


def usable(
    capability: tuple[int, int],
    dtype: torch.dtype,
    block_size: int,
    layers: Iterable[LayerShape],
) -> bool:
    """Whether the kernel computes attention of such a model on a device of that capability."""
    return (
        capability >= AMPERE
        and dtype in PRECISIONS
        and block_size % PAGE_MULTIPLE == 0
        and all(_has_head(shape) for shape in layers)
    )


def usable_on(
    device: torch.device, dtype: torch.dtype, block_size: int, layers: Iterable[LayerShape]
) -> bool:
    """The same of a device at hand, if this torch brings the kernel for it."""
    return _is_here(device) and usable(_capability(device), dtype, block_size, layers)


def _has_head(shape: LayerShape) -> bool:
    dim = shape.key_dim
    return dim == shape.value_dim and dim <= LARGEST_HEAD and dim % HEAD_MULTIPLE == 0


def _is_here(device: torch.device) -> bool:
    """Another implementation that somebody has put in the kernel's place is not the one we know;
    torch before 2.12 has no such place, and no block table."""
    schema = str(torch.ops.aten._flash_attention_forward.default._schema)
    key = device.type.upper()
    return (
        "block_table" in schema
        and torch._C._dispatch_has_kernel_for_dispatch_key(OPERATOR, key)
        and torch.version.hip is None
        and attention.current_flash_attention_impl() is None
    )


def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else AMPERE


def by_chunk(
    cache: KVCache, tables: Ints, first_page: Ints, positions: Ints, counts: Ints
) -> tuple[Ragged, ...]:
    """A step's chunks of `counts` rows as sequences: those of one row, which come first, together,
    and the longer ones.

    Of row `r`, page `i` is `tables[first_page[r] + i]`.
    """
    last = np.cumsum(counts) - 1
    singles = int((counts == 1).sum())
    return tuple(
        _part(cache, tables, first_page, positions, counts[chunks], last[chunks])
        for chunks in (slice(0, singles), slice(singles, len(counts)))
        if chunks.start < chunks.stop
    )


def _part(
    cache: KVCache, tables: Ints, first_page: Ints, positions: Ints, counts: Ints, last: Ints
) -> Ragged:
    """Neighbouring chunks of `counts` rows, of which `last` are each one's last."""
    lengths = positions[last] + 1
    packed = pack(table_of(tables, first_page[last], lengths, cache.block_size), lengths, counts)
    rows = slice(int(last[0] + 1 - counts[0]), int(last[-1]) + 1)
    numbers = upload(packed, cache.device)
    return unpack(numbers, len(counts), rows, int(counts.max()), int(lengths.max()))


def by_row(cache: KVCache, tables: Ints, first_page: Ints, positions: Ints) -> tuple[Ragged, ...]:
    """Every row as a sequence of its own: how it is computed depends on nothing beside it."""
    return by_chunk(cache, tables, first_page, positions, np.ones_like(positions))


def table_of(tables: Ints, first: Ints, lengths: Ints, block_size: int) -> Words:
    """The pages of each sequence of `lengths` tokens, as many columns as the longest needs; what
    is beyond a sequence's own is its last page again."""
    pages = -(-lengths // block_size)
    place = first[:, None] + np.minimum(np.arange(int(pages.max())), pages[:, None] - 1)
    table: Words = tables[place].astype(np.int32)
    return table


def pack(table: Words, lengths: Ints, counts: Ints) -> Words:
    """All numbers of a `Ragged` in one row, so that they reach the device in one copy."""
    sums = (np.concatenate([[0], np.cumsum(each)]) for each in (counts, lengths))
    return np.concatenate([*sums, lengths, table.ravel()], dtype=np.int32, casting="unsafe")


def packed_size(sequences: int, width: int) -> int:
    """How many numbers `pack` gives."""
    return 2 * (sequences + 1) + sequences + sequences * width


def unpack(
    packed: Tensor, sequences: int, rows: slice, most_queries: int, most_keys: int
) -> Ragged:
    """What `pack` put together, as views."""
    bounds = sequences + 1
    rest = len(packed) - packed_size(sequences, 0)
    starts, keys, lengths, table = torch.split(packed, [bounds, bounds, sequences, rest])
    return Ragged(rows, starts, keys, lengths, table.view(sequences, -1), most_queries, most_keys)


def attend_ragged(
    cache: KVCache,
    parts: Iterable[Ragged],
    layer: int,
    query: Tensor,
    scale: float,
    window: int | None,
) -> Tensor:
    """Attention of all rows, whose keys and values are in their pages by now.

    `query` is `[1, heads, rows, dim]`; returns `[1, rows, heads, dim]`.
    """
    rows = query[0].transpose(0, 1)
    outs = [_attend(cache, part, layer, rows[part.rows], scale, window) for part in parts]
    return (outs[0] if len(outs) == 1 else torch.cat(outs))[None]


def _attend(
    cache: KVCache, part: Ragged, layer: int, query: Tensor, scale: float, window: int | None
) -> Tensor:
    keys, values = cache.paged(layer)
    grouped = query.shape[1] > keys.shape[2]
    out: Tensor = varlen_attn(  # type: ignore[assignment]  # a tuple only where asked for
        query,
        keys,
        values,
        part.starts,
        part.keys,
        part.most_queries,
        part.most_keys,
        scale=scale,
        window_size=_reach(part, window),
        enable_gqa=grouped,
        seqused_k=part.lengths,
        block_table=part.table,
        num_splits=_splits(cache, part, grouped, window),
    )
    return out


def _reach(part: Ragged, window: int | None) -> tuple[int, int]:
    """How many keys before and after its own a query sees; -1: all.

    The only query of a sequence is its last token, so there is nothing after it: said so, heads
    that share keys are packed as if they were queries.
    """
    if window is not None:
        return window - 1, 0
    return (-1, -1) if part.most_queries == 1 else (-1, 0)


def _splits(cache: KVCache, part: Ragged, grouped: bool, window: int | None) -> int | None:
    """None: as the kernel chooses, which is where it is known to be right; see above."""
    chooses = part.most_queries == 1 and grouped and window is None
    return None if chooses and not cache.in_place.repeats else 1
