"""A piece of a trace as prompts in time: its arrivals at a stated speed, its lengths scaled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.workloads import Prompt
from cluster.simulate.traces import TraceRow

TOKENS = range(10, 200)
"""Ordinary ones of the tiny tokenizer."""


@dataclass(frozen=True, slots=True)
class Phase:
    """So many seconds in which the trace runs at `speed`, 1 being its own."""

    seconds: float
    speed: float


@dataclass(frozen=True, slots=True)
class Scale:
    """What lengths are multiplied by, and the longest that they may become, in tokens."""

    prompt: float
    output: float
    longest_prompt: int
    longest_output: int


def parse_phase(text: str) -> Phase:
    """Of `SECONDSxSPEED`. Raises ValueError for anything else, and for what is not above 0."""
    seconds, speed = map(float, text.split("x"))
    if min(seconds, speed) <= 0:
        raise ValueError("seconds and speed must be above 0")
    return Phase(seconds, speed)


def replayed(
    rows: Iterable[TraceRow], begin_s: float, phases: Sequence[Phase], scale: Scale, seed: int
) -> list[tuple[float, Prompt]]:
    """Seconds from the start, and what is asked then: the rows from `begin_s` on, as far as the
    phases reach. The trace knows no words: each prompt is random tokens, none shares a prefix."""
    chance = Random(seed)
    return [
        (at_s, _prompt(row, scale, chance))
        for row in rows
        if (at_s := _at(row.arrival_s - begin_s, phases)) is not None
    ]


def _at(trace_s: float, phases: Sequence[Phase]) -> float | None:
    """When a moment of the trace comes about, in seconds from the start; None where it does not."""
    began_s = 0.0
    for phase in phases:
        covered_s = phase.seconds * phase.speed
        if 0.0 <= trace_s < covered_s:
            return began_s + trace_s / phase.speed
        trace_s -= covered_s
        began_s += phase.seconds
    return None


def _prompt(row: TraceRow, scale: Scale, chance: Random) -> Prompt:
    prompt = _scaled(row.prompt_tokens, scale.prompt, scale.longest_prompt)
    output = _scaled(row.output_tokens, scale.output, scale.longest_output)
    return Prompt(tuple(chance.choices(TOKENS, k=prompt)), "", output)


def _scaled(tokens: int, factor: float, longest: int) -> int:
    return min(max(round(tokens * factor), 1), longest)


def lasting(phases: Iterable[Phase]) -> float:
    return sum(phase.seconds for phase in phases)
