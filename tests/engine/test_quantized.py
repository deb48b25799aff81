"""Int8 weights are the model's own, rounded once; products of them and rounded inputs are exact."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from actors.engine.calibration import largest_inputs
from actors.engine.engine import build_engine
from actors.engine.quantized import LARGEST, LEAST_STEP, Int8Linear, is_quantized, quantize
from cluster.batching_config import BatchingConfig
from cluster.config import CacheConfig, ModelConfig
from cluster.errors import UnsupportedModel
from tests.engine.driving import random_prompt, request, run, tokens_of
from tests.engine.families import SHAPE, generated, make, with_wide_weights

FAMILIES = pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "gpt2"])
"""Plain; with biases; with a tied head, windows and soft-capping; with layers that are not Linear.
"""

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2**-8}
"""Of a product, as a share of the largest: one rounding of the result, and those of its sum."""


def quantized(family: str) -> PreTrainedModel:
    model = make(family)
    quantize(model)
    return model


def values(layer: Int8Linear) -> Tensor:
    """The weights that a layer stands for."""
    return layer.weight.view(layer.out_features, -1).double() * layer.scale.double()[:, None]


def some_weights(outputs: int, inputs: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(outputs + inputs)
    return torch.randn(outputs, inputs, generator=generator).to(dtype)


def rounded(rows: Tensor) -> Tensor:
    """The inputs that a product is made of, in float64."""
    step = (rows.float().abs().amax(dim=-1, keepdim=True) / LARGEST).clamp_min(LEAST_STEP)
    return (rows.float() / step).round().double() * step.double()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows", [1, 2, 5, 33])
@pytest.mark.parametrize(("inputs", "outputs"), [(16, 1), (64, 30), (160, 97)])
def test_a_product_is_that_of_rounded_inputs_and_its_weights_in_float64(
    dtype: torch.dtype, rows: int, inputs: int, outputs: int
) -> None:
    bias = some_weights(1, outputs, dtype)[0]
    layer = Int8Linear(some_weights(outputs, inputs, dtype), bias)
    given_rows = some_weights(rows, inputs, dtype)[None]
    exact = rounded(given_rows) @ values(layer).t() + bias.double()
    error = (layer(given_rows).double() - exact).abs().max() / exact.abs().max()
    assert error <= 2 * TOLERANCE[dtype]


@pytest.mark.parametrize("largest", [1e-20, 1.0, 300.0])
def test_no_input_is_off_by_more_than_half_a_step_of_its_row(largest: float) -> None:
    """Seen through a layer that hands its inputs on."""
    layer = Int8Linear(torch.eye(32), None)
    rows = some_weights(9, 32, torch.float32) * largest
    error = (layer(rows).double() - rows.double()).abs()
    assert (error <= 0.501 * rows.double().abs().amax(dim=1, keepdim=True) / LARGEST).all()


@given(
    st.lists(st.integers(-(10**6), 10**6), min_size=16, max_size=16),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=50)
def test_no_weight_is_off_by_more_than_half_a_step(row: list[int], dtype: torch.dtype) -> None:
    weight = (torch.tensor([row]) / 1000).to(dtype)
    layer = Int8Linear(weight, None)
    assert (values(layer) - weight.double()).abs().max() <= 0.5001 * layer.scale.double()
    assert layer.weight.abs().max() <= LARGEST


def test_an_input_that_gets_large_does_not_cost_the_others_their_steps() -> None:
    weight = some_weights(20, 64, torch.float32)
    rows = some_weights(9, 64, torch.float32)
    rows[:, 7] *= 300
    exact = rows.double() @ weight.double().t()

    def error(largest: Tensor | None) -> float:
        made = Int8Linear(weight, None, largest)(rows).double()
        return float((made - exact).square().mean().sqrt())

    assert error(rows.abs().amax(dim=0)) < 0.3 * error(None)


def test_an_input_that_is_always_zero_is_left_as_it_is() -> None:
    layer = Int8Linear(some_weights(4, 16, torch.float32), None, torch.zeros(16))
    assert torch.equal(layer.share, torch.ones(16))


def test_the_largest_inputs_are_those_that_a_forward_pass_brings() -> None:
    model = make("llama")
    model.set_attn_implementation("sdpa")
    name = "model.layers.1.mlp.down_proj"
    brought: list[Tensor] = []
    model.get_submodule(name).register_forward_pre_hook(lambda _, args: brought.append(args[0]))
    largest = largest_inputs(model, [name])
    assert list(largest) == [name]
    assert torch.equal(largest[name], torch.cat(brought).abs().amax(dim=(0, 1)))
    assert model.config._attn_implementation == "sdpa"
    model(input_ids=torch.tensor([[1, 2]]))
    assert len(brought) == 2, "a hook was left behind"


def test_a_row_of_zeros_gives_zeros() -> None:
    layer = Int8Linear(torch.zeros(2, 16), None)
    assert torch.equal(layer(torch.ones(1, 16)), torch.zeros(1, 2))
    whole = Int8Linear(torch.ones(2, 16), None)
    assert torch.equal(whole(torch.zeros(1, 16)), torch.zeros(1, 2))


def test_a_row_rounds_the_same_alone_and_in_a_crowd() -> None:
    layer = Int8Linear(some_weights(50, 64, torch.bfloat16), None)
    crowd = some_weights(32, 64, torch.bfloat16)
    assert torch.equal(layer(crowd), torch.cat([layer(row[None]) for row in crowd]))


def test_inputs_that_are_not_contiguous_are_multiplied_all_the_same() -> None:
    layer = Int8Linear(some_weights(8, 16, torch.float32), None)
    columns = some_weights(16, 5, torch.float32)
    assert torch.equal(layer(columns.t()), layer(columns.t().contiguous()))


@FAMILIES
def test_served_output_is_what_transformers_generates_with_the_same_weights(family: str) -> None:
    source = random.Random(1)
    prefix = random_prompt(source, 20)
    prompts = {f"r{i}": random_prompt(source, source.choice([1, 2, 7, 19, 40])) for i in range(5)}
    prompts |= {f"p{i}": prefix + random_prompt(source, 5) for i in range(3)}
    engine = build_engine(
        quantized(family),
        ModelConfig(
            max_model_len=80,
            cache=CacheConfig(block_size=4, num_blocks=28),
            batching=BatchingConfig(max_num_seqs=8, max_batch_tokens=48),
        ),
    )
    output = run(engine, [request(name, prompt) for name, prompt in prompts.items()], source)
    assert engine.stats().preemptions > 0
    assert engine.stats().prefix_hit_tokens > 0
    reference = quantized(family)
    for name, prompt in prompts.items():
        assert tokens_of(output, name) == generated(reference, prompt, 12)


@FAMILIES
def test_every_linear_layer_is_quantized_the_head_too(family: str) -> None:
    model = quantized(family)
    assert is_quantized(model)
    assert isinstance(model.get_output_embeddings(), Int8Linear)
    whole = {name for name, weight in model.named_parameters() if weight.dim() == 2}
    assert all("embed" in name or name.endswith(("wte.weight", "wpe.weight")) for name in whole)


def test_an_embedding_tied_to_the_head_stays_as_it_is() -> None:
    model, whole = quantized("gpt2"), make("gpt2")
    assert whole.get_output_embeddings().weight is whole.get_input_embeddings().weight
    assert torch.equal(model.get_input_embeddings().weight, whole.get_input_embeddings().weight)


def llama_of(**shape: int) -> PreTrainedModel:
    return with_wide_weights(LlamaForCausalLM(LlamaConfig(**{**SHAPE, **shape})))


def test_a_layer_that_the_product_would_read_beyond_is_left_alone() -> None:
    model = llama_of(intermediate_size=74)
    quantize(model)
    mlp = model.model.layers[0].mlp
    assert type(mlp.down_proj) is nn.Linear
    assert type(mlp.up_proj) is Int8Linear


def test_a_model_of_which_nothing_can_be_made_smaller_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="no linear layers that int8 weights could replace"):
        quantize(
            llama_of(
                hidden_size=22, num_attention_heads=1, num_key_value_heads=1, intermediate_size=42
            )
        )
