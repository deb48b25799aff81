"""A toy shard for planner tests, whose books are closed at the end of each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.toy_shard import MakeShard, ToyShard


@pytest.fixture
def make_shard() -> Iterator[MakeShard]:
    shards: list[ToyShard] = []

    def make(**knobs: Any) -> ToyShard:
        shards.append(ToyShard(**knobs))
        return shards[-1]

    yield make
    for shard in shards:
        shard.close()


@pytest.fixture
def roomy(make_shard: MakeShard) -> ToyShard:
    """With pages for fifty prompts, and steps that hold four."""
    return make_shard(pages=2000, seqs=64, budget=400, context=400)
