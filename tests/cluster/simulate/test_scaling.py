"""A simulated cluster that follows its load: nobody is lost, and shards come late and go slowly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.autoscaling_config import AutoscalingConfig
from cluster.simulate.command import main
from cluster.simulate.costs import DEVICES
from cluster.simulate.experiment import Experiment
from cluster.simulate.scaling import ScaledRun, scaled_run
from cluster.simulate.traces import read_trace
from cluster.simulate.workload import Shape, offered_load

DATA = Path(__file__).parents[3] / "benchmarks" / "data"
TRACE = DATA / "mooncake_conversation.jsonl"
ROWS = read_trace(TRACE)[:500]
CONFIG = AutoscalingConfig(max_shards=4, settle_s=5.0, down_after_s=20.0)


def scaled(
    tide: tuple[float, ...], startup_s: float = 5.0, config: AutoscalingConfig = CONFIG
) -> ScaledRun:
    shape = Shape(page_tokens=128, copies=6, tide=tide)
    experiment = Experiment(ROWS, 1, DEVICES["h100"], shape, stopwatch=lambda: 0.0)
    return scaled_run(experiment, config, startup_s)


@pytest.fixture(scope="module")
def run() -> ScaledRun:
    return scaled((1.0, 0.1, 0.1, 0.1))


def test_shards_follow_the_load_up_and_down_and_every_request_is_served(run: ScaledRun) -> None:
    counts = [shards for _, shards, _ in run.changes]

    assert max(counts) > 1
    assert counts[-1] < max(counts)
    assert run.every.served == run.every.offered > 0


def test_who_comes_while_all_shards_sleep_wakes_them_and_is_served() -> None:
    sleeper = CONFIG.model_copy(update={"min_shards": 0, "idle_s": 10.0})
    run = scaled((1.0, 0.0, 0.0, 1.0), startup_s=40.0, config=sleeper)
    asleep = [place for place, (_, shards, _) in enumerate(run.changes) if not shards]

    assert min(moment.serving for moment in run.moments) == 0
    assert run.changes[asleep[0] + 1][1] > 0
    assert run.every.served == run.every.offered > 0


def test_a_shard_serves_only_after_it_has_started(run: ScaledRun) -> None:
    at_s = run.changes[0][0]
    slow = scaled((1.0,), startup_s=1000.0)

    assert max(moment.serving for moment in slow.moments) == 1
    assert at_s < run.moments[1].at_s
    assert run.moments[0].serving >= 1


def test_shards_cost_from_when_they_are_asked_for(run: ScaledRun) -> None:
    lasted_s = len(run.moments) * 30.0

    assert lasted_s / 2 < run.shard_s < 4 * lasted_s


def test_a_run_repeats_itself(run: ScaledRun) -> None:
    assert scaled((1.0, 0.1, 0.1, 0.1)) == run


def test_a_tide_takes_whole_sessions_part_by_part() -> None:
    load = offered_load(ROWS, Shape(tide=(0.0, 1.0)))
    every = offered_load(ROWS, Shape())
    half_s = (ROWS[-1].arrival_s + ROWS[-1].blur_s) / 2

    assert load == tuple(one for one in every if one.arrival_s >= half_s)


def test_the_command_tells_what_was_decided_and_writes_the_course(tmp_path: Path) -> None:
    file = tmp_path / "scaled.json"
    options = ["--shards", "1", "--autoscale", "1", "3", "--speed", "20", "--rows", "300"]
    told = main(["--trace", str(TRACE), *options, "--json", str(file)], lambda: 0.0)
    [course] = json.loads(file.read_text())["scaled"]

    assert "shard hours" in told
    assert course["moments"][0]["wanted"] >= 1
