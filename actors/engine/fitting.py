"""Fits a model to a device: proves that it can be served, and makes the pages there is room for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from actors.engine.exactness import prove_exact
from actors.engine.families import check_family, longest_exact
from actors.engine.gang import Gang
from actors.engine.kv_cache import InPlace, KVCache, LayerShape, page_bytes, readable_in_place
from actors.engine.loader import dtype_name
from actors.engine.pool_size import (
    accelerators,
    free_bytes,
    host_slots,
    model_len,
    pool_blocks,
    within_pool,
)
from actors.engine.split import own_heads
from cluster.config import ModelConfig
from cluster.errors import ConfigError
from cluster.reports import ShardCapacity


@dataclass(frozen=True, slots=True)
class Fitted:
    """A model's pages on one device, what they hold, and how many more host memory keeps."""

    layers: Mapping[int, LayerShape]
    cache: KVCache
    capacity: ShardCapacity
    host_slots: int


def fit(loaded: PreTrainedModel, model: ModelConfig, gang: Gang | None = None) -> Fitted:
    """Prove that `loaded` can be served, and make the pages for it; in a gang, all ranks at once.

    As many as fit the rank with the least room. Raises UnsupportedModel for a family that cannot be
    served exactly, ConfigError for lengths and sizes that do not go together.
    """
    in_place = _in_place(loaded, model)
    layers = check_family(loaded)
    if gang is not None:
        layers = own_heads(loaded, layers, gang)
    prove_exact(loaded, layers, in_place)
    block_size, seats = model.cache.block_size, model.steps.places
    longest = _longest(loaded, model.max_model_len)
    blocks = pool_blocks(
        model.cache,
        page_bytes(layers, block_size, loaded.dtype),
        free_bytes(loaded.device),
        loaded.device.type,
        most=seats * -(-longest // block_size),
    )
    blocks = blocks if gang is None else gang.least(blocks)
    longest = within_pool(model.max_model_len, longest, blocks * block_size)
    cache = KVCache(layers, blocks, block_size, loaded.dtype, loaded.device, in_place)
    slots = host_slots(
        model.cache,
        cache.page_bytes,
        free_bytes(torch.device("cpu")),
        most=blocks if gang is None and loaded.device.type == "cuda" else 0,
        sharers=accelerators(),
    )
    return Fitted(layers, cache, ShardCapacity(block_size, blocks, seats, longest), slots)


def _in_place(loaded: PreTrainedModel, model: ModelConfig) -> InPlace | None:
    """Deterministic is a row that reads alone, whatever its step holds; else what is fastest."""
    if not model.deterministic:
        return None
    if not readable_in_place(loaded.device, loaded.dtype):
        raise ConfigError(
            "deterministic needs float32 or bfloat16 on a CPU,"
            f" not {dtype_name(loaded.dtype)} on {loaded.device.type}",
            "models.deterministic",
        )
    return InPlace.ALL


def _longest(loaded: PreTrainedModel, wanted: int | None) -> int:
    positions = getattr(loaded.config.get_text_config(), "max_position_embeddings", None)
    return model_len(wanted, positions, longest_exact(loaded))
