"""Chooses the next token of every row of a step's logits.

The draw is keyed: numbers from Philox with the request's seed as key and (output position, choice)
as counter, so a row's randomness depends on nothing but those three. They are turned into a token
by a race: of exponential times divided by probabilities the shortest wins (the Gumbel-max trick,
Maddison et al., 2014, arXiv:1411.0030). What is rounded otherwise in a crowd, or on another shard,
changes the winner only where two are all but equal, while the inverse of a cumulative distribution
has as many edges that shift as there are tokens. To run tens of thousands of times a draw would
take longer than the step: so groups of tokens race first, then the tokens of the one that won.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from numpy.typing import NDArray
from torch import Tensor

from actors.engine.flaws import NO_TOKEN
from actors.engine.logprobs import report
from actors.engine.penalties import adjust
from actors.engine.uploads import indices, upload
from cluster.messages import Sampling, TokenLogprob
from cluster.steps import Sequence

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy: dividing by it would only overflow."""

FIRST_WIDTH = 256
"""How many of the likeliest tokens are sorted before a nucleus is found not to fit in them.

At 16 rows of 49152: 1.5 ms for 256 of them, 27 ms for all.
"""


GROUP = 256
"""Tokens that race as one at first: about as many as there are groups."""


class Sampler:
    """Stateless between calls: the generator it holds is set anew for every draw."""

    def __init__(self) -> None:
        self._philox = np.random.Philox(key=0)
        self._state = self._philox.state

    def sample(
        self, logits: Tensor, sequences: Many[Sequence], places: Many[int]
    ) -> tuple[TokenLogprob, ...]:
        """A token of each of `sequences`; `logits` is `[len(sequences), vocab]`.

        Row `i` is for the token at `places[i]` of its sequence's output. It is NO_TOKEN where the
        sequence's numbers are not all finite, or banned, or none is left.
        Log probabilities are filled in only for sequences whose request asks for them.
        """
        if not sequences:
            return ()
        raw = logits.float()
        tokens = self._choose(adjust(raw, sequences), sequences, places)
        return _with_logprobs(raw, tokens, sequences)

    def _choose(self, logits: Tensor, sequences: Many[Sequence], places: Many[int]) -> list[int]:
        """All on the device of `logits`, and back in one transfer."""
        drawn = [row for row, sequence in enumerate(sequences) if not _is_greedy(sequence)]
        if len(drawn) == len(sequences):
            chosen = self._draw(logits, sequences, places)
        else:
            chosen = _likeliest(logits)
        if 0 < len(drawn) < len(sequences):
            rows = indices(drawn, logits.device)
            own = [sequences[row] for row in drawn], [places[row] for row in drawn]
            chosen[rows] = self._draw(logits[rows], *own)
        tokens: list[int] = chosen.tolist()
        return tokens

    def _draw(self, logits: Tensor, sequences: Many[Sequence], places: Many[int]) -> Tensor:
        """One token a row from the distribution left by temperature, top_k, top_p and min_p."""
        sampling = [sequence.request.sampling for sequence in sequences]
        temperatures = _column([s.temperature for s in sampling], logits)
        weights = _filter(torch.softmax(logits / temperatures, dim=-1), sampling)
        groups = _grouped(weights)
        masses = groups.sum(dim=-1)
        count = masses.shape[1]
        times = map(partial(self._times, count + GROUP), sequences, places)
        times_of = upload(np.stack(list(times)), logits.device).to(weights.dtype)
        group = (masses / times_of[:, :count]).argmax(dim=-1)
        own = groups[torch.arange(len(groups), device=groups.device), group]
        drawn = group * GROUP + (own / times_of[:, count:]).argmax(dim=-1)
        return torch.where(masses.sum(dim=-1) < torch.inf, drawn, NO_TOKEN)

    def _times(self, count: int, sequence: Sequence, place: int) -> NDArray[np.float64]:
        """Exponential times, above 0, that depend on (seed, output position, choice) alone."""
        inner = self._state["state"]
        inner["key"][:] = sequence.request.sampling.seed % 2**64, 0
        inner["counter"][:] = 0, place, sequence.choice, 0  # the first one counts the numbers
        self._philox.state = self._state
        uniforms = ((self._philox.random_raw(count) >> 11) + 0.5) * 2.0**-53
        times: NDArray[np.float64] = -np.log(uniforms)
        return times


def _grouped(weights: Tensor) -> Tensor:
    """`[rows, vocab]` as `[rows, groups, GROUP]`, the last group filled up with zeros."""
    short = -weights.shape[1] % GROUP
    return (F.pad(weights, (0, short)) if short else weights).view(len(weights), -1, GROUP)


