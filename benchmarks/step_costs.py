"""Time the engine's steps, and fit the simulator's model of their cost to them.

    python -m benchmarks.step_costs --out device.json
    python -m cluster.simulate --device device.json ...

Steps of many compositions, in an order shuffled each round so that what else the machine does falls
on all, on a model of the default one's shape with random weights: time does not depend on them. The
fit is least squares on the medians, relative to the time of each step, with no term below zero.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import asdict, astuple, dataclass
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from actors.engine.families import check_family
from actors.engine.kv_cache import KVCache
from actors.engine.runner import ModelRunner
from cluster.messages import Request, Sampling, Stopping
from cluster.simulate.costs import Device, StepCost
from cluster.steps import Chunk, Sequence, StepPlan

BLOCK_SIZE = 16
VOCABULARY = 49152


@dataclass(frozen=True)
class Step:
    """`decodes` sequences of `context` tokens, and a prompt's `prefill` tokens after `start`."""

    decodes: int
    context: int
    prefill: int
    start: int

    @property
    def terms(self) -> tuple[float, ...]:
        """What the cost is linear in, in the order of StepCost's fields."""
        pairs = self.prefill * (self.start + (self.prefill + 1) / 2)
        return 1.0, self.prefill, self.decodes, self.decodes * self.context, pairs


STEPS = [
    *(Step(n, context, 0, 0) for n, context in product((1, 4, 16, 32, 64), (50, 200, 1000))),
    *(Step(0, 0, tokens, start) for tokens, start in product((32, 128, 512, 1024), (0, 1000))),
    *(Step(16, 200, tokens, 0) for tokens in (64, 256, 768)),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    times = measure(options.rounds)
    cost = fit(times)
    for step, took_ms in times.items():
        print(f"{step}: {took_ms:.1f} ms, fitted {np.dot(step.terms, astuple(cost)):.1f}")
    # The pool that a node of 24 GiB gives by default, and the default batching.
    device = Device(cost, kv_tokens=110_000, max_num_seqs=128, max_batch_tokens=1024)
    options.out.write_text(json.dumps(asdict(device), indent=1) + "\n")


def measure(rounds: int) -> dict[Step, float]:
    """Median milliseconds of each step."""
    model = smol_shape()
    pages = sum(-(-length // BLOCK_SIZE) for length in lengths(max(STEPS, key=tokens)))
    cache = KVCache(check_family(model), pages, BLOCK_SIZE, model.dtype, model.device)
    runner, shuffled = ModelRunner(model, cache), random.Random(0)
    taken: dict[Step, list[float]] = {step: [] for step in STEPS}
    for step in STEPS:
        runner.execute(plan(step))
    for _ in range(rounds):
        for step in shuffled.sample(STEPS, len(STEPS)):
            one = plan(step)
            started = perf_counter()
            runner.execute(one)
            taken[step].append(1000 * (perf_counter() - started))
    return {step: median(each) for step, each in taken.items()}


def smol_shape() -> LlamaForCausalLM:
    """SmolLM2-135M's shape."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16).eval().requires_grad_(requires_grad=False)


def plan(step: Step) -> StepPlan:
    """The step over pages of its own: the content of a page costs nothing to read."""
    chunks: list[Chunk] = []
    page = 0
    for length in lengths(step):
        prompt = tuple(position % VOCABULARY for position in range(length))
        request = Request("r", "m", "t", "P1", prompt, Sampling(temperature=0.0), Stopping(1))
        held = -(-length // BLOCK_SIZE)
        sequence = Sequence(request, 0, list(prompt), blocks=list(range(page, page + held)))
        count = 1 if len(chunks) < step.decodes else step.prefill
        sequence.computed = length - count
        chunks.append(Chunk(sequence, length - count, count, samples=True))
        page += held
    return StepPlan(tuple(chunks))


def lengths(step: Step) -> list[int]:
    """Of all its sequences."""
    return [step.context] * step.decodes + [step.start + step.prefill] * bool(step.prefill)


def tokens(step: Step) -> int:
    return sum(lengths(step))


def fit(times: dict[Step, float]) -> StepCost:
    """Drop the most negative term and fit again, until there is none."""
    took = np.array(list(times.values()))
    terms = np.array([step.terms for step in times]) / took[:, None]
    kept = list(range(terms.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(terms[:, kept], np.ones(len(took)), rcond=None)
        if found.min() >= 0:
            break
        del kept[int(found.argmin())]
    costs = np.zeros(terms.shape[1])
    costs[kept] = found
    return StepCost(*(float(f"{cost:.3g}") for cost in costs))


if __name__ == "__main__":
    main()
