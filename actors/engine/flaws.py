"""Why a chunk came to nothing: logits that are not finite, and whose doing that is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from cluster.errors import InvalidRequest, NotFinite, ShoalError
from cluster.lookup import confirmed
from cluster.messages import TokenLogprob
from cluster.steps import Chunk

NO_TOKEN = -1
"""Stands where a token would, in a row from which none can be chosen."""


def unsampled(
    logits: Tensor, chunks: Mapping[int, Chunk], sampled: Sequence[tuple[TokenLogprob, ...]]
) -> Iterator[tuple[int, ShoalError]]:
    """Which of `chunks`, by number, have no next token, and why.

    `logits` has a row for each that was `sampled`. What comes after a guess that was wrong does
    not matter.
    """
    row = 0
    for (number, chunk), rows in zip(chunks.items(), sampled, strict=True):
        if any(one.token == NO_TOKEN for one in rows):
            known = list(confirmed(chunk.guesses, rows))
            if known[-1].token == NO_TOKEN:
                yield number, _flaw(logits[row + len(known) - 1], chunk)
        row += len(rows)


def unscored(
    chunks: Mapping[int, Chunk], scores: Sequence[tuple[TokenLogprob, ...]]
) -> Iterator[tuple[int, ShoalError]]:
    """Which of `chunks`, by number, have prompt tokens whose probability is no number."""
    for (number, chunk), given in zip(chunks.items(), scores, strict=True):
        if any(math.isnan(one.logprob) for one in given):
            yield number, _not_finite(chunk)


def unsound(logits: Tensor, chunks: Mapping[int, Chunk]) -> Iterator[tuple[int, ShoalError]]:
    """Which of `chunks`, by number, wrote KV that nobody may read.

    `logits` has a row for each: that of its last token, which sees all others.
    """
    if not chunks:
        return
    largest = logits.amax(dim=-1).tolist()
    for (number, chunk), one in zip(chunks.items(), largest, strict=True):
        if not math.isfinite(one):
            yield number, _not_finite(chunk)


def _flaw(row: Tensor, chunk: Chunk) -> ShoalError:
    """`row` is the model's own: it may be finite, and what the request wants of it not."""
    # The largest of all is finite where some number is, and none is infinite or no number.
    if not math.isfinite(float(row.max())):
        return _not_finite(chunk)
    return InvalidRequest(
        "logit_bias, penalties, temperature and stop tokens together leave no token to choose"
    )


def _not_finite(chunk: Chunk) -> NotFinite:
    return NotFinite(
        f"request {chunk.sequence.request.request_id} cannot be computed: after"
        f" {chunk.start + chunk.count} tokens the model's numbers overflow or are none"
    )
