"""Logits of a deterministic bfloat16 model are not rounded to bfloat16."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from actors.engine.engine import build_engine
from actors.engine.head import WideLinear
from cluster.config import CacheConfig, ModelConfig
from cluster.messages import Sampling
from tests.engine.driving import request, run
from tests.engine.families import make


def layer(inputs: int, outputs: int, *, bias: bool) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, bias=bias).bfloat16().requires_grad_(False)


def true_product(narrow: nn.Linear, rows: Tensor) -> Tensor:
    product = rows.double() @ narrow.weight.double().t()
    return product if narrow.bias is None else product + narrow.bias.double()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("count", [1, 16, 40])
def test_a_product_is_hundreds_of_times_closer_than_bfloat16_is(bias: bool, count: int) -> None:
    narrow = layer(576, 4096, bias=bias)
    rows = torch.randn(1, count, 576, dtype=torch.bfloat16)
    wide, true = WideLinear(narrow)(rows), true_product(narrow, rows)
    assert wide.dtype == torch.float32
    assert wide.shape == (1, count, 4096)
    rounding = (narrow(rows).double() - true).abs().max()
    assert (wide.double() - true).abs().max() < rounding / 100


def test_tokens_that_tie_in_bfloat16_are_told_apart() -> None:
    narrow = layer(4, 2, bias=False)
    narrow.weight[:] = torch.tensor([[16.0, 8, 0.5, 0], [16.0, 8, 0.5, 0.03125]])
    row = torch.ones(1, 4, dtype=torch.bfloat16)
    assert torch.equal(narrow(row)[0, 0], narrow(row)[0, 1])
    assert WideLinear(narrow)(row)[0].tolist() == [24.5, 24.53125]


def test_the_scores_of_a_deterministic_model_are_finer_than_bfloat16() -> None:
    cache = CacheConfig(block_size=4, num_blocks=64)
    config = ModelConfig(deterministic=True, max_model_len=64, cache=cache)
    engine = build_engine(make("llama").bfloat16(), config)
    scored = Sampling(temperature=0.0, logprobs=8)
    (first, *_) = run(engine, [request("r", [5, 6, 7], 1, scored)])["r", 0]
    scores = torch.tensor([score for _, score in first.logprobs[0].top])
    gaps = (scores[0] - scores)[1:]  # of logits: what both are less is the same
    assert (gaps * 256 - (gaps * 256).round()).abs().max() > 0.01
