"""Paged attention as transformers calls it: write the step's keys and values, then read pages.

This is the only place that knows which kernel attends. The model passes on, among its keyword
arguments, the number of the step (`batch`), and the attention is an operator of torch's own
registry that looks the step up by it: so a model runs the same whether transformers calls its
layers one by one or a compiler has made one program of them. A model that drops those arguments is
refused when it is loaded (`families`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn
from transformers import AttentionInterface

from actors.engine.batch import Read, StepBatch, find_step
from actors.engine.kernels import attend_rows
from actors.engine.kv_cache import seen
from actors.engine.prompts import attend_prompts
from actors.engine.tiling import TileScratch
from actors.engine.varlen import attend_ragged

PAGED = "shoal_paged"
"""The name under which transformers finds `paged_attention`. No mask function is registered for
it, so models build no mask: causality and windows are the batch's business."""

SCHEMA = (
    "(Tensor query, Tensor key, Tensor value, Tensor step, int layer, float scale,"
    " int? window, float? softcap) -> Tensor"
)
"""The operator `shoal::attend`, as compiled programs call it."""


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    step: Tensor,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend each sequence's queries to its own pages.

    `query` is `[1, heads, rows, key_dim]`, `key` and `value` `[1, kv_heads, rows, dim]`, all rows
    of the step. Returns `[1, rows, heads, value_dim]`. Keyword arguments beyond these have been
    found meaningless for the result when the model was loaded (`families`).
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out: Tensor = torch.ops.shoal.attend(
        query, key, value, step, module.layer_idx, scale, sliding_window, softcap
    )
    return out, None


def _compute(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: Tensor,
    layer: int,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """What the operator does: shapes as in `paged_attention`.

    Of a model that hands all heads to every rank, a rank attends with its own and leaves zeros in
    place of the others, which its next product does not read (`split`).
    """
    batch = find_step(step)
    kept = batch.cache.shape(layer)
    if kept.kv_heads == key.shape[1]:
        return _attend_all(batch, query, key, value, layer, scale, window, softcap)
    group = query.shape[1] // key.shape[1]
    own = slice(kept.first_head, kept.first_head + kept.kv_heads)
    queries = slice(own.start * group, own.stop * group)
    out = _out(query, key, value).zero_()
    out[:, :, queries] = _attend_all(
        batch, query[:, queries], key[:, own], value[:, own], layer, scale, window, softcap
    )
    return out


def _attend_all(
    batch: StepBatch,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layer: int,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """The same with these heads alone."""
    in_place = batch.cache.in_place
    if not in_place.by_kernel:
        batch.cache.write(layer, batch.slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
    if in_place.ragged and softcap is None:
        return attend_ragged(batch.cache, batch.ragged(), layer, query, scale, window)
    out = _out(query, key, value)
    if in_place.by_kernel:
        _keep_and_attend(batch, layer, query, key, value, window, scale, softcap, out)
    if batch.cache.tiles is not None and softcap is None:
        _attend_prompts(batch, batch.cache.tiles, layer, query, window, scale, out)
        return out
    for read in batch.reads(window):
        own = (tensor[:, :, read.rows] for tensor in (query, key, value))
        out[0, read.rows] = _attend(batch, layer, read, *own, scale=scale, softcap=softcap)
    return out


def _keep_and_attend(
    batch: StepBatch,
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: int | None,
    scale: float,
    softcap: float | None,
    out: Tensor,
) -> None:
    """All rows' keys and values, then the rows that read alone, written into `out`.

    One call for all of it: between two products of a step each operation of torch costs some ten
    times what it does in a loop, as the weights have pushed its code out of the caches.
    """
    paths = batch.paths
    attend_rows(
        seen(query),
        seen(key),
        seen(value),
        *batch.cache.pages(layer),
        seen(batch.slots),
        paths.tables,
        paths.first_page,
        paths.positions,
        batch.alone,
        window or 0,
        np.float32(scale),
        np.float32(softcap or 0.0),
        seen(out),
    )


def _attend_prompts(
    batch: StepBatch,
    scratch: TileScratch,
    layer: int,
    query: Tensor,
    window: int | None,
    scale: float,
    out: Tensor,
) -> None:
    """The rows that do not read alone, written into `out`."""
    attend_prompts(
        seen(query),
        *batch.cache.pages(layer),
        (batch.paths.tables, batch.paths.first_page),
        batch.tiles(window),
        window or 0,
        scale,
        scratch,
        seen(out),
    )


def _out(query: Tensor, key: Tensor, value: Tensor, *_: object) -> Tensor:
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[-1])


_operators: Any = torch.library.Library("shoal", "DEF")  # type: ignore[no-untyped-call]
_operators.define("attend" + SCHEMA)
_operators.impl("attend", _compute, "CompositeExplicitAutograd")
_operators.impl("attend", _out, "Meta")


def _attend(
    step: StepBatch,
    layer: int,
    read: Read,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """One read, `[rows, heads, value_dim]`."""
    if read.pages is not None:
        key, value = step.cache.gather(layer, read.pages, read.sequences, read.beyond)
    rows, heads = query.shape[2], query.shape[1]
    query = query[0].view(heads, read.sequences, -1, query.shape[-1]).transpose(0, 1)
    if softcap is not None:
        out = _softcapped(query, key, value, _mask(read, query), scale, softcap)
    elif rows == read.sequences:
        out = _single_query(query, key, value, read.mask, scale)
    else:
        out = F.scaled_dot_product_attention(
            query, key, value, read.mask, is_causal=read.mask is None, scale=scale, enable_gqa=True
        )
    return out.transpose(1, 2).reshape(rows, heads, -1)


def _single_query(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """Decodes: the query heads that share a key head stand in the place of query positions.

    They see the same keys, so nothing is repeated; 8.0 -> 5.1 ms in the measure of `kv_cache`.
    """
    sequences, heads, _, dim = query.shape
    packed = query.reshape(sequences, key.shape[1], -1, dim)
    out = F.scaled_dot_product_attention(packed, key, value, mask, scale=scale)
    return out.reshape(sequences, heads, 1, -1)


def _softcapped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, softcap: float
) -> Tensor:
    """Attention whose scores are squashed to (-softcap, softcap), which SDPA lacks (Gemma 2)."""
    sequences, heads, queries, dim = query.shape
    grouped = query.reshape(sequences, key.shape[1], -1, queries, dim)
    scores = torch.matmul(grouped, key[:, :, None].transpose(-1, -2)) * scale
    scores = torch.tanh(scores / softcap) * softcap + mask[:, :, None]
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype)
    return torch.matmul(weights, value[:, :, None]).view(sequences, heads, queries, -1)


def _mask(read: Read, query: Tensor) -> Tensor:
    """The read's mask, or the plain causal one it stands for, `[sequences, 1, queries, keys]`."""
    if read.mask is not None:
        return read.mask
    rows = query.shape[2]
    return query.new_full((rows, rows), -torch.inf).triu(1)[None, None]


AttentionInterface.register(PAGED, paged_attention)
