"""Guessed tokens leave no trace: the same tokens and log probabilities, in fewer steps."""

from __future__ import annotations

import random

import pytest

from actors.engine.engine import Engine, build_engine
from cluster.batching_config import BatchingConfig
from cluster.config import CacheConfig, ModelConfig
from cluster.messages import Sampling
from tests.engine.driving import Output, random_prompt, request, run, tokens_of
from tests.engine.families import make

LONG = 40

FEW_WORDS = ((5, 40.0), (6, 40.0), (7, 40.0))
"""A bias that leaves three tokens to say, so that the text has to repeat itself."""


def engine_of(guesses: int | None, family: str = "llama") -> Engine:
    return build_engine(
        make(family),
        ModelConfig(
            max_model_len=128,
            cache=CacheConfig(block_size=16, num_blocks=64),
            batching=BatchingConfig(max_batch_tokens=64, prompt_lookup_tokens=guesses),
        ),
    )


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_and_log_probabilities_are_the_same_in_fewer_steps(
    family: str, temperature: float
) -> None:
    source = random.Random(5)
    sampling = Sampling(temperature, seed=3, logprobs=2, logit_bias=FEW_WORDS)
    wanted = [
        request(f"r{length}", random_prompt(source, length), LONG, sampling, choices=2)
        for length in (3, 17, 30)
    ]
    guessing, plain = engine_of(4, family), engine_of(0, family)
    ours, theirs = run(guessing, wanted), run(plain, wanted)
    for name, choice in theirs:
        assert tokens_of(ours, name, choice) == tokens_of(theirs, name, choice)
        assert logprobs_of(ours, name, choice) == pytest.approx(
            logprobs_of(theirs, name, choice), abs=1e-4
        )
    stats = guessing.stats()
    assert 0 < stats.guesses_right <= stats.tokens_guessed
    assert stats.tokens_sampled == plain.stats().tokens_sampled
    assert stats.steps < plain.stats().steps
    assert plain.stats().tokens_guessed == 0


def logprobs_of(output: Output, name: str, choice: int) -> list[float]:
    return [one.logprob for delta in output[name, choice] for one in delta.logprobs]


def test_on_a_cpu_guessing_is_the_default() -> None:
    engine = engine_of(None)
    run(engine, [request("r", [5, 6] * 8, LONG, Sampling(0.0, logit_bias=FEW_WORDS))])
    assert engine.stats().tokens_guessed > 0
