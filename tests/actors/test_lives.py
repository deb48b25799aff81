"""What a life has to leave with, on paper."""

from __future__ import annotations

from actors.lives import Leave, Life, leave_of
from cluster.messages import ShardRef

LEAVE = Leave(drain_s=30.0, hand_over_s=5.0)


def life(model: str, loaded: bool = True) -> Life:
    return Life(None, {}, ShardRef(f"{model}/shard-0", model, "actor", "life"), loaded=loaded)


SCHEDULER = Life(None, {}, loaded=True)


def test_a_shard_waits_for_others_of_its_model_that_can_come_for_its_pages() -> None:
    assert leave_of(life("m"), [SCHEDULER, life("m")], LEAVE) == LEAVE


def test_the_only_shard_of_its_model_waits_for_nobody_who_could_come() -> None:
    others = [SCHEDULER, life("other"), life("m", loaded=False)]
    assert leave_of(life("m"), others, LEAVE) == Leave(drain_s=30.0)
