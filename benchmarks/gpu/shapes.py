"""Models with random weights in the shapes of Llama 3, made on the device itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

WIDE = 0.25
"""Standard deviation of weights with which outputs vary from token to token."""

LLAMA_3: dict[str, Any] = {
    "vocab_size": 128_256,
    "num_key_value_heads": 8,
    "rope_theta": 500_000.0,
    "max_position_embeddings": 131_072,
}


@dataclass(frozen=True)
class Shape:
    """A model's sizes, and the work it is timed with: prompts of `prompt` tokens, then `output`."""

    config: LlamaConfig
    prompt: int
    output: int


SHAPES = {
    "tiny": Shape(
        LlamaConfig(
            vocab_size=300,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
        ),
        prompt=40,
        output=12,
    ),
    "1b": Shape(
        LlamaConfig(
            **LLAMA_3,
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=16,
            num_attention_heads=32,
            tie_word_embeddings=True,
        ),
        prompt=448,
        output=64,
    ),
    "8b": Shape(
        LlamaConfig(
            **LLAMA_3,
            hidden_size=4096,
            intermediate_size=14_336,
            num_hidden_layers=32,
            num_attention_heads=32,
            tie_word_embeddings=False,
        ),
        prompt=448,
        output=64,
    ),
}
"""Prompt and output together fill two pages of 256 tokens, but for `tiny`."""

SMALL = LlamaConfig(
    vocab_size=1000,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    max_position_embeddings=4096,
)
"""What exactness is looked at with: small enough for float32 to be quick."""


def made(
    config: LlamaConfig, dtype: torch.dtype, device: torch.device, wide: bool = False
) -> PreTrainedModel:
    """A model of that shape with the same weights every time, `wide` ones where tokens count."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    if wide:
        _widen(model)
    loaded: PreTrainedModel = model.eval().requires_grad_(False)
    return loaded


@torch.no_grad()
def _widen(model: LlamaForCausalLM) -> None:
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.normal_(0.0, WIDE)
