"""A whole cluster on paper: what it conserves, and that it repeats itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cluster.scheduling_config import SchedulingConfig
from cluster.simulate.costs import DEVICES
from cluster.simulate.experiment import POLICIES, Experiment
from cluster.simulate.shards import SimulatedShard
from cluster.simulate.traces import TraceRow, read_trace
from cluster.simulate.workload import Shape, offered_load

DATA = Path(__file__).parents[3] / "benchmarks" / "data"
ROWS = read_trace(DATA / "mooncake_conversation.jsonl")[:400]


def experiment(speed: float = 6.0, seed: int = 0, **changes: object) -> Experiment:
    shape = Shape(seed=seed, speed=speed, page_tokens=128)
    base = Experiment(ROWS, 2, DEVICES["h100"], shape, stopwatch=lambda: 0.0)
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_ends_once_under_every_policy(policy: str) -> None:
    figures = experiment().run(policy)  # and checks the books of the shards

    assert figures.every.offered == 400
    assert figures.every.served + figures.every.refused == 400
    assert sum(one.offered for one in figures.classes.values()) == 400


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_repeats_itself(policy: str) -> None:
    assert experiment().run(policy) == experiment().run(policy)


def test_another_seed_is_another_run() -> None:
    assert experiment(seed=1).run("ours") != experiment(seed=2).run("ours")


def test_a_refused_request_counts_as_missed() -> None:
    scheduling = SchedulingConfig(max_queued=0)
    figures = experiment(speed=60.0, scheduling=scheduling).run("ours")

    assert figures.every.refused > 0
    assert figures.every.met <= figures.every.served == 400 - figures.every.refused
    # P2 promises nothing but to be served: what it misses is what was refused.
    assert figures.classes["P2"].met == figures.classes["P2"].served


@pytest.mark.parametrize("policy", POLICIES)
def test_what_no_shard_can_hold_is_refused(policy: str) -> None:
    rows = (TraceRow(0.0, 4_000_000, 10, ()),)
    figures = experiment(rows=rows).run(policy)

    assert figures.every.refused == 1


def test_requests_still_open_at_the_end_of_time_count_as_missed() -> None:
    slow = experiment(speed=1000.0)
    figures = replace(slow, timing=replace(slow.timing, drain_s=1.0)).run("least_loaded")

    assert 0 < figures.every.served < 400
    assert figures.every.refused == 0
    assert figures.every.met <= figures.every.served


def test_a_policy_that_sees_prefixes_finds_more_of_them_than_one_that_does_not() -> None:
    hit = {policy: experiment().run(policy).hit_rate for policy in ("prefix_only", "round_robin")}

    assert hit["prefix_only"] > hit["round_robin"]


def test_a_thousand_shards_serve_a_load_that_one_could() -> None:
    figures = experiment(speed=1.0, shards=1000, rows=ROWS[:30]).run("ours")

    assert figures.every.served == 30
    assert figures.every.ttft_s[0] < 1.0


def test_a_shard_reports_what_its_requests_produced() -> None:
    shard = SimulatedShard("s", DEVICES["cpu"], 128)
    [asked] = offered_load([TraceRow(0.0, 256, 5, (1,))], Shape())
    shard.engine.admit(asked)
    while shard.engine.begin(0.0):
        shard.enter(shard.engine.finish())
    report = shard.report(1.0)
    assert (report.ended, report.produced) == ((asked.submission.request_id,), (5,))
    assert shard.report(2.0).produced == ()
