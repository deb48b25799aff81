"""Convert a GGUF file to a folder of bfloat16 safetensors with its tokenizer and chat template.

Run as `python -m actors.engine.convert FILE FOLDER`, in a process of its own: dequantizing peaks at
several times the model's size, and the callers of `actors.models` hold no torch.

What transformers leaves wrong is put right here:

- the split before byte-pair merging. transformers knows a list of `tokenizer.ggml.pre` names and
  splits every other vocabulary as GPT-2 did. SmolLM2's was learned with each digit standing alone,
  so two spaces before a digit came out as other tokens than the model was trained on. A name that
  neither knows is refused, for its model would answer a little worse and nobody would know why;
- the ends of a generation. A chat model's turn ends by `eot`, which a GGUF lists beside `eos`;
- the tokenizer's context length, which is left at 10^30.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
from transformers.integrations.gguf.reader import read_gguf_metadata
from transformers.utils import logging as transformers_logging

from cluster.errors import ModelUnavailable

# Vocabularies split as GPT-2's, which is what transformers does with a name it does not know.
GPT2_SPLITS = frozenset({None, "default", "gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais"})
# As GPT-2's, after each digit was set apart.
SINGLE_DIGIT_SPLITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell"})

END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def convert(gguf: Path, folder: Path) -> None:
    """Write `folder`: config, safetensors in bfloat16, tokenizer, chat template.

    Raises ModelUnavailable for a vocabulary whose split is not known.
    """
    metadata, _ = read_gguf_metadata(str(gguf))
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    correct_split(tokenizer, metadata)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.generation_config.eos_token_id = end_tokens(metadata) or None
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def correct_split(tokenizer: Any, metadata: dict[str, Any]) -> None:
    """Split text before merging as this vocabulary was learned."""
    if metadata.get("tokenizer.ggml.model") != "gpt2":
        return  # a sentencepiece vocabulary has no such split
    split = metadata.get("tokenizer.ggml.pre")
    if split in SINGLE_DIGIT_SPLITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    elif split not in GPT2_SPLITS and split not in GGUF_PRE_TOKENIZER_SPLITS:
        known = GPT2_SPLITS | SINGLE_DIGIT_SPLITS | set(GGUF_PRE_TOKENIZER_SPLITS)
        raise ModelUnavailable(
            f"how {split!r} splits text before merging is not known, so its tokens would be wrong."
            f" Known: {', '.join(sorted(filter(None, known)))}."
            " Use the model's original safetensors folder instead."
        )


def end_tokens(metadata: dict[str, Any]) -> list[int]:
    """Every token that ends a generation, end of text first, each once."""
    ends = [metadata.get(f"tokenizer.ggml.{key}") for key in END_KEYS]
    return list(dict.fromkeys(end for end in ends if end is not None))


if __name__ == "__main__":
    transformers_logging.disable_progress_bar()
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except ModelUnavailable as refusal:
        sys.exit(refusal.message)
