"""What the machine allows: how fast memory streams and products run here, and what a step needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

STREAM_BYTES = 2**30
"""Well beyond any cache."""

PRODUCTS = ((512, 1536, 576), (2048, 2048, 2048), (512, 4096, 4096))
TRIES = 7


@dataclass(frozen=True, slots=True)
class Limits:
    """Measured on this machine with the threads torch has: the best of several tries."""

    bytes_s: float
    flop_s: float


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model cannot do without: bytes of weights a step reads, and FLOPs of its products.

    `body` weights multiply every token, `head` weights only those that are sampled after.
    """

    body_weights: int
    head_weights: int
    weight_bytes: int
    kv_bytes: int

    def floor_s(
        self, limits: Limits, tokens: int, sampled: int, context: int
    ) -> tuple[float, float]:
        """Seconds by memory and by FLOPs; a step takes no less than the larger.

        `context` is how many tokens' keys and values are read, over all sequences. Attention's own
        products are left out, which keeps this a lower bound.
        """
        read = self.weight_bytes + context * self.kv_bytes
        flop = 2 * (self.body_weights * tokens + self.head_weights * sampled)
        return read / limits.bytes_s, flop / limits.flop_s


def measure_limits(dtype: torch.dtype) -> Limits:
    """Takes about two seconds and 1 GiB."""
    return Limits(_streaming(), max(_products(dtype, *shape) for shape in PRODUCTS))


def needs_of(model: PreTrainedModel, kv_bytes: int) -> Needs:
    """Of a model as transformers loaded it, whose weights nothing has replaced yet."""
    head, table = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    weights = {id(weight): weight for weight in model.parameters()}
    body = [w for w in weights.values() if w is not head and w is not table]
    read = [*body, head]
    return Needs(_count(body), head.numel(), sum(w.nbytes for w in read), kv_bytes)


def _count(weights: list[Tensor]) -> int:
    return sum(weight.numel() for weight in weights)


def _streaming() -> float:
    """Bytes a second, by summing a tensor: it reads all and writes nothing."""
    values = torch.ones(STREAM_BYTES // 4)
    return STREAM_BYTES / _best(values.sum)


def _products(dtype: torch.dtype, rows: int, inner: int, columns: int) -> float:
    left, right = torch.ones(rows, inner, dtype=dtype), torch.ones(inner, columns, dtype=dtype)
    return 2 * rows * inner * columns / _best(lambda: left @ right)


def _best(act: Callable[[], object]) -> float:
    act()
    times = []
    for _ in range(TRIES):
        began = time.perf_counter()
        act()
        times.append(time.perf_counter() - began)
    return min(times)
