"""What the scheduler tells of a model to whoever decides on its shards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.events import Reported, Submitted
from cluster.messages import ShardRef, Submission
from cluster.reports import Prefilling, ShardCapacity, ShardReport
from cluster.scheduling import SchedulerBrain
from cluster.scheduling_config import SchedulingConfig, SlaClass, TenantConfig
from cluster.stats import ModelStats

SHARD = ShardRef("s0", "m", "s0", "1")
CAPACITY = ShardCapacity(block_size=16, total_pages=1000, max_num_seqs=4, max_model_len=4096)
P1 = SlaClass(name="P1", ttft_s=2.0, tpot_s=0.1)
CONFIG = SchedulingConfig(
    classes=(P1, SlaClass(name="P2")), max_queued=2, gather_max_s=0.0, short_first_s=0.0
)


def submission(name: str, sla: str = "P1", tenant: str = "t") -> Submission:
    return Submission(
        request_id=name,
        router="r",
        model="m",
        tenant=tenant,
        sla=sla,
        prompt_tokens=100,
        max_tokens=10,
        choices=1,
        page_hashes=(),
    )


def report(
    number: int, **events: tuple[str, ...] | tuple[int, ...] | bool | Prefilling
) -> ShardReport:
    return replace(ShardReport(SHARD, number, CAPACITY, free_pages=1000), **events)  # type: ignore[arg-type]


def brain(config: SchedulingConfig = CONFIG) -> SchedulerBrain:
    brain = SchedulerBrain(config, epoch=1)
    brain.handle(Reported(report(1, full=True)), 0.0)
    return brain


def test_a_model_that_nobody_asked_for_is_idle() -> None:
    stats = brain().demand(0.0)["m"]

    assert stats == ModelStats(shards=1)
    assert stats.idle


def test_who_waits_who_runs_and_who_found_no_room_is_counted() -> None:
    busy = brain()
    for number in range(8):
        busy.handle(Submitted(submission(str(number))), 1.0)
    stats = busy.demand(1.0)["m"]

    assert (stats.running, stats.granted, stats.queued, stats.asked_in_vain) == (4, 4, 2, 2)
    assert stats.utilization == 1.0
    assert not stats.idle


def test_delay_and_further_tokens_are_told_in_units_of_the_targets() -> None:
    late = brain()
    late.handle(Submitted(submission("a")), 1.0)
    late.handle(Reported(report(2, started=("a",))), 4.0)
    late.handle(Reported(report(3, ended=("a",), produced=(11,))), 6.0)
    stats = late.demand(6.0)["m"]

    assert stats.delay.p95 == pytest.approx(1.5, rel=0.06)  # 3 s of 2
    assert stats.tpot.p95 == pytest.approx(2.0, rel=0.06)  # 0.2 s of 0.1


def test_classes_without_targets_and_tenants_at_their_limits_are_left_out() -> None:
    limited = TenantConfig(name="limited", max_concurrency=1)
    late = brain(CONFIG.model_copy(update={"tenants": (limited,)}))
    late.handle(Submitted(submission("a", sla="P2")), 1.0)
    late.handle(Submitted(submission("b", tenant="limited")), 1.0)
    late.handle(Reported(report(2, started=("a", "b"))), 9.0)

    assert late.demand(9.0)["m"].delay.count == 0


def test_a_prompt_that_alone_takes_longer_than_its_target_is_left_out() -> None:
    slow = brain()
    slow.handle(Submitted(submission("a")), 0.0)
    ten_a_second = Prefilling(100, 10.0)
    slow.handle(Reported(report(2, started=("a",), prefilling=ten_a_second)), 10.0)
    slow.handle(Submitted(submission("b")), 10.0)
    slow.handle(Reported(report(3, started=("b",))), 20.0)

    assert slow.demand(20.0)["m"].delay.count == 1


def test_of_who_waited_for_a_first_shard_only_the_wait_for_its_turn_there_counts() -> None:
    woken = SchedulerBrain(CONFIG, epoch=1)
    woken.handle(Submitted(submission("a")), 0.0)
    woken.handle(Reported(report(1, full=True)), 20.0)
    woken.handle(Reported(report(2, started=("a",))), 21.0)

    assert woken.demand(21.0)["m"].delay.p95 == pytest.approx(0.5, rel=0.06)  # 1 s of 2


def test_a_shard_that_leaves_is_not_counted_but_what_it_runs_is() -> None:
    two = brain()
    other = replace(SHARD, shard="s1", actor="s1")
    two.handle(Reported(replace(report(1, full=True), shard=other)), 0.0)
    for number in range(4):
        two.handle(Submitted(submission(str(number))), 1.0)
    two.handle(Reported(report(2, leaving=True)), 2.0)
    stats = two.demand(2.0)["m"]

    assert (stats.shards, stats.running, stats.utilization) == (1, 4, 0.5)


def test_the_stats_of_the_scheduler_show_it() -> None:
    assert brain().stats().models["m"].shards == 1
