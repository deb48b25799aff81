"""Two ranks that share a model's heads are one engine: exact, and dead as one of them is."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import (
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3MoeConfig,
)

from actors.engine.gang import ENVELOPE, Gang
from actors.engine.parts import first_layers, load_part
from actors.engine.split import check_plan
from cluster.batching_config import BatchingConfig
from cluster.config import CacheConfig, ModelConfig
from cluster.errors import ConfigError, ShardLost, UnsupportedModel
from tests.engine.driving import random_prompt, request, tokens_of
from tests.engine.families import SHAPE, greedy, latent_attention, make, with_wide_weights
from tests.engine.gangs import Served, TwoRanks, heard, of_rank_0, two_ranks

SPLITTABLE = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi3", "olmo2", "mixtral")

QUICK = ("llama", "gemma3", "phi3", "mixtral")
"""Split in every run: the plainest, windows, joined projections, experts. `-m exhaustive` splits
the others."""

MODEL = ModelConfig(
    tensor_parallel=2,
    max_model_len=256,
    cache=CacheConfig(block_size=4, num_blocks=128),
    batching=BatchingConfig(max_num_seqs=16, max_batch_tokens=16),
)


def saved(folder: Path, family: str) -> Path:
    make(family).save_pretrained(folder)
    return folder


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name in QUICK else pytest.mark.exhaustive)
        for name in SPLITTABLE
    ],
)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def gang(family: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoRanks]:
    with two_ranks(saved(tmp_path_factory.mktemp(family), family), MODEL) as ranks:
        assert ranks.loaded() is None
        yield ranks


def test_requests_of_mixed_lengths_that_arrive_at_random_times(family: str, gang: TwoRanks) -> None:
    source = random.Random(1)
    prompts = {f"r{i}": random_prompt(source, source.choice([1, 2, 7, 19, 40])) for i in range(7)}
    lengths = {name: source.randrange(1, 20) for name in prompts}
    served = gang.ask([request(n, p, lengths[n]) for n, p in prompts.items()], seed=1)
    assert isinstance(served, Served)
    for name, prompt in prompts.items():
        assert tokens_of(served.output, name) == greedy(family, prompt, lengths[name])


def test_a_prompt_computed_in_chunks_beside_decodes(family: str, gang: TwoRanks) -> None:
    source = random.Random(2)
    prompts = {"long": random_prompt(source, 50), "short": random_prompt(source, 3)}
    served = gang.ask([request(name, prompt) for name, prompt in prompts.items()])
    for name, prompt in prompts.items():
        assert tokens_of(served.output, name) == greedy(family, prompt, 12)


def test_choices_fork_from_one_prompt_on_every_rank(family: str, gang: TwoRanks) -> None:
    """A page that is written after a fork is copied first, by all ranks."""
    prompt = random_prompt(random.Random(4), 18)
    served = gang.ask([request("r", prompt, choices=4)])
    expected = greedy(family, prompt, 12)
    assert [tokens_of(served.output, "r", choice) for choice in range(4)] == [expected] * 4


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[TwoRanks]:
    with two_ranks(saved(tmp_path, "llama"), MODEL) as ranks:
        assert ranks.loaded() is None
        yield ranks


def test_a_step_without_the_follower_ends_the_engine(pair: TwoRanks) -> None:
    pair.follower.kill()
    assert isinstance(pair.ask([request("r", [5, 6, 7])]), ShardLost)


def test_a_follower_does_not_outlive_the_leader(pair: TwoRanks) -> None:
    pair.leader.kill()
    pair.follower.join(timeout=60)
    assert pair.follower.exitcode == 0


def test_one_weight_for_looking_up_and_for_scoring_is_split_once(tmp_path: Path) -> None:
    """Whether it is split rightly the engine finds out by itself, as it loads."""
    config = LlamaConfig(**{**SHAPE, "tie_word_embeddings": True})
    with_wide_weights(LlamaForCausalLM(config)).save_pretrained(tmp_path)
    with two_ranks(tmp_path, MODEL) as ranks:
        assert ranks.loaded() is None


def test_an_order_of_any_size_arrives_whole() -> None:
    fits = ENVELOPE - 3
    orders = [[], [0], [7, 0, 5], [fits], [fits + 1], [3000, 0, 4000], [1]]
    assert heard(orders) == orders


def test_ranks_meet_on_the_loopback_interface_wherever_they_are_told_to() -> None:
    assert of_rank_0(least_of_ranks, interface="nowhere") == 0


def least_of_ranks(gang: Gang) -> int:
    return gang.least(gang.rank)


def test_a_collective_that_fails_while_all_ranks_live_has_lost_none() -> None:
    fault = of_rank_0(sum_shorts)
    assert type(fault) is RuntimeError
    assert "Invalid scalar type" in str(fault)


def sum_shorts(gang: Gang) -> None:
    gang.sum(torch.zeros(2, dtype=torch.int16))


def test_of_the_layers_that_were_tried_nothing_is_left(tmp_path: Path) -> None:
    """The pool is sized by the memory that is free then."""
    work = partial(vectors_after_loading, saved(tmp_path, "llama"))
    assert of_rank_0(work) == 1


def vectors_after_loading(folder: Path, gang: Gang) -> int:
    """How many models' vectors of tokens are in memory: the modules that hold themselves."""
    gc.disable()
    part = load_part(folder, "float32", torch.device("cpu"), gang)
    kind = type(part.get_input_embeddings())
    return sum(isinstance(each, kind) for each in gc.get_objects())


def test_layers_are_tried_until_there_is_one_of_each_kind() -> None:
    """Those of experts too, where a family begins with dense ones."""
    assert first_layers(LlamaConfig(**SHAPE)).num_hidden_layers == 2
    moe = Qwen3MoeConfig(**{**SHAPE, "num_hidden_layers": 5}, mlp_only_layers=[0, 1])
    assert first_layers(moe).num_hidden_layers == 3
    windows = ["full_attention"] * 3 + ["sliding_attention"]
    gemma = Gemma2Config(**{**SHAPE, "num_hidden_layers": 4}, layer_types=windows)
    assert first_layers(gemma).layer_types == windows


def test_a_family_that_transformers_cannot_split_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match=r"GPT2LMHeadModel \(gpt2\) cannot be split"):
        check_plan(GPT2Config(), 2)


def test_a_plan_that_splits_no_heads_is_refused_by_name(tmp_path: Path) -> None:
    latent_attention().save_pretrained(tmp_path)
    with two_ranks(tmp_path, MODEL) as ranks:
        refusal = ranks.loaded()
    assert isinstance(refusal, UnsupportedModel)
    assert "(deepseek_v3) cannot be split over ranks: its plan gives every" in refusal.message


def test_ranks_that_cannot_share_the_heads_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 ranks cannot share the model's 2 heads of keys"):
        check_plan(LlamaConfig(**SHAPE), 3)
