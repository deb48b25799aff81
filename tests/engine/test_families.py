"""A family that cannot be served exactly is refused by name, with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    BambaConfig,
    BambaForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.models.bloom import BloomConfig, BloomForCausalLM

from actors.engine.engine import build_engine
from actors.engine.exactness import own_logits, prove_exact, prove_split
from actors.engine.families import check_family
from actors.engine.kv_cache import LayerShape
from cluster.config import CacheConfig, ModelConfig
from cluster.errors import ConfigError, UnsupportedModel
from tests.engine.families import FAMILIES, SHAPE, latent_attention, make, with_wide_weights

POOL = CacheConfig(num_blocks=128)


def _t5() -> PreTrainedModel:
    return T5ForConditionalGeneration(
        T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    )


def _mamba() -> PreTrainedModel:
    return MambaForCausalLM(MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1))


def _gpt_oss() -> PreTrainedModel:
    return GptOssForCausalLM(
        GptOssConfig(**SHAPE, head_dim=16, num_local_experts=2, num_experts_per_tok=1)
    )


def _lfm2() -> PreTrainedModel:
    return Lfm2ForCausalLM(Lfm2Config(**SHAPE, layer_types=["conv", "full_attention", "conv"]))


def _qwen3_next() -> PreTrainedModel:
    kinds = ["linear_attention", "full_attention", "linear_attention"]
    return Qwen3NextForCausalLM(
        Qwen3NextConfig(**SHAPE, head_dim=16, num_experts=2, layer_types=kinds)
    )


def _llama4() -> PreTrainedModel:
    return Llama4ForCausalLM(
        Llama4TextConfig(
            **SHAPE,
            head_dim=16,
            num_local_experts=2,
            intermediate_size_mlp=32,
            attn_temperature_tuning=False,
        )
    )


def _bloom() -> PreTrainedModel:
    return BloomForCausalLM(BloomConfig(vocab_size=50, hidden_size=16, n_layer=1, n_head=2))


def _bamba() -> PreTrainedModel:
    return BambaForCausalLM(
        BambaConfig(**SHAPE, attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=16)
    )


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (_t5, "it has an encoder"),
        (_mamba, "cannot be replaced|layers of the kind"),
        (_gpt_oss, "is given `s_aux`"),
        (_lfm2, "layers of the kind conv"),
        (_qwen3_next, "layers of the kind linear_attention"),
        (_llama4, "layers of the kind chunked_attention"),
        (_bloom, "cannot be replaced"),
        (_bamba, "layers"),
    ],
)
def test_a_family_that_needs_more_than_paged_attention_is_refused(build: Any, reason: str) -> None:
    model = build().eval()
    with pytest.raises(UnsupportedModel, match=reason) as refusal:
        check_family(model)
    assert type(model).__name__ in refusal.value.message


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plain_family_says_what_each_layer_keeps(family: str) -> None:
    layers = check_family(make(family))
    assert sorted(layers) == [0, 1, 2]
    assert layers[0].kv_heads == (4 if family == "gpt2" else 2)


def test_keys_and_values_may_differ_in_size() -> None:
    model = latent_attention()
    layers = check_family(model)
    assert layers[0] == LayerShape(kv_heads=4, key_dim=24, value_dim=16)
    prove_exact(model, layers)


def test_a_window_known_to_the_mask_alone_is_refused() -> None:
    model = make("mistral")
    for layer in model.model.layers:
        layer.self_attn.config = LlamaConfig(**SHAPE)
        layer.self_attn.config._attn_implementation_internal = "shoal_declare"
    with pytest.raises(UnsupportedModel, match="not the causal one of the window"):
        check_family(model)


def test_a_model_that_computes_something_else_in_pages_is_refused() -> None:
    model = make("llama")
    layers = check_family(model)
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(_look_at_neighbours, with_kwargs=True)
    with pytest.raises(UnsupportedModel, match=r"LlamaForCausalLM .* differ from its own"):
        prove_exact(model, layers)


def test_a_split_that_computes_something_else_is_refused() -> None:
    """As a plan that adds up once too often would."""
    model = make("llama")
    logits = own_logits(model)
    prove_split(model, logits + 1e-5)
    with pytest.raises(UnsupportedModel, match="split over ranks, its logits differ"):
        prove_split(model, 2 * logits)


def _look_at_neighbours(_module: Any, args: Any, kwargs: Any) -> Any:
    """State that a cache of keys and values does not hold: the token before, in the row."""
    hidden = kwargs["hidden_states"]
    return args, {**kwargs, "hidden_states": hidden + torch.roll(hidden, 1, dims=1)}


ROPE = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}


def _dynamic() -> PreTrainedModel:
    return with_wide_weights(LlamaForCausalLM(LlamaConfig(**SHAPE, rope_parameters=ROPE)))


def test_rotary_frequencies_that_depend_on_the_batch_bound_the_length() -> None:
    with pytest.raises(ConfigError, match="length up to which the model is exact, 256"):
        build_engine(_dynamic(), ModelConfig(max_model_len=512, cache=POOL))


def test_within_that_length_the_model_is_served() -> None:
    assert build_engine(_dynamic(), ModelConfig(cache=POOL)).capacity.max_model_len == 256
