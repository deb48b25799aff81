"""What a step of a shard costs and what a shard holds: the model of a device, as parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from cluster.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StepCost:
    """Milliseconds of one forward pass; linear in what the step holds.

    step = fixed                    weights read, launches
         + prefill x tokens         products of prompt tokens
         + decode  x sequences      products of decoding sequences
         + context x context tokens KV read by decoding sequences
         + pair    x (token, context token) pairs of prompt attention
    """

    fixed_ms: float
    prefill_ms: float
    decode_ms: float
    context_ms: float
    pair_ms: float

    def step_s(self, prefill: int, pairs: float, decodes: int, context: int) -> float:
        return 1e-3 * (
            self.fixed_ms
            + self.prefill_ms * prefill
            + self.pair_ms * pairs
            + self.decode_ms * decodes
            + self.context_ms * context
        )


@dataclass(frozen=True, slots=True)
class Device:
    """A shard's speed and size; `kv_tokens` is what its pool of pages holds."""

    cost: StepCost
    kv_tokens: int
    max_num_seqs: int
    max_batch_tokens: int


DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        # Llama-3.1-8B in bfloat16 on one H100 SXM, from the data sheet (989 TFLOP/s dense, 3.35
        # TB/s, 80 GB) at half the FLOP/s in products, 0.4 in attention and 0.7 of the bandwidth:
        # 16.06 GB of weights, 16.06 GFLOP a token, 128 KiB of KV a token, and 4 x 32 layers x 4096
        # FLOP for each pair of tokens. The pool is what 90 % of the memory leaves beside weights.
        "h100": Device(StepCost(6.85, 0.0325, 0.0325, 5.6e-5, 1.3e-6), 412_000, 256, 1024),
        # SmolLM2-135M on two cores, from the step times in docs/performance.md.
        "cpu": Device(StepCost(58.5, 0.5, 0.86, 3.4e-3, 2.0e-5), 110_000, 128, 1024),
    }
)


def read_device(name: str) -> Device:
    """A device of `DEVICES`, or one in a JSON file: the fields of Device, `cost` an object.

    Raises ConfigError where the file lacks a field or has one that nobody knows.
    """
    if name in DEVICES:
        return DEVICES[name]
    fields = json.loads(Path(name).read_text(encoding="utf-8"))
    try:
        return Device(**{**fields, "cost": StepCost(**fields["cost"])})
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{name} does not describe a device: {error}", "device") from None