def _is_greedy(sequence: Sequence) -> bool:
    return sequence.request.sampling.temperature < GREEDY_BELOW


def _likeliest(logits: Tensor) -> Tensor:
    """The largest of a row is no number where any is none, and infinite where any is, or all are
    banned: so it tells of all of them."""
    chosen = logits.argmax(dim=-1, keepdim=True)
    largest = logits.gather(1, chosen)
    return torch.where(largest.abs() < torch.inf, chosen, NO_TOKEN)[:, 0]


def _filter(probs: Tensor, sampling: Many[Sampling]) -> Tensor:
    """`probs` with zeros where top_k, then top_p, then min_p (as in transformers) cut.

    Tokens exactly as likely as the last one kept are kept with it: which of them came first would
    be an accident of sorting. The rows need not add up to one afterwards.
    """
    rows = [row for row, s in enumerate(sampling) if s.top_k > 0 or s.top_p < 1 or s.min_p > 0]
    if not rows:
        return probs
    floor = torch.zeros_like(probs[:, :1])
    index = indices(rows, probs.device)
    floor[index] = _floors(probs[index], [sampling[row] for row in rows])
    return probs.masked_fill(probs < floor, 0.0)


def _floors(probs: Tensor, sampling: Many[Sampling]) -> Tensor:
    """The smallest probability kept, `[rows, 1]`, sorting no more of the vocabulary than needed."""
    vocab = probs.shape[1]
    width = min(vocab, max(FIRST_WIDTH, *(s.top_k for s in sampling)))
    floors, known = _floors_within(probs, sampling, width)
    # The one question, of requests with a nucleus, for whose answer the host waits.
    unknown = [row for row, is_known in enumerate(known) if not is_known]
    if unknown:
        rows = indices(unknown, probs.device)
        floors[rows], _ = _floors_within(probs[rows], [sampling[row] for row in unknown], vocab)
    return floors


def _floors_within(
    probs: Tensor, sampling: Many[Sampling], width: int
) -> tuple[Tensor, list[bool]]:
    """The floors as the `width` likeliest tokens tell them, and for which rows that is right.

    A nucleus that the `width` likeliest do not fill goes on beyond them.
    """
    likeliest = probs.topk(width, dim=-1).values
    mass = likeliest.cumsum(dim=-1, dtype=torch.float64)
    last_k = _column([s.top_k if s.top_k > 0 else width for s in sampling], mass).long()
    last_k = last_k.clamp(max=width) - 1
    limited = _column([s.top_k > 0 for s in sampling], mass).bool()
    total = torch.where(limited, mass.gather(1, last_k), 1.0)
    # A token is in the nucleus while those before it have not filled it yet.
    filled = mass >= _column([s.top_p for s in sampling], mass) * total
    last_p = torch.where(filled, 0, 1).sum(dim=-1, keepdim=True)
    cuts = limited | _column([s.top_p < 1 for s in sampling], mass).bool()
    last = torch.minimum(last_k, last_p)
    floor = torch.where(cuts, likeliest.gather(1, last), 0.0)
    by_min_p = likeliest[:, :1] * _column([s.min_p for s in sampling], likeliest)
    known = ~cuts | limited | (last_p < width) | (width == probs.shape[1])
    return torch.maximum(floor, by_min_p), known[:, 0].tolist()


def _column(values: Many[float], like: Tensor) -> Tensor:
    return upload(np.asarray(values, dtype=np.float64), like.device).to(like.dtype)[:, None]


def _with_logprobs(
    raw: Tensor, tokens: list[int], sequences: Many[Sequence]
) -> tuple[TokenLogprob, ...]:
    asked = {row: s.request.sampling.logprobs for row, s in enumerate(sequences)}
    rows = [row for row, top in asked.items() if top is not None and tokens[row] != NO_TOKEN]
    if not rows:
        return tuple(TokenLogprob(token, 0.0) for token in tokens)
    most = max(asked[row] or 0 for row in rows)
    reports = dict(zip(rows, report(raw[rows], [tokens[row] for row in rows], most), strict=True))
    return tuple(_one(token, reports.get(row), asked[row]) for row, token in enumerate(tokens))


def _one(token: int, full: TokenLogprob | None, top: int | None) -> TokenLogprob:
    if full is None or top is None:
        return TokenLogprob(token, 0.0)
    return TokenLogprob(token, full.logprob, full.top[:top])
