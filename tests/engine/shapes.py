"""What the kernels' tests say of an attention layer and its pages."""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    block_size: int
