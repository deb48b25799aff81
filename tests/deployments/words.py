"""A small byte-level tokenizer with a chat template, made and saved as a model folder."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "The capital of France is Paris. The capital of Italy is Rome.",
    "One fish, two fish, red fish, blue fish. A shoal swims as one.",
    "user system assistant answer question",
]
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'system' and not loop.first %}"
    "{{ raise_exception('system comes first') }}"
    "{% endif %}"
    "<|start|>{{ message.role }}\n{{ message.content }}<|end|>{{ '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{{ '\n' }}{% endif %}"
)
SPECIAL = ["<|start|>", "<|end|>", "<|stop|>"]


def save_words(folder: Path, *, context: int = 128, padded: int = 8) -> Path:
    """`padded` ids at the end of the model's vocabulary are unknown to the tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    size = len(fast) + padded
    config = {"vocab_size": size, "max_position_embeddings": context, "eos_token_id": 1}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    return folder
