"""What a request changes in its logits before a token is chosen: bias, bans, penalties.

In the order in which transformers and vLLM apply them: logit bias, stop ids banned until
`min_tokens` are out, repetition penalty (prompt and output), then presence and frequency
penalties (output only).
"""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
import torch
from torch import Tensor

from actors.engine.uploads import indices, upload
from cluster.messages import Sampling
from cluster.steps import Sequence


def adjusts(sequence: Sequence) -> bool:
    """Whether the next token of `sequence` is chosen from other logits than the model's own."""
    return (
        bool(sequence.request.sampling.logit_bias)
        or _bans_stopping(sequence)
        or sequence.request.sampling.penalises
    )


def adjust(logits: Tensor, sequences: Many[Sequence]) -> Tensor:
    """`logits`, `[rows, vocab]` float32, as `sequences` want them; a copy where any differs."""
    rows = [row for row, sequence in enumerate(sequences) if adjusts(sequence)]
    if not rows:
        return logits
    adjusted = logits.clone()
    for row in rows:
        _adjust_row(adjusted[row], sequences[row])
    return adjusted


def _adjust_row(row: Tensor, sequence: Sequence) -> None:
    sampling = sequence.request.sampling
    if sampling.logit_bias:
        tokens, biases = zip(*sampling.logit_bias, strict=True)
        bias = upload(np.asarray(biases), row.device).to(row.dtype)
        row.index_add_(0, indices(tokens, row.device), bias)
    if _bans_stopping(sequence):
        banned = [t for t in sequence.request.stopping.stop_token_ids if t < len(row)]
        row.index_fill_(0, indices(banned, row.device), -torch.inf)
    if sampling.penalises:
        _penalise(row, sequence, sampling)


def _penalise(row: Tensor, sequence: Sequence, sampling: Sampling) -> None:
    if sampling.repetition_penalty != 1.0:
        seen = upload(np.unique(np.array(sequence.tokens)), row.device)
        logits, penalty = row[seen], sampling.repetition_penalty
        row[seen] = torch.where(logits > 0, logits / penalty, logits * penalty)
    output = sequence.tokens[sequence.prompt_len :]
    if output and (sampling.presence_penalty or sampling.frequency_penalty):
        tokens, counts = np.unique(np.array(output), return_counts=True)
        penalties = sampling.presence_penalty + sampling.frequency_penalty * counts
        row[upload(tokens, row.device)] -= upload(penalties, row.device).to(row.dtype)


def _bans_stopping(sequence: Sequence) -> bool:
    stopping = sequence.request.stopping
    return sequence.output_len < stopping.min_tokens and bool(stopping.stop_token_ids)
