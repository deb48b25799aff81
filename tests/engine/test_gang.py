"""Two ranks that share a model's heads give the tokens of the whole model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from transformers import MixtralConfig, MixtralForCausalLM, PreTrainedModel

from cluster.config import BatchingConfig, CacheConfig, ModelConfig
from cluster.errors import ConfigError, ShardLost, UnsupportedModel
from cluster.messages import Sampling
from tests.engine.driving import engine_of, random_prompt, request, run, tokens_of
from tests.engine.families import SHAPE, greedy, make, with_wide_weights
from tests.engine.gangs import Served, TwoRanks, two_ranks

SPLITTABLE = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3")

Folders = Callable[[str], Path]


def model(**batching: int) -> ModelConfig:
    return ModelConfig(
        tensor_parallel=2,
        max_model_len=200,
        cache=CacheConfig(block_size=4, num_blocks=128),
        batching=BatchingConfig(max_num_seqs=16, max_batch_tokens=24),
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """The folder of a tiny model of a family."""

    def save(family: str) -> Path:
        folder = tmp_path_factory.mktemp(family)
        make(family).save_pretrained(folder)
        return folder

    return save


@pytest.mark.parametrize("family", SPLITTABLE)
def test_the_tokens_are_those_that_transformers_generates(saved: Folders, family: str) -> None:
    """Prompts in chunks, beside others, that come while others decode."""
    source = random.Random(3)
    prompts = [random_prompt(source, length) for length in (2, 9, 30, 41, 17)]
    with two_ranks(saved(family), model()) as gang:
        assert gang.loaded() is None
        served = gang.ask([request(str(i), prompt) for i, prompt in enumerate(prompts)], seed=5)
    assert isinstance(served, Served)
    for i, prompt in enumerate(prompts):
        assert tokens_of(served.output, str(i)) == greedy(family, prompt, 12)
