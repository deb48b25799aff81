"""A tiny model folder with everything a real one has: random weights, tokenizer, chat template."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.deployments.words import save_words

CONTEXT = 1024


def save_tiny_model(folder: Path) -> Path:
    """Weights wide enough apart that greedy outputs of different prompts differ."""
    save_words(folder, context=CONTEXT)
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
