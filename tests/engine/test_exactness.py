"""Greedy output in float32 is transformers' own, token for token, whatever it was served with."""

from __future__ import annotations

import random

import pytest

from tests.engine.driving import engine_of, random_prompt, request, run, tokens_of
from tests.engine.families import FAMILIES, greedy

every_family = pytest.mark.parametrize("family", FAMILIES)


@every_family
def test_the_reference_output_varies(family: str) -> None:
    prompt = random_prompt(random.Random(0), 20)
    assert len(set(greedy(family, prompt, 16))) > 6


@every_family
def test_requests_of_mixed_lengths_that_arrive_at_random_times(family: str) -> None:
    source = random.Random(1)
    prompts = {f"r{i}": random_prompt(source, source.choice([1, 2, 7, 19, 40])) for i in range(7)}
    lengths = {name: source.randrange(1, 20) for name in prompts}
    engine = engine_of(family)
    output = run(engine, [request(n, p, lengths[n]) for n, p in prompts.items()], source)
    for name, prompt in prompts.items():
        assert tokens_of(output, name) == greedy(family, prompt, lengths[name])


@every_family
def test_a_prompt_computed_in_small_chunks_beside_decodes(family: str) -> None:
    source = random.Random(2)
    prompts = {"long": random_prompt(source, 50), "short": random_prompt(source, 3)}
    engine = engine_of(family, max_batch_tokens=7)
    output = run(engine, [request(n, p) for n, p in prompts.items()])
    for name, prompt in prompts.items():
        assert tokens_of(output, name) == greedy(family, prompt, 12)


@every_family
def test_a_shared_prefix_is_reused(family: str) -> None:
    source = random.Random(3)
    prefix = random_prompt(source, 26)
    prompts = {f"r{i}": prefix + random_prompt(source, 5) for i in range(3)}
    engine = engine_of(family)
    output = run(engine, [request("r0", prompts["r0"])])
    output |= run(engine, [request(n, prompts[n]) for n in ("r1", "r2")])
    assert engine.stats().prefix_hit_tokens >= 2 * 24
    for name, prompt in prompts.items():
        assert tokens_of(output, name) == greedy(family, prompt, 12)


@every_family
def test_four_choices_fork_from_one_prompt(family: str) -> None:
    prompt = random_prompt(random.Random(4), 18)
    output = run(engine_of(family), [request("r", prompt, choices=4)])
    expected = greedy(family, prompt, 12)
    assert [tokens_of(output, "r", choice) for choice in range(4)] == [expected] * 4


@every_family
def test_a_pool_too_small_for_all_preempts_and_loses_nothing(family: str) -> None:
    source = random.Random(5)
    prompts = {f"r{i}": random_prompt(source, 14) for i in range(4)}
    engine = engine_of(family, num_blocks=14, prefix_caching=False)
    output = run(engine, [request(n, p, 20) for n, p in prompts.items()])
    assert engine.stats().preemptions > 0
    for name, prompt in prompts.items():
        assert tokens_of(output, name) == greedy(family, prompt, 20)
