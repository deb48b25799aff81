"""How many prompt tokens of lower classes a step may hold, so that streams keep their pace."""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST = 32
"""Tokens that lower classes may always have in a step, so that they move on."""

GROWTH = 1.25
"""A step that was quick enough with all that was allowed lets the next hold so much more."""

WEIGHT = 0.2
"""Of the newest step in the mean of bare ones."""

FADE = 0.99
"""What remains of that mean a step without a bare one: what is not seen again is not believed."""


@dataclass(slots=True)
class Allowance:
    """The `tokens` that classes below `guarded` may have of one step, and have `used` of them.

    A stream of that class is in the step, and its target is `target_s`; without one all are equal.
    """

    tokens: int
    guarded: float = math.inf
    target_s: float = math.inf
    used: int = 0

    def guard(self, rank: int, tpot_s: float | None) -> None:
        """A stream is in the step; of those that have a target, the strictest is kept."""
        if tpot_s is not None and tpot_s < self.target_s:
            self.target_s, self.guarded = tpot_s, rank

    @property
    def left(self) -> int:
        return self.tokens - self.used

    @property
    def is_spent(self) -> bool:
        """Whether it may have held somebody back."""
        return self.used > 0 and self.left <= 0


class Pace:
    """An allowance that follows the clock: less after a step that took too long, else more.

    The allowance moves by what was measured and knows no model of the device: a step longer than
    its streams' target cuts it in proportion, by a half at most, since one slow step may have had
    another reason. Where steps miss the target bare of lower classes, too, cutting would cost them
    their pace and give nobody his: then it grows.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._allowed = most
        self._bare_s: float | None = None

    def allowance(self) -> Allowance:
        """Of the next step, beside streams that have a target."""
        return Allowance(self._allowed)

    def record(self, tokens: int, target_s: float, took_s: float) -> None:
        """A step with so many tokens of lower classes, beside streams of this target, is over."""
        self._learn(tokens, took_s)
        in_vain = self._bare_s is not None and self._bare_s > target_s
        if tokens and took_s > target_s and not in_vain:
            cut = min(tokens, self._allowed) * max(0.5, target_s / took_s)
            self._allowed = max(int(cut), self._allowed // 2, min(LEAST, self._most))
        elif tokens >= self._allowed:
            self._allowed = min(int(self._allowed * GROWTH) + 1, self._most)

    def _learn(self, tokens: int, took_s: float) -> None:
        """What a step takes with hardly a token of lower classes in it."""
        if tokens <= LEAST:
            mean = took_s if self._bare_s is None else self._bare_s
            self._bare_s = mean + WEIGHT * (took_s - mean)
        elif self._bare_s is not None:
            self._bare_s *= FADE
