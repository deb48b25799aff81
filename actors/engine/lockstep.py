"""All ranks of a gang compute each step: rank 0 says which, the others follow.

Rank 0 alone has the books, the sampler and the doors. What the others need of a step is its layout
and which rows to keep, so that is what goes out, before each forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import torch
from torch import Tensor
from transformers import PreTrainedModel

from actors.engine.batch import find_step, lay_out
from actors.engine.gang import Gang
from actors.engine.jit import use_threads
from actors.engine.kv_cache import KVCache
from actors.engine.layouts import Ints, Layout
from actors.engine.runner import Forward, PagedModel
from cluster.steps import PageCopy


class LeadingForward:
    """A `Forward` that sends the step to the other ranks, then computes its own part."""

    def __init__(self, model: PreTrainedModel, gang: Gang) -> None:
        self._forward: Forward = PagedModel(model)
        self._gang = gang

    def __call__(self, tokens: Tensor, positions: Tensor, kept: Tensor, step: Tensor) -> Tensor:
        self._gang.order([*_numbers(find_step(step).layout), kept.cpu().numpy()])
        return self._forward(tokens, positions, kept, step)


@torch.inference_mode()
def follow(
    model: PreTrainedModel, cache: KVCache, gang: Gang, threads: Callable[[], int]
) -> NoReturn:
    """Compute what rank 0 orders, for ever. Raises ShardLost when a rank is lost."""
    forward = PagedModel(model)
    while True:
        *numbers, kept = gang.hear()
        use_threads(threads())
        layout = Layout(*numbers)
        cache.copy_pages(_copies(layout))
        batch = lay_out(layout, cache, range(len(layout.counts)))
        rows = torch.from_numpy(kept).to(cache.device)
        forward(batch.tokens, batch.positions, rows, batch.number)


def _numbers(layout: Layout) -> tuple[Ints, ...]:
    """In the order in which `Layout` takes them."""
    return (
        layout.copies,
        layout.starts,
        layout.counts,
        layout.sizes,
        layout.tokens,
        layout.tables,
    )


def _copies(layout: Layout) -> list[PageCopy]:
    sources, targets = layout.copies.reshape(2, -1).tolist()
    return [PageCopy(source, target) for source, target in zip(sources, targets, strict=True)]
