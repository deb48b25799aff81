"""How large each input of a model's linear layers gets, seen on a sample text.

A few inputs are many times as large as the others, always the same ones. Rounded with one step for
all, the others would have no more than a few steps left: so `quantized` divides them before, and
multiplies the weights (SmoothQuant: Xiao et al., 2023).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedModel

ROWS, LENGTH = 2, 256
"""Of the sample, in tokens."""

CHARACTERS = 8_000
"""Of the text, its last ones: enough for the sample. `benchmarks.accuracy` begins at the front."""


def largest_inputs(model: PreTrainedModel, layers: Iterable[str]) -> dict[str, Tensor]:
    """For each of the named layers that are used, of each input the largest absolute value,
    `[inputs]`."""
    seen: dict[str, Tensor] = {}

    def notice(name: str, inputs: Tensor) -> None:
        largest = inputs.float().flatten(0, -2).abs().amax(dim=0)
        seen[name] = torch.maximum(largest, seen.get(name, largest))

    with ExitStack() as hooks:
        for name in layers:
            hook = model.get_submodule(name).register_forward_pre_hook(
                lambda _layer, args, name=name: notice(name, args[0])
            )
            hooks.callback(hook.remove)
        _compute(model, _sample(model))
    return seen


@torch.no_grad()
def _compute(model: PreTrainedModel, tokens: Tensor) -> None:
    """As transformers does it, whatever attention the model has to serve with."""
    attention = model.config._attn_implementation
    model.set_attn_implementation("eager")
    model(input_ids=tokens.to(model.device), use_cache=False)
    model.set_attn_implementation(attention)


def _sample(model: PreTrainedModel) -> Tensor:
    """`[ROWS, LENGTH]` tokens of the text, or of none where the model came without a tokenizer."""
    config: Any = model.config.get_text_config()
    length = min(LENGTH, config.max_position_embeddings)
    file = Path(model.name_or_path, "tokenizer.json")
    if file.is_file():
        tokenizer = Tokenizer.from_file(str(file))
        tokens = tokenizer.encode(sample_text()[-CHARACTERS:], add_special_tokens=False).ids
        if len(tokens) >= ROWS * length and max(tokens) < config.vocab_size:
            return torch.tensor(tokens[: ROWS * length]).view(ROWS, length)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(config.vocab_size, (ROWS, length), generator=generator)


def sample_text() -> str:
    """Python's own reference, which comes with every Python."""
    from pydoc_data.topics import topics  # most of a megabyte, which other models need not hold

    return "\n\n".join(topics.values())
