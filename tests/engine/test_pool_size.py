"""The pool's size, and the context that goes with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from actors.engine.pool_size import (
    GIB,
    accelerators,
    free_bytes,
    host_slots,
    model_len,
    pool_blocks,
    within_pool,
)
from cluster.config import CacheConfig
from cluster.errors import ConfigError

MIB = 2**20


def test_the_number_of_blocks_is_taken_as_asked() -> None:
    assert pool_blocks(CacheConfig(num_blocks=77), MIB, 0, "cpu", most=10) == 77


def test_memory_is_divided_into_pages() -> None:
    assert pool_blocks(CacheConfig(memory_gib=0.5), MIB, 0, "cpu", most=10**6) == 512


@pytest.mark.parametrize(("kind", "blocks"), [("cpu", 102), ("cuda", 921)])
def test_by_default_a_fraction_of_the_free_memory_is_taken(kind: str, blocks: int) -> None:
    assert pool_blocks(CacheConfig(), MIB, GIB, kind, most=10**6) == blocks


def test_the_pool_is_never_larger_than_all_sequences_could_fill() -> None:
    assert pool_blocks(CacheConfig(memory_gib=1.0), MIB, 0, "cpu", most=10) == 10


def test_memory_for_less_than_two_pages_is_refused_by_its_field() -> None:
    with pytest.raises(ConfigError) as refusal:
        pool_blocks(CacheConfig(memory_gib=0.0015), MIB, 0, "cpu", most=10)
    assert refusal.value.path == "cache.memory_gib"


def test_host_memory_holds_as_many_pages_as_asked_for() -> None:
    assert host_slots(CacheConfig(host_gib=0.5), MIB, 0, most=0) == 512
    assert host_slots(CacheConfig(host_gib=0), MIB, GIB, most=10) == 0


@pytest.mark.parametrize(("most", "slots"), [(100, 100), (300, 256), (0, 0)])
def test_by_default_it_holds_the_pool_within_a_quarter_of_what_is_free(
    most: int, slots: int
) -> None:
    assert host_slots(CacheConfig(), MIB, GIB, most) == slots


def test_the_shards_of_a_node_share_that_quarter() -> None:
    slots = host_slots(CacheConfig(), MIB, 8 * GIB, most=10**6, sharers=8)
    assert slots * 8 * MIB == 2 * GIB


def test_accelerators_are_whole_gpus_and_slices_of_all_the_node(tmp_path: Path) -> None:
    for folder in ("gpus/0000:01:00.0", "gpus/0000:02:00.0", "gpus/0000:03:00.0"):
        (tmp_path / folder).mkdir(parents=True)
    assert accelerators(tmp_path) == 3
    for folder in ("gpu0/mig/gi1", "gpu0/mig/gi2", "gpu1/mig"):
        (tmp_path / "capabilities" / folder).mkdir(parents=True)
    assert accelerators(tmp_path) == 4


def test_where_the_driver_says_nothing_one_shard_has_all(tmp_path: Path) -> None:
    assert accelerators(tmp_path) == max(1, torch.cuda.device_count())


def test_without_prefix_caching_nothing_could_come_back() -> None:
    assert host_slots(CacheConfig(prefix_caching=False), MIB, GIB, most=10) == 0


def test_host_memory_for_less_than_a_page_is_refused_by_its_field() -> None:
    with pytest.raises(ConfigError) as refusal:
        host_slots(CacheConfig(host_gib=0.0005), MIB, GIB, most=10)
    assert refusal.value.path == "cache.host_gib"


def test_free_memory_is_known() -> None:
    assert free_bytes(torch.device("cpu")) > 0


def test_the_context_is_the_model_s_own_unless_asked_for() -> None:
    assert model_len(None, 8192, None) == 8192
    assert model_len(100, 8192, None) == 100


def test_the_context_ends_where_the_model_stops_being_exact() -> None:
    assert model_len(None, 8192, 4096) == 4096


def test_a_model_without_a_length_needs_one() -> None:
    with pytest.raises(ConfigError, match="give one"):
        model_len(None, None, None)


def test_a_small_pool_shortens_a_context_that_nobody_asked_for() -> None:
    assert within_pool(None, 8192, 1000) == 1000


def test_a_context_asked_for_must_fit_the_pool() -> None:
    with pytest.raises(ConfigError, match="does not fit the KV pool of 1000"):
        within_pool(8192, 8192, 1000)
