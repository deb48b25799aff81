"""What a run of chaos draws and what it tells, without running it."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from benchmarks.chaos.faults import FAULTS, draw
from benchmarks.chaos.report import Blow, Report
from benchmarks.mixture import Answer, Choice, verdict

SHARD = next(fault for fault in FAULTS if fault.name == "killed shard")
CUT = next(fault for fault in FAULTS if fault.name == "cut shard")


def test_a_seed_draws_the_same_faults_each_time_and_as_many_deaths_as_asked_for() -> None:
    drawn = draw(50, Random(3))
    assert drawn == draw(50, Random(3)) != draw(50, Random(4))
    assert sum(fault.deadly for fault in drawn) == 50
    assert {fault.name for fault in drawn} == {fault.name for fault in FAULTS}


def stream(*arrivals: float) -> Answer:
    return Answer(arrivals=list(arrivals))


def test_pauses_are_those_around_a_fault_and_the_longest_of_who_moved() -> None:
    moved = stream(0.0, 0.1, 0.9, 1.0)
    unconcerned = stream(0.0, 0.5, 0.6)
    report = Report(
        blows=[Blow(SHARD, 0.2), Blow(CUT, 5.0)], streams=[moved, unconcerned], moved=[moved]
    )
    told = "\n".join(report.lines())
    assert "silence of the 1 streams that moved: median 0.80 s, longest 0.80 s, of 1" in told
    assert "pause of any stream over a killed shard: median 0.65 s, longest 0.80 s, of 2" in told
    assert "pause of any stream over a cut shard: none" in told
    assert report.kills == 1


@pytest.mark.parametrize(
    ("left", "clean"),
    [
        ({}, True),
        ({"mended": Counter(unowned=1)}, True),
        ({"verdicts": Counter(right=1, lost=1)}, False),
        ({"leaked_pages": 1}, False),
        ({"leaked_leases": 1}, False),
        ({"broken": 1}, False),
        ({"mended_after": Counter(unheld=1)}, False),
    ],
)
def test_whatever_is_wrong_or_left_behind_is_not_clean(left: dict[str, Any], clean: bool) -> None:
    assert Report(**{"verdicts": Counter(right=1), **left}).is_clean == clean


def answered(text: str, tokens: int) -> Answer:
    return Answer(choices={0: Choice(text, "stop")}, prompt_tokens=3, completion_tokens=tokens)


@pytest.mark.parametrize(
    ("text", "tokens", "found"),
    [
        ("one fish", 2, "right"),
        ("one", 2, "lost"),
        ("one fish fish", 2, "repeated"),
        ("two fish", 2, "wrong"),
        ("one fish", 1, "lost"),
        ("one fish", 3, "repeated"),
    ],
)
def test_an_answer_is_judged_by_the_undisturbed_one(text: str, tokens: int, found: str) -> None:
    assert verdict(answered(text, tokens), answered("one fish", 2)) == found
