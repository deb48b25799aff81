"""Requests through one engine, and when each of their tokens came."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from actors.engine.engine import Engine
from benchmarks.asking import GREEDY, assignment
from cluster.messages import Sampling

Prompt = Sequence[int]


@dataclass(frozen=True)
class Run:
    """Tokens of each request and the moments they came, seconds of a clock that read `began` when
    the first was asked for; `device_s`: of forward passes, by the device's clock, if it has one."""

    began: float
    tokens: list[list[int]]
    arrivals: list[list[float]]
    device_s: float | None = None


@dataclass(frozen=True)
class Rates:
    """Tokens a second: of prompts, until the last request has its first token; of outputs, while
    all requests at once are getting theirs, None where they never were."""

    prefill: float
    decode: float | None


def rates(run: Run, prompt_tokens: int) -> Rates:
    """Of requests with prompts of `prompt_tokens` each. The same for whoever served them."""
    begin = max(times[0] for times in run.arrivals)
    end = min(times[-1] for times in run.arrivals)
    between = sum(begin < moment <= end for times in run.arrivals for moment in times)
    return Rates(
        len(run.arrivals) * prompt_tokens / (begin - run.began),
        between / (end - begin) if end > begin else None,
    )


def prompts(count: int, length: int, vocab: int, seed: int) -> list[list[int]]:
    source = random.Random(seed)
    return [source.choices(range(vocab), k=length) for _ in range(count)]


def serve(
    engine: Engine,
    asked: Sequence[Prompt],
    output: int,
    sampling: Sampling = GREEDY,
    emitted: Sequence[Prompt] = (),
) -> Run:
    """All at once, `output` tokens each, whatever they are; of those, what another engine had
    `emitted` of each is not given again."""
    before, began = engine.stats().device_s, perf_counter()
    tokens: list[list[int]] = [[] for _ in asked]
    arrivals: list[list[float]] = [[] for _ in asked]
    for index, prompt in enumerate(asked):
        known = tuple(emitted[index]) if emitted else ()
        engine.admit(assignment(str(index), prompt, output, sampling, known))
    while engine.has_work:
        deltas = engine.step()
        now = perf_counter()
        for delta in deltas:
            tokens[int(delta.request_id)] += delta.tokens
            arrivals[int(delta.request_id)] += [now] * len(delta.tokens)
    return Run(began, tokens, arrivals, engine.stats().device_s - before)
