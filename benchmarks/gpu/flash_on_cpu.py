"""FlashAttention 2 as torch's GPU builds have it, by its contract, for CPUs that lack it.

What is ours runs unchanged on top, up to the kernel's own arguments: they are checked as the kernel
checks them, and beyond that, what it is known to compute wrongly is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

PAGE_MULTIPLE = 256


@contextmanager
def flash_on_cpu() -> Iterator[list[int | None]]:
    """While it lasts, `torch.nn.attention.varlen` works on a CPU; what it gives fills up with the
    splits that were asked for, call by call."""
    splits: list[int | None] = []

    def kernel(*args: Any, **asked: Any) -> tuple[Tensor, ...]:
        splits.append(asked.get("num_splits"))
        return _forward(*args, **asked)

    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    library.impl("_flash_attention_forward", kernel, "CPU")
    try:
        yield splits
    finally:
        library._destroy()


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[Tensor, ...]:
    assert cum_seq_q is not None
    assert cum_seq_k is not None
    assert seqused_k is not None
    assert block_table is not None
    assert scale is not None
    assert (dropout_p, return_debug_mask, alibi_slopes) == (0.0, False, None)
    left, right = window_size_left or 0, window_size_right or 0
    sequences = len(cum_seq_q) - 1
    _check_tensors(query, key, value)
    _check_numbers(cum_seq_q, cum_seq_k, seqused_k, block_table, sequences)
    grouped = query.shape[1] > key.shape[2]
    if not (max_q == 1 and grouped and left < 0 and right < 0):
        assert num_splits == 1, "parts put together wrongly: pytorch issue 194167"
    if is_causal and max_q > 1:
        right = 0
    out = torch.empty_like(query)
    for i in range(sequences):
        rows = slice(int(cum_seq_q[i]), int(cum_seq_q[i + 1]))
        length = int(seqused_k[i])
        assert 0 < rows.stop - rows.start <= max_q
        assert 0 < length <= min(max_k, block_table.shape[1] * key.shape[1])
        pages = block_table[i, : -(-length // key.shape[1])].long()
        keys, values = (pool[pages].flatten(0, 1)[:length] for pool in (key, value))
        out[rows] = _attend(query[rows], keys, values, scale, left, right)
    nothing = torch.empty(0)
    return out, nothing, torch.zeros(2, dtype=torch.uint64), nothing, nothing


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    assert query.dtype in (torch.float16, torch.bfloat16)
    assert query.dtype == key.dtype == value.dtype
    assert all(tensor.stride(-1) == 1 for tensor in (query, key, value))
    assert key.shape == value.shape
    assert key.shape[1] % PAGE_MULTIPLE == 0
    assert key.shape[3] == query.shape[2] <= 256
    assert query.shape[2] % 8 == 0
    assert query.shape[1] % key.shape[2] == 0


def _check_numbers(
    cum_seq_q: Tensor, cum_seq_k: Tensor, seqused_k: Tensor, block_table: Tensor, sequences: int
) -> None:
    assert all(
        numbers.dtype == torch.int32 and numbers.is_contiguous()
        for numbers in (cum_seq_q, cum_seq_k, seqused_k)
    )
    assert cum_seq_k.shape == (sequences + 1,)
    assert seqused_k.shape == (sequences,)
    assert block_table.dtype == torch.int32
    assert block_table.stride(-1) == 1
    assert block_table.shape[0] == sequences


def _attend(
    query: Tensor, key: Tensor, value: Tensor, scale: float, left: int, right: int
) -> Tensor:
    """One sequence, its last query at its last key; -1: as far as there are keys."""
    group = query.shape[1] // key.shape[1]
    keys, values = (each.float().repeat_interleave(group, 1) for each in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.float(), keys) * scale
    places = torch.arange(len(query))[:, None] + len(key) - len(query)
    offsets = torch.arange(len(key)) - places
    hidden = torch.zeros_like(offsets, dtype=torch.bool)
    if left >= 0:
        hidden |= offsets < -left
    if right >= 0:
        hidden |= offsets > right
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values).to(query.dtype)
