"""What the attention of a step comes to, over pages that are full of drawn numbers."""

from __future__ import annotations

import random

import torch
from torch import Tensor

import actors.engine.attention  # noqa: F401  # brings the operator
from actors.engine.batch import build_batch
from actors.engine.kv_cache import InPlace, KVCache, LayerShape
from actors.engine.varlen import PAGE_MULTIPLE
from cluster.messages import Request, Sampling, Stopping
from cluster.steps import Chunk, Sequence, StepPlan

Chunks = list[tuple[int, int]]
"""Of each chunk: tokens before it, and its own."""


def pages_of(chunks: Chunks) -> list[int]:
    """How many each chunk's sequence has."""
    return [-(-(start + count) // PAGE_MULTIPLE) for start, count in chunks]


def plan_of(chunks: Chunks) -> StepPlan:
    """Chunks of sequences whose pages, the first of a pool, lie in any order."""
    sizes = pages_of(chunks)
    pages = list(range(sum(sizes)))
    random.Random(0).shuffle(pages)
    planned = []
    for (start, count), size in zip(chunks, sizes, strict=True):
        blocks, pages = pages[:size], pages[size:]
        request = Request("", "", "", "", (0,), Sampling(), Stopping(max_tokens=1))
        sequence = Sequence(request, 0, [0] * (start + count), blocks=blocks)
        planned.append(Chunk(sequence, start, count, False))
    return StepPlan(tuple(planned))


def full_cache(
    shape: LayerShape, pages: int, dtype: torch.dtype, device: torch.device, in_place: InPlace
) -> KVCache:
    """One layer's pages; the numbers are the same for every dtype, as bfloat16 holds them."""
    cache = KVCache({0: shape}, pages, PAGE_MULTIPLE, dtype, device, in_place)
    slots = torch.arange(pages * PAGE_MULTIPLE, device=device)
    draw = torch.Generator(device).manual_seed(0)
    kept = (
        _drawn(draw, len(slots), shape.kv_heads, dim).to(dtype)
        for dim in (shape.key_dim, shape.value_dim)
    )
    cache.write(0, slots, *kept)
    return cache


@torch.inference_mode()
def attended(cache: KVCache, chunks: Chunks, heads: int, window: int | None) -> Tensor:
    """Attention of `chunks` over a `full_cache`, of drawn queries, keys and values: float32."""
    shape = cache.shape(0)
    batch = build_batch(plan_of(chunks), cache)
    rows = sum(count for _, count in chunks)
    draw = torch.Generator(cache.device).manual_seed(1)
    query, key, value = (
        _drawn(draw, 1, count, rows, dim).to(cache.dtype)
        for count, dim in (
            (heads, shape.key_dim),
            (shape.kv_heads, shape.key_dim),
            (shape.kv_heads, shape.value_dim),
        )
    )
    scale = shape.key_dim**-0.5
    out: Tensor = torch.ops.shoal.attend(query, key, value, batch.number, 0, scale, window, None)
    return out.float()


def _drawn(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=draw, device=draw.device).bfloat16()
