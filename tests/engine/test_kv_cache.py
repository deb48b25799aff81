"""Pages as bytes: what is read of one cache and written to another is the same there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from actors.engine.kv_cache import KVCache, LayerShape, page_bytes

CPU = torch.device("cpu")
LAYERS = {0: LayerShape(2, 8, 8), 3: LayerShape(1, 8, 4)}
"""Two that differ, and keys that are longer than values."""
BLOCK = 4


def filled(dtype: torch.dtype, num_blocks: int = 6) -> KVCache:
    """A cache in which every slot holds something else."""
    cache = KVCache(LAYERS, num_blocks, BLOCK, dtype, CPU)
    slots = torch.arange(num_blocks * BLOCK)
    chance = torch.Generator().manual_seed(1)
    for layer, shape in LAYERS.items():
        key = torch.randn(len(slots), shape.kv_heads, shape.key_dim, generator=chance)
        value = torch.randn(len(slots), shape.kv_heads, shape.value_dim, generator=chance)
        cache.write(layer, slots, key.to(dtype), value.to(dtype))
    return cache


def gathered(cache: KVCache, layer: int, pages: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = cache.gather(layer, torch.tensor(pages), 1)
    return keys.clone(), values.clone()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_read_of_one_cache_reads_the_same_where_it_is_written(dtype: torch.dtype) -> None:
    source, target = filled(dtype), KVCache(LAYERS, 9, BLOCK, dtype, CPU)
    target.scatter_bytes([8, 0, 3], target.stage(source.read_pages([5, 1, 2])))
    for layer in LAYERS:
        there = gathered(target, layer, [8, 0, 3])
        here = gathered(source, layer, [5, 1, 2])
        assert all(torch.equal(one, other) for one, other in zip(there, here, strict=True))
        assert not any(rest.any() for rest in gathered(target, layer, [1, 2, 4, 5, 6, 7]))


def test_a_page_is_one_row_of_as_many_bytes_as_it_takes() -> None:
    cache = filled(torch.bfloat16)
    assert cache.page_bytes == page_bytes(LAYERS, BLOCK, torch.bfloat16)
    assert cache.read_pages([4, 2]).shape == (2, cache.page_bytes)
    assert cache.read_pages([]).shape == (0, cache.page_bytes)


def test_pages_are_written_from_memory_that_cannot_be() -> None:
    """As that of Ray's object store."""
    cache = filled(torch.float32)
    data = cache.read_pages([0])
    data.flags.writeable = False
    cache.scatter_bytes([1], cache.stage(data))
    assert np.array_equal(cache.read_pages([1]), data)


def test_data_of_another_size_is_refused_and_nothing_is_written() -> None:
    cache = filled(torch.float32)
    before = cache.read_pages([0, 1])
    with pytest.raises(ValueError, match="bytes for 2 pages"):
        cache.scatter_bytes([0, 1], cache.stage(before[:1]))
    with pytest.raises(ValueError, match="bytes for 2 pages"):
        cache.scatter_bytes([0, 1], cache.stage(before[:, 1:]))
    assert np.array_equal(cache.read_pages([0, 1]), before)
