"""A deterministic model gives a request the same tokens in bfloat16, whatever runs beside it."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from actors.engine.engine import Engine, build_engine
from actors.engine.quantized import quantize
from cluster.batching_config import BatchingConfig
from cluster.config import DETERMINISTIC_ROWS, CacheConfig, ModelConfig
from cluster.errors import ConfigError, UnsupportedModel
from cluster.messages import Request, Sampling
from tests.engine.driving import random_prompt, request, run, tokens_of
from tests.engine.families import SHAPE, make, with_wide_weights

WIDE = SHAPE | {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 2}
"""As wide as products have to be to round by the number of their rows."""


def llama() -> PreTrainedModel:
    model = with_wide_weights(LlamaForCausalLM(LlamaConfig(**WIDE)))
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.mul_(0.3)
    return model


def engine_of(
    model: PreTrainedModel, dtype: torch.dtype = torch.bfloat16, *, deterministic: bool = True
) -> Engine:
    return build_engine(
        model.to(dtype),
        ModelConfig(
            deterministic=deterministic,
            max_model_len=128,
            cache=CacheConfig(block_size=4, num_blocks=400, prefix_caching=False),
        ),
    )


def seeded(source: random.Random, index: int) -> Request:
    sampling = Sampling(temperature=1.0, seed=index)
    return request(f"r{index}", random_prompt(source, source.randrange(3, 60)), 24, sampling)


def changed_by_company(engine: Engine) -> int:
    """How many of a dozen seeded requests get other tokens in a crowd than alone."""
    source = random.Random(7)
    requests = [seeded(source, index) for index in range(12)]
    crowd = run(engine, requests, source)
    return sum(
        tokens_of(run(engine, [one]), one.request_id) != tokens_of(crowd, one.request_id)
        for one in requests
    )


def test_a_seed_gives_the_same_tokens_alone_and_in_a_crowd() -> None:
    assert changed_by_company(engine_of(llama())) == 0


def test_a_processor_whose_products_round_by_the_number_of_rows_is_refused() -> None:
    model = llama().to(torch.bfloat16)
    down = model.model.layers[-1].mlp.down_proj
    down.forward = lambda rows: F.linear(rows, down.weight) * (1.0 if len(rows) > 20 else 1.1)
    with pytest.raises(UnsupportedModel, match="deterministic is not to be had on this processor"):
        engine_of(model)


def test_so_it_does_with_windows_and_soft_capping() -> None:
    assert changed_by_company(engine_of(make("gemma2"))) == 0


def test_so_it_does_with_int8_weights() -> None:
    model = llama().to(torch.bfloat16)
    quantize(model)
    assert changed_by_company(engine_of(model)) == 0


def test_a_step_holds_no_more_rows_than_round_the_same() -> None:
    batching = BatchingConfig(max_num_seqs=64, max_batch_tokens=512)
    assert ModelConfig(batching=batching).steps.max_batch_tokens == 512
    assert ModelConfig(batching=batching, deterministic=True).steps.places == DETERMINISTIC_ROWS


def test_what_has_no_kernel_cannot_be_deterministic() -> None:
    with pytest.raises(ConfigError, match="float16 on cpu"):
        engine_of(make("llama"), torch.float16)
