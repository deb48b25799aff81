"""A shard on paper that is kept full trades tokens a second for the pace that chat is promised."""

from __future__ import annotations

from benchmarks.pareto import Shard
from cluster.simulate.costs import DEVICES


def test_a_tighter_pace_is_kept_and_costs_tokens() -> None:
    device = DEVICES["h100"]
    free = Shard(device, None).serve("none")
    tight = Shard(device, free.tpot_p99_s / 2).serve("half")
    assert tight.tpot_p99_s < 0.7 * free.tpot_p99_s
    assert 0.5 * free.tokens_s < tight.tokens_s < free.tokens_s


def test_the_same_shard_gives_the_same_point() -> None:
    device = DEVICES["h100"]
    assert Shard(device, 0.03).serve("") == Shard(device, 0.03).serve("")
