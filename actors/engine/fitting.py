"""Fits a model to a device: proves that it can be served, and makes the pages there is room for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from actors.engine.exactness import prove_exact
from actors.engine.families import check_family, longest_exact
from actors.engine.gang import Gang
from actors.engine.head import widen_head
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
from actors.engine.rows import prove_rows
from actors.engine.split import own_heads
from actors.engine.varlen import AMPERE, PAGE_MULTIPLE, usable_on
from cluster.batching_config import BatchingConfig
from cluster.config import ModelConfig
from cluster.errors import ConfigError
from cluster.reports import ShardCapacity

logger = logging.getLogger(__name__)

GUESSES = 4
"""Tokens guessed a step of a stream unless configured, on CPUs (docs/performance.md)."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A model's pages on one device, what they hold, how many more host memory keeps, and what a
    step over them may compute."""

    layers: Mapping[int, LayerShape]
    cache: KVCache
    capacity: ShardCapacity
    host_slots: int
    batching: BatchingConfig


def fit(loaded: PreTrainedModel, model: ModelConfig, gang: Gang | None = None) -> Fitted:
    """Prove that `loaded` can be served, and make the pages for it; in a gang, all ranks at once.

    As many as fit the rank with the least room. Raises UnsupportedModel for a family that cannot be
    served exactly, ConfigError for lengths and sizes that do not go together.
    """
    layers = check_family(loaded)
    if gang is not None:
        layers = own_heads(loaded, layers, gang)
    in_place = _in_place(loaded, layers, model)
    block_size, seats = model.cache.block_size, model.steps.places
    longest = _longest(loaded, model.max_model_len)
    pages = (block_size, longest) if in_place is not None and in_place.ragged else ()
    prove_exact(loaded, layers, in_place, *pages)
    if in_place is InPlace.ALL:
        widen_head(loaded)
        prove_rows(loaded)
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
    capacity = ShardCapacity(block_size, blocks, seats, longest)
    return Fitted(layers, cache, capacity, slots, _batching(loaded, model))


def _batching(loaded: PreTrainedModel, model: ModelConfig) -> BatchingConfig:
    """On GPUs nothing is guessed unasked: a step of decodes alone is faster there."""
    if model.steps.prompt_lookup_tokens is not None:
        return model.steps
    guesses = GUESSES if loaded.device.type == "cpu" else 0
    return model.steps.model_copy(update={"prompt_lookup_tokens": guesses})


def _in_place(
    loaded: PreTrainedModel, layers: Mapping[int, LayerShape], model: ModelConfig
) -> InPlace | None:
    """Deterministic is a row that reads alone, whatever its step holds; else what is fastest."""
    block_size = model.cache.block_size
    if usable_on(loaded.device, loaded.dtype, block_size, layers.values()):
        return InPlace.RAGGED_ROWS if model.deterministic else InPlace.RAGGED
    if loaded.device.type == "cuda":
        logger.warning(
            "attention gathers pages, which is slower: to read them where they lie takes float16 or"
            " bfloat16, cache.block_size %d and compute capability %d.%d; here %s, %d",
            *(PAGE_MULTIPLE, *AMPERE, dtype_name(loaded.dtype), block_size),
        )
    if not model.deterministic:
        return None
    if not readable_in_place(loaded.device, loaded.dtype):
        raise ConfigError(
            "deterministic needs float32 or bfloat16 on a CPU, or float16 or bfloat16 and"
            f" cache.block_size {PAGE_MULTIPLE} on a GPU,"
            f" not {dtype_name(loaded.dtype)} on {loaded.device.type} with pages of {block_size}",
            "models.deterministic",
        )
    return InPlace.ALL


def _longest(loaded: PreTrainedModel, wanted: int | None) -> int:
    positions = getattr(loaded.config.get_text_config(), "max_position_embeddings", None)
    return model_len(wanted, positions, longest_exact(loaded))
