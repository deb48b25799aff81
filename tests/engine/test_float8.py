"""Eight-bit floats are the model's own weights and activations, each rounded once."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from actors.engine.engine import build_engine
from actors.engine.float8 import Float8Linear, is_narrow, narrow, narrowed
from actors.engine.loader import cuda_dtypes, precision_name
from cluster.config import CacheConfig, ModelConfig
from cluster.errors import UnsupportedModel
from tests.engine.driving import random_prompt, request, run, tokens_of
from tests.engine.families import make

STEP = 2**-3
"""Between two neighbours of E4M3, as a share of the smaller, at most."""

BFLOAT16 = 2**-8


def some(rows: int, inputs: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows + inputs)
    return torch.randn(rows, inputs, generator=generator).bfloat16()


def test_a_row_is_rounded_to_the_nearest_with_its_largest_number_kept() -> None:
    rows = some(3, 64)
    rows[2] *= 1e-3
    narrow_rows, scale = narrowed(rows)
    back = narrow_rows.float() * scale
    assert ((back - rows).abs() <= STEP / 2 * rows.abs() + scale * 2**-10).all()
    assert torch.allclose(back.abs().amax(1), rows.float().abs().amax(1), rtol=1e-6)


def test_a_row_of_zeros_stays_one() -> None:
    narrow_rows, scale = narrowed(torch.zeros(1, 16))
    assert not (narrow_rows.float() * scale).any()


@pytest.mark.parametrize("rows", [1, 2, 33])
def test_a_product_is_that_of_what_was_rounded(rows: int) -> None:
    weight, bias, inputs = some(48, 64), some(1, 48)[0], some(rows, 64)[None]
    layer = Float8Linear(weight, bias)
    left, right = ((n.double() * s.double()) for n, s in (narrowed(inputs[0]), narrowed(weight)))
    exact = left @ right.t() + bias.double()
    error = (layer(inputs)[0].double() - exact).abs().max() / exact.abs().max()
    assert error <= 2 * BFLOAT16


def test_a_row_comes_out_the_same_beside_others() -> None:
    layer, inputs = Float8Linear(some(48, 64), None), some(5, 64)
    inputs[1] *= 1000
    assert torch.equal(layer(inputs)[:1], layer(inputs[:1]))


def narrow_model(family: str) -> PreTrainedModel:
    model = make(family).to(torch.bfloat16)
    narrow(model)
    return model


def test_linear_layers_become_narrow_but_for_the_head() -> None:
    model = narrow_model("llama")
    assert is_narrow(model)
    assert precision_name(model) == "fp8"
    assert isinstance(model.get_submodule("model.layers.0.mlp.up_proj"), Float8Linear)
    assert isinstance(model.get_output_embeddings(), nn.Linear)


def test_a_layer_of_sizes_that_the_product_does_not_take_is_left_alone() -> None:
    model = make("llama").to(torch.bfloat16)
    model.set_submodule("model.layers.0.mlp.up_proj", nn.Linear(64, 90, bias=False))
    narrow(model)
    assert type(model.get_submodule("model.layers.0.mlp.up_proj")) is nn.Linear


def test_a_model_without_layers_to_narrow_is_refused() -> None:
    model = narrow_model("llama")
    with pytest.raises(UnsupportedModel, match="no linear layers that fp8 weights could replace"):
        narrow(model)


def test_a_narrow_model_is_served_as_exactly_as_any() -> None:
    cache = CacheConfig(num_blocks=64, block_size=4)
    engine = build_engine(narrow_model("qwen2"), ModelConfig(cache=cache))
    prompt = random_prompt(random.Random(0), 20)
    assert len(tokens_of(run(engine, [request("r", prompt)]), "r")) == 12


def test_a_gpu_computes_in_what_its_generation_knows() -> None:
    assert cuda_dtypes((7, 5)) == ["float32", "float16"]
    assert cuda_dtypes((8, 0)) == ["float32", "bfloat16", "float16"]
    assert cuda_dtypes((8, 9)) == cuda_dtypes((9, 0)) == ["float32", "bfloat16", "float16", "fp8"]
