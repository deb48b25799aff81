"""The same work by transformers' own continuous batching, in the same process and on the same
weights."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from benchmarks.gpu.served import Prompt, Run


class PeerFailed(Exception):
    """It did not answer all requests; the message says what it said."""


def generate(model: PreTrainedModel, asked: Sequence[Prompt], output: int, settings: object) -> Run:
    """All at once, greedily, `output` tokens each. `settings` are of `settings_of`.

    Raises PeerFailed.
    """
    model.set_attn_implementation("sdpa")
    wanted = GenerationConfig(max_new_tokens=output, do_sample=False, eos_token_id=-1)
    given = model.generate_batch(
        [list(prompt) for prompt in asked],
        generation_config=wanted,
        continuous_batching_config=settings,
        record_timestamps=True,
    )
    answers = list(given.values())
    errors = [answer.error for answer in answers if answer.error]
    if errors or len(answers) < len(asked):
        raise PeerFailed(f"{len(answers)} of {len(asked)} answered; {errors[:1]}")
    return Run(
        began=min(answer.created_time for answer in answers),
        tokens=[list(answer.generated_tokens) for answer in answers],
        arrivals=[list(answer.timestamps) for answer in answers],
    )


def settings_of(blocks: int | None) -> ContinuousBatchingConfig:
    """Its own choices, with flash attention where that is installed: not where it would have to be
    fetched. `blocks` only where it cannot find out how much memory there is."""
    return ContinuousBatchingConfig(
        num_blocks=blocks,
        auto_switch_to_flash=flash_installed(),
        max_batch_tokens=None if blocks is None else 256,
    )


def name() -> str:
    """With what it attends."""
    return f"transformers, {'flash' if flash_installed() else 'sdpa'}"


def flash_installed() -> bool:
    return any(importlib.util.find_spec(name) for name in ("flash_attn", "flash_attn_interface"))
