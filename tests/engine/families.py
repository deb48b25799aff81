"""Tiny models with random weights, one of each family, and what transformers generates with them.

Weights are drawn wider than models are initialised, so that outputs vary from token to token; the
seed is fixed, so that a comparison of tokens is the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB = 300
MAX_LEN = 256
WINDOW = 12
"""Shorter than nearly every test sequence, so that windows matter."""

SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_LEN,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]


def _llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SHAPE))


def _qwen2() -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**SHAPE))


def _qwen3() -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=24))


def _mistral() -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=WINDOW))


def _gemma2() -> PreTrainedModel:
    return Gemma2ForCausalLM(
        Gemma2Config(
            **SHAPE,
            head_dim=16,
            sliding_window=WINDOW,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=30.0,
            query_pre_attn_scalar=20,
            layer_types=ALTERNATING,
        )
    )


def _gemma3() -> PreTrainedModel:
    return Gemma3ForCausalLM(
        Gemma3TextConfig(
            **SHAPE,
            head_dim=16,
            sliding_window=WINDOW,
            query_pre_attn_scalar=20,
            layer_types=ALTERNATING,
        )
    )


def _phi3() -> PreTrainedModel:
    return Phi3ForCausalLM(Phi3Config(**SHAPE))


def _olmo2() -> PreTrainedModel:
    return Olmo2ForCausalLM(Olmo2Config(**SHAPE))


def _gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB,
            n_positions=MAX_LEN,
            n_embd=64,
            n_layer=3,
            n_head=4,
            bos_token_id=1,
            eos_token_id=2,
        )
    )


def _mixtral() -> PreTrainedModel:
    return MixtralForCausalLM(MixtralConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2))


FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "mistral": _mistral,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "olmo2": _olmo2,
    "gpt2": _gpt2,
    "mixtral": _mixtral,
}


def make(family: str) -> PreTrainedModel:
    """A new model of the family; the same weights every time."""
    return with_wide_weights(FAMILIES[family]())


def latent_attention() -> PreTrainedModel:
    """A model whose keys and values differ in size, made from one small vector a token."""
    return with_wide_weights(
        DeepseekV3ForCausalLM(
            DeepseekV3Config(
                **{**SHAPE, "num_key_value_heads": 4},
                q_lora_rank=16,
                kv_lora_rank=16,
                qk_rope_head_dim=8,
                qk_nope_head_dim=16,
                v_head_dim=16,
                first_k_dense_replace=3,
                moe_intermediate_size=16,
                n_routed_experts=2,
                num_experts_per_tok=1,
                n_group=1,
                topk_group=1,
            )
        )
    )


def with_wide_weights(model: PreTrainedModel) -> PreTrainedModel:
    """Draw all matrices from a normal distribution wide enough that the context decides."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.25, generator=generator)
    return model.eval().requires_grad_(False)


@cache
def reference(family: str) -> PreTrainedModel:
    """The model as transformers runs it. Kept; not to be handed to an engine."""
    model = make(family)
    model.set_attn_implementation("eager")
    return model


def greedy(family: str, prompt: Sequence[int], tokens: int) -> list[int]:
    """What transformers generates with the family's model, never stopping early."""
    return generated(reference(family), prompt, tokens)


def generated(model: PreTrainedModel, prompt: Sequence[int], tokens: int) -> list[int]:
    """The same of a `model` that no engine was handed.

    Fails where the two likeliest tokens are so close that rounding could decide: such a prompt is
    no test.
    """
    out = model.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        eos_token_id=None,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = torch.stack(out.logits)[:, 0].topk(2).values
    gap = float((best[:, 0] - best[:, 1]).min())
    assert gap > 1e-4, f"a near tie ({gap:.2g}) in the reference {type(model).__name__}"
    new: list[int] = out.sequences[0, len(prompt) :].tolist()
    return new


@torch.inference_mode()
def logits(family: str, tokens: Sequence[int]) -> torch.Tensor:
    """transformers' logits after each of `tokens`, `[tokens, vocab]` float32."""
    out: torch.Tensor = reference(family)(torch.tensor([list(tokens)])).logits[0]
    return out
