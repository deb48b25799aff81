"""What the machine allows: how fast memory streams and products run here, and what a step needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.instructions import own_products

STREAM_BYTES, GPU_STREAM_BYTES = 2**30, 2**32
"""Well beyond any cache, and on a GPU enough to make a launch nothing beside it."""

PRODUCTS = ((512, 1536, 576), (2048, 2048, 2048), (512, 4096, 4096))
GPU_PRODUCTS = ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 4096, 14_336))
TRIES = 7

CPU = torch.device("cpu")


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


def measure_limits(
    dtype: torch.dtype, device: torch.device = CPU, integers: bool = False
) -> Limits:
    """Takes about two seconds and 1 GiB, on a GPU 8. `integers`: of eight bits are multiplied."""
    products = GPU_PRODUCTS if device.type == "cuda" else PRODUCTS
    rates = [_products(dtype, device, *shape) for shape in products]
    if device.type == "cpu" and dtype == torch.bfloat16:
        rates.append(own_products(integers))
    return Limits(_streaming(device), max(rates))


def needs_of(model: PreTrainedModel, kv_bytes: int) -> Needs:
    """Of a model as transformers loaded it, whose weights nothing has replaced yet."""
    head, table = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    weights = {id(weight): weight for weight in model.parameters()}
    body = [w for w in weights.values() if w is not head and w is not table]
    read = [*body, head]
    return Needs(_count(body), head.numel(), sum(w.nbytes for w in read), kv_bytes)


def _count(weights: list[Tensor]) -> int:
    return sum(weight.numel() for weight in weights)


def _streaming(device: torch.device) -> float:
    """Bytes a second, by summing a tensor: it reads all and writes nothing. On a GPU also by
    copying it, which comes nearer to what its memory can do."""
    size = GPU_STREAM_BYTES if device.type == "cuda" else STREAM_BYTES
    values = torch.ones(size // 4, device=device)
    rate = size / _best(values.sum, device)
    if device.type != "cuda":
        return rate
    target = torch.empty_like(values)
    return max(rate, 2 * size / _best(lambda: target.copy_(values), device))


def _products(
    dtype: torch.dtype, device: torch.device, rows: int, inner: int, columns: int
) -> float:
    """FLOPs a second, of random numbers: of equal ones a GPU takes less power, and is faster."""
    left = torch.randn(rows, inner, device=device).to(dtype)
    right = torch.randn(inner, columns, device=device).to(dtype)
    return 2 * rows * inner * columns / _best(lambda: left @ right, device)


def _best(act: Callable[[], object], device: torch.device) -> float:
    """Seconds of one, the least of several tries."""
    act()
    return min(_timed(act, device) for _ in range(TRIES))


def _timed(act: Callable[[], object], device: torch.device) -> float:
    """On a GPU until it is done there."""
    _wait(device)
    began = time.perf_counter()
    act()
    _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
