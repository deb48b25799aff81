"""Guessed tokens leave no trace: the same tokens and log probabilities, in fewer steps."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor

from actors.engine.engine import Engine, build_engine
from actors.engine.varlen import PAGE_MULTIPLE
from benchmarks.gpu.flash_on_cpu import flash_on_cpu
from cluster.batching_config import BatchingConfig
from cluster.config import CacheConfig, ModelConfig
from cluster.messages import Request, Sampling
from cluster.stats import EngineStats
from tests.engine.driving import Output, random_prompt, request, run, tokens_of
from tests.engine.families import make
from tests.engine.gangs import Served, two_ranks

LONG = 40

FEW_WORDS = ((5, 40.0), (6, 40.0), (7, 40.0))
"""A bias that leaves three tokens to say, so that the text has to repeat itself."""

ROUNDING = {torch.float16: 0.03, torch.bfloat16: 0.2}
"""Of log probabilities, root mean square as a share of their spread."""


def config_of(
    guesses: int | None, block_size: int = 16, *, deterministic: bool = False, ranks: int = 1
) -> ModelConfig:
    return ModelConfig(
        deterministic=deterministic,
        tensor_parallel=ranks,
        max_model_len=128,
        cache=CacheConfig(block_size=block_size, num_blocks=64),
        batching=BatchingConfig(max_batch_tokens=64, prompt_lookup_tokens=guesses),
    )


def engine_of(guesses: int | None, family: str = "llama") -> Engine:
    return build_engine(make(family), config_of(guesses))


def asked(temperature: float) -> list[Request]:
    source = random.Random(5)
    sampling = Sampling(temperature, seed=3, logprobs=2, logit_bias=FEW_WORDS)
    return [
        request(f"r{length}", random_prompt(source, length), LONG, sampling, choices=2)
        for length in (3, 17, 30)
    ]


def check_guesses(guessing: EngineStats, plain: EngineStats) -> None:
    assert 0 < guessing.guesses_right <= guessing.tokens_guessed
    assert guessing.tokens_sampled == plain.tokens_sampled
    assert guessing.steps < plain.steps
    assert plain.tokens_guessed == 0


def check_outputs(ours: Output, theirs: Output, within: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, choice in theirs:
        assert tokens_of(ours, name, choice) == tokens_of(theirs, name, choice)
        assert logprobs_of(ours, name, choice) == pytest.approx(
            logprobs_of(theirs, name, choice), abs=within, rel=0
        )


def logprobs_of(output: Output, name: str, choice: int) -> list[float]:
    return [one.logprob for delta in output[name, choice] for one in delta.logprobs]


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_and_log_probabilities_are_the_same_in_fewer_steps(
    family: str, temperature: float
) -> None:
    guessing, plain = engine_of(4, family), engine_of(0, family)
    wanted = asked(temperature)
    check_outputs(run(guessing, wanted), run(plain, wanted), within=1e-4)
    check_guesses(guessing.stats(), plain.stats())


@pytest.fixture(params=[16, PAGE_MULTIPLE], ids=["by our kernel", "by torch's"])
def block_size(request: pytest.FixtureRequest) -> Iterator[int]:
    size: int = request.param
    with flash_on_cpu() if size == PAGE_MULTIPLE else nullcontext():
        yield size


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_of_a_deterministic_model_they_are_the_same_to_the_last_bit(
    block_size: int, temperature: float
) -> None:
    guessing, plain = (
        build_engine(make("llama").bfloat16(), config_of(guesses, block_size, deterministic=True))
        for guesses in (4, 0)
    )
    wanted = asked(temperature)
    check_outputs(run(guessing, wanted), run(plain, wanted), within=0)
    check_guesses(guessing.stats(), plain.stats())


@pytest.mark.parametrize(
    ("dtype", "block_size"),
    [(torch.float16, 16), (torch.bfloat16, PAGE_MULTIPLE)],
    indirect=["block_size"],
    ids=["gathered", "by torch's kernel"],
)
def test_where_rounding_may_choose_other_tokens_log_probabilities_are_those_of_the_text(
    dtype: torch.dtype, block_size: int
) -> None:
    engine = build_engine(make("llama").to(dtype), config_of(4, block_size))
    wanted = asked(1.0)
    output = run(engine, wanted)
    assert engine.stats().guesses_right > 0
    for one in wanted:
        for choice in range(one.choices):
            tokens = tokens_of(output, one.request_id, choice)
            right = log_probabilities(one.prompt, tokens, dtype)
            ours = torch.tensor(logprobs_of(output, one.request_id, choice))
            assert (ours - right).square().mean().sqrt() <= ROUNDING[dtype] * right.std()


@torch.inference_mode()
def log_probabilities(prompt: tuple[int, ...], tokens: list[int], dtype: torch.dtype) -> Tensor:
    """By transformers, of `tokens` after `prompt`, in float32 of weights as `dtype` rounds them."""
    model = make("llama").to(dtype).float()
    logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    chosen: Tensor = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
    return chosen


def test_so_they_are_where_two_ranks_share_the_model(tmp_path: Path) -> None:
    make("llama").save_pretrained(tmp_path)
    plain, wanted = engine_of(0), asked(1.0)
    with two_ranks(tmp_path, config_of(4, ranks=2)) as ranks:
        assert ranks.loaded() is None
        served = ranks.ask(wanted)
    assert isinstance(served, Served)
    check_outputs(served.output, run(plain, wanted), within=1e-4)
    check_guesses(served.stats, plain.stats())


def test_on_a_cpu_guessing_is_the_default() -> None:
    engine = engine_of(None)
    run(engine, [request("r", [5, 6] * 8, LONG, Sampling(0.0, logit_bias=FEW_WORDS))])
    assert engine.stats().tokens_guessed > 0
