"""Log probabilities as clients see them: of the model's raw distribution, in float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cluster.messages import TokenLogprob
from cluster.steps import Chunk

ROWS_AT_ONCE = 64
"""Prompt rows normalised together: bounds the float32 copy of a long prompt's logits."""


def report(logits: Tensor, tokens: Sequence[int], top: int) -> tuple[TokenLogprob, ...]:
    """For each row of `logits` `[rows, vocab]`: its token's log probability and the `top` best.

    Alternatives are sorted by falling probability, equal ones by rising token id.
    """
    if not tokens:
        return ()
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    chosen = logprobs.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    best = _best(logprobs, min(top, logits.shape[1]))
    return tuple(map(TokenLogprob, tokens, chosen, best))


def score_prompt(logits: Tensor, chunk: Chunk) -> tuple[TokenLogprob, ...]:
    """What `logits`, one row for each, say of the prompt tokens from `chunk.start + 1` on."""
    request = chunk.sequence.request
    top = request.sampling.prompt_logprobs or 0
    tokens = request.prompt[chunk.start + 1 :][: len(logits)]
    return tuple(
        score
        for first in range(0, len(tokens), ROWS_AT_ONCE)
        for score in report(
            logits[first : first + ROWS_AT_ONCE], tokens[first : first + ROWS_AT_ONCE], top
        )
    )


def _best(logprobs: Tensor, top: int) -> list[tuple[tuple[int, float], ...]]:
    if top == 0:
        return [()] * len(logprobs)
    values, tokens = logprobs.topk(top, dim=-1)
    rows = zip(tokens.tolist(), values.tolist(), strict=True)
    return [
        tuple(sorted(zip(ids, row, strict=True), key=lambda pair: (-pair[1], pair[0])))
        for ids, row in rows
    ]
