"""Whether a sequence's pages are fetched from the shard that leaves, or computed again.

Pages are named by their chained hashes, so what one shard has computed is exactly what another
would. Fetching costs a round trip and the time that the bytes take; computing costs the time of a
prefill. Both are measured where they are paid. The first fetch over a link is made to measure it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cluster.blocks import page_hashes
from cluster.messages import Assignment, PageHash
from cluster.rates import BusyRate

FIRST_TRIP_S = 0.01
"""What a fetch is taken to cost beside its bytes: two calls, and a turn of either engine."""

FIRST_BYTES_PER_S = 5e8
"""What a link is taken to carry before anything came over it."""

FIRST_TOKENS_PER_S = 1000.0
"""How fast prompts are taken to be computed before one was."""

TRIAL_BYTES = 8 * 2**20
"""At most in the first parcel over a link that was not measured: enough to tell how fast it is."""

FORGET_S = 60.0
"""A link measured longer ago is tried again: whoever fetches nothing would never measure anew, and
one bad moment would end all fetching."""

SHORTEST_S, LONGEST_S = 0.5, 10.0
"""Bounds of how long all that one request fetches may take."""


def wanted_pages(assignment: Assignment, block_size: int) -> tuple[PageHash, ...]:
    """The full pages of all that is known of the request, each once, and before each all that it
    follows on.

    At least one token of each choice is left to compute, since only computing gives logits. Who is
    owed log probabilities of its prompt computes all of it, so no page is of use to it.
    """
    request, outputs = assignment.request, assignment.outputs()
    if request.sampling.prompt_logprobs is not None and outputs.get(0) == ():
        return ()
    wanted: dict[PageHash, None] = {}
    for output in outputs.values():
        known = request.prompt + output
        usable = (len(known) - 1) // block_size * block_size
        wanted.update(dict.fromkeys(page_hashes(known[:usable], block_size, assignment.salt)))
    return tuple(wanted)


@dataclass(frozen=True, slots=True)
class PageSize:
    """What one page is, in tokens and in bytes."""

    tokens: int
    nbytes: int


class Link:
    """What fetching takes: a straight line through what fetches took, seconds over bytes.

    Weighted least squares, neither trip nor slope below zero. Each fetch makes those before it
    count for less by a fifth; two points that were never measured make up the guess that it starts
    from, and keep the line defined.
    """

    _KEPT = 0.8
    _GUESS = 0.001
    _FAR = 64 * 2**20

    def __init__(self) -> None:
        far_s = FIRST_TRIP_S + self._FAR / FIRST_BYTES_PER_S
        near, far = _sums(0, FIRST_TRIP_S), _sums(self._FAR, far_s)
        self._guess = _plus(_plus(_NONE, near, self._GUESS), far, self._GUESS)
        self._measured = _NONE

    def record(self, nbytes: int, took_s: float) -> None:
        self._measured = _plus(_sums(nbytes, took_s), self._measured, self._KEPT)

    def seconds(self, nbytes: int) -> float:
        """How long it takes to fetch so many bytes; never less for more of them."""
        points, x, y, xx, xy = _plus(self._measured, self._guess)
        slope = max(0.0, (points * xy - x * y) / (points * xx - x * x))
        trip_s = (y - slope * x) / points
        return trip_s + slope * nbytes if trip_s > 0 else xy / xx * nbytes


_NONE: tuple[float, ...] = (0.0,) * 5


def _sums(x: float, y: float) -> tuple[float, ...]:
    return 1.0, x, y, x * x, x * y


def _plus(
    one: tuple[float, ...], other: tuple[float, ...], weight: float = 1.0
) -> tuple[float, ...]:
    return tuple(a + weight * b for a, b in zip(one, other, strict=True))


class Worth:
    """The rule: fetch where that is quicker than to compute, and where nobody knows. `now` is a
    reading of one clock, s.

    What was fetched counts for less with each fetch, what was computed with the time that passes in
    computing.
    """

    def __init__(self) -> None:
        self._link = Link()
        self._prefill = BusyRate()
        self._tried_at = -math.inf

    def fetched(self, nbytes: int, took_s: float, now: float) -> None:
        """So many bytes came in so many seconds, round trip included."""
        self._refresh(now)
        self._tried_at = now
        self._link.record(nbytes, took_s)

    def gave_up(self, nbytes: int, after_s: float, now: float) -> None:
        """So many bytes had not come by then. Of a link that need not have brought them yet, that
        says nothing."""
        self._refresh(now)
        if after_s > self._link.seconds(nbytes):
            self.fetched(nbytes, after_s, now)

    def prefilled(self, tokens: int, seconds: float) -> None:
        """So many tokens of prompts were computed in so many seconds."""
        self._prefill.record(tokens, seconds)

    def pays(self, pages: int, size: PageSize, now: float) -> bool:
        """Whether to fetch so many pages is quicker than to compute them, or has to be tried."""
        if not self._is_known(now):
            return pages > 0
        return pages > 0 and self._link.seconds(pages * size.nbytes) < self._compute_s(pages, size)

    def at_once(self, nbytes: int, size: PageSize, now: float) -> int:
        """Pages in the next parcel, of `nbytes` at most: a trial is small."""
        most = nbytes if self._is_known(now) else min(nbytes, TRIAL_BYTES)
        return max(1, most // size.nbytes)

    def patience_s(self, pages: int, size: PageSize) -> float:
        """How long to wait for them: twice what computing takes, within bounds. By then it would
        have been better not to ask."""
        return min(max(2.0 * self._compute_s(pages, size), SHORTEST_S), LONGEST_S)

    def _compute_s(self, pages: int, size: PageSize) -> float:
        return pages * size.tokens / (self._prefill.per_second or FIRST_TOKENS_PER_S)

    def _is_known(self, now: float) -> bool:
        return now - self._tried_at <= FORGET_S

    def _refresh(self, now: float) -> None:
        if not self._is_known(now):
            self._link = Link()
