"""What a replayed trace asks when, and what the measure of autoscaling does not let pass."""

from __future__ import annotations

import sys
from asyncio import create_subprocess_exec
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from typing import Any

import psutil
import pytest

from benchmarks.autoscaling.findings import Bounds, Findings, Sample, Targets, WarmUp, find, turns
from benchmarks.autoscaling.replay import Phase, Scale, lasting, parse_phase, replayed
from benchmarks.autoscaling.report import lines
from benchmarks.metrics import Timeline
from cluster.simulate.traces import TraceRow
from tests.actors.living import until

TARGETS = Targets(ttft_s=2.0, tpot_s=0.2)
BOUNDS = Bounds(warm_up_s=20.0, turns=1)
SCALE = Scale(prompt=0.1, output=0.5, longest_prompt=50, longest_output=40)


def rows(*arrivals: float, prompt: int = 100, output: int = 20) -> list[TraceRow]:
    return [TraceRow(at_s, prompt, output, blocks=()) for at_s in arrivals]


def test_each_phase_replays_the_next_piece_of_the_trace_at_its_own_speed() -> None:
    phases = (Phase(10, 0.5), Phase(10, 2.0))
    trace = rows(99.0, 100.0, 104.0, 105.0, 107.0, 124.9, 125.0)
    asked = replayed(trace, 100.0, phases, SCALE, seed=0)

    assert [at_s for at_s, _ in asked] == pytest.approx([0.0, 8.0, 10.0, 11.0, 19.95])
    assert lasting(phases) == 20


@pytest.mark.parametrize(
    ("prompt", "output", "expected"),
    [(100, 20, (10, 10)), (1, 1, (1, 1)), (9000, 900, (50, 40))],
)
def test_lengths_are_scaled_within_their_bounds(
    prompt: int, output: int, expected: tuple[int, int]
) -> None:
    [(_, asked)] = replayed(
        rows(0.0, prompt=prompt, output=output), 0.0, [Phase(1, 1)], SCALE, seed=0
    )
    assert (len(asked.tokens), asked.output) == expected


def test_a_seed_draws_the_same_prompts_each_time() -> None:
    trace, phases = rows(0.0, 0.5), [Phase(1, 1)]
    once = replayed(trace, 0.0, phases, SCALE, seed=1)
    assert once == replayed(trace, 0.0, phases, SCALE, seed=1)
    assert once != replayed(trace, 0.0, phases, SCALE, seed=2)


@pytest.mark.parametrize("text", ["10", "10x0", "0x1", "ax1", "1x2x3"])
def test_what_is_no_phase_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - argparse asks for no more
        parse_phase(text)


def answered(at_s: float, ttft_s: float = 0.5, tpot_s: float = 0.01) -> tuple[float, Timeline]:
    first = at_s + ttft_s
    return at_s, Timeline(at_s, (first, first + 9 * tpot_s), tokens=10, asked=10)


def sampled(*counts: int) -> list[Sample]:
    """One a second."""
    return [Sample(float(at), shards, 0, 0, 0.5, None, None) for at, shards in enumerate(counts)]


def there(*pieces: tuple[int, int]) -> list[Sample]:
    """So many shards for so many seconds, in turn."""
    return sampled(*(shards for shards, seconds in pieces for _ in range(seconds)))


RISE_AND_FALL = there((1, 15), (2, 30), (1, 15))


def found(
    asked: Sequence[tuple[float, Timeline]], samples: Sequence[Sample] = RISE_AND_FALL
) -> Findings:
    return find(asked, samples, TARGETS)


def test_all_is_as_promised_where_shards_follow_and_nobody_is_late() -> None:
    findings = found([answered(float(at)) for at in range(60)])

    assert findings.faults(BOUNDS) == []
    assert lines(findings, TARGETS, BOUNDS)[-1] == "all as promised"
    assert [window.requests for window in findings.windows] == [10] * 6


def test_a_request_belongs_to_the_window_in_which_it_was_asked() -> None:
    findings = found([answered(9.5, ttft_s=30.0), answered(10.5, ttft_s=0.1)])

    assert [window.late for window in findings.windows] == [True, False]


@pytest.mark.parametrize("how", [{"ttft_s": 2.1}, {"tpot_s": 0.21}])
def test_a_p95_beyond_its_target_while_a_shard_is_on_its_way_is_a_warm_up(
    how: dict[str, Any],
) -> None:
    findings = found([answered(5.0, **how), answered(12.0, **how), answered(25.0)])

    assert findings.warm_ups == (WarmUp(from_s=0.0, late_until_s=20.0, served_at_s=15.0),)
    assert findings.faults(BOUNDS) == []


@pytest.mark.parametrize(
    "warm_up",
    [
        WarmUp(from_s=0.0, late_until_s=10.0, served_at_s=None),
        WarmUp(from_s=0.0, late_until_s=30.0, served_at_s=21.0),
        WarmUp(from_s=0.0, late_until_s=30.0, served_at_s=15.0),
    ],
    ids=["nothing came", "it came too late", "it came and did not help"],
)
def test_lateness_that_no_warm_up_explains_is_told(warm_up: WarmUp) -> None:
    assert not warm_up.keeps(20.0)


def test_a_late_window_without_a_new_shard_is_told() -> None:
    faults = found([answered(35.0, ttft_s=3.0)]).faults(BOUNDS)
    assert faults == ["p95 beyond its target from 30 s until 40 s"]


def test_requests_that_failed_or_fell_short_are_told() -> None:
    asked = [
        (1.0, Timeline(1.0, asked=10, error="429 busy")),
        (2.0, Timeline(2.0, (2.1, 2.2), tokens=9, asked=10)),
    ]
    assert found(asked).faults(BOUNDS) == ["failed: 429 busy", "failed: 9 of 10 tokens"]


@pytest.mark.parametrize(
    ("samples", "fault"),
    [
        (there((1, 10), (2, 10), (1, 10), (2, 10), (1, 10)), "the number of shards turned 3 times"),
        (there((1, 60)), "shards did not come and go"),
        (there((1, 10), (2, 50)), "shards did not come and go"),
        ([], "shards did not come and go"),
    ],
)
def test_shards_that_flap_or_do_not_follow_are_told(samples: list[Sample], fault: str) -> None:
    assert found([answered(1.0)], samples).faults(BOUNDS) == [fault]


@pytest.mark.parametrize(
    ("counts", "turned"),
    [([], 0), ([1, 1], 0), ([1, 3, 3, 2, 1], 1), ([2, 1, 1, 2], 1), ([1, 2, 1, 1, 2], 2)],
)
def test_a_turn_is_growth_that_becomes_decline_or_the_other_way_round(
    counts: list[int], turned: int
) -> None:
    assert turns(counts) == turned


async def test_a_process_is_stopped_for_its_share_and_runs_when_nobody_holds_it() -> None:
    child = await create_subprocess_exec(sys.executable, "-c", "input()", stdin=PIPE)
    command = ("-m", "benchmarks.autoscaling.share", str(child.pid), "0.01")
    holding = await create_subprocess_exec(sys.executable, *command)

    async def is_stopped() -> bool:
        return bool(psutil.Process(child.pid).status() == psutil.STATUS_STOPPED)

    await until(is_stopped)
    holding.terminate()
    assert await holding.wait() == 0
    await child.communicate(b"\n")
    assert child.returncode == 0
