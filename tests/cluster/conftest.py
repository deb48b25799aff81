"""A toy shard for planner tests, whose books are closed at the end of each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.toy_shard import MAX_MODEL_LEN, MakeShard, ToyShard


@pytest.fixture
def make_shard() -> Iterator[MakeShard]:
    shards: list[ToyShard] = []

    def make(
        pages: int = 64,
        seqs: int = 8,
        budget: int = 64,
        prefix_caching: bool = True,
        context: int = MAX_MODEL_LEN,
    ) -> ToyShard:
        shards.append(ToyShard(pages, seqs, budget, prefix_caching, context))
        return shards[-1]

    yield make
    for shard in shards:
        shard.close()
