"""How many prompt tokens a step may hold, where lower classes stand back for it to be short."""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST = 32
"""Tokens that lower classes may always have in a step, so that they move on."""

WORTHWHILE = 128
"""Prompt tokens below which no prompt waits for a step that spares it fewer (`coming`). Both
devices of `simulate/costs.py` read the weights in the time of one to two hundred tokens, and the
size of the model changes little in that: such a step would hardly be shorter without them."""

SHORTEST = WORTHWHILE // 2
"""Prompt tokens below which no step is cut for who may come: with fewer, most of it would be the
weights' time, and prompts would lose more than who comes would gain."""

GROWTH = 1.25
"""A step that was quick enough with all that was allowed lets the next hold so much more."""

WEIGHT = 0.2
"""Of the newest step in the mean of bare ones."""

FADE = 0.99
"""What remains of that mean a step without a bare one: what is not seen again is not believed."""


@dataclass(slots=True)
class Allowance:
    """The `tokens` of prompts that one step may hold, as far as classes below `guarded` go.

    The step is not to take longer than `target_s`; without a target all classes are equal. Prompts
    of the others are not bound, but they take time as well, so of all that is `held` what is not
    `lower` leaves less for that: LEAST, if nothing else.
    """

    tokens: int
    guarded: float = math.inf
    target_s: float = math.inf
    held: int = 0
    lower: int = 0

    def guard(self, rank: int, target_s: float | None) -> None:
        """For this class a step is to take no longer; of several targets the strictest is kept."""
        if target_s is not None and target_s < self.target_s:
            self.target_s, self.guarded = target_s, rank

    def take(self, rank: int, count: int) -> None:
        """A prompt of this class has so many tokens in the step."""
        self.held += count
        if rank > self.guarded:
            self.lower += count

    def allow(self, rank: int, wanted: int) -> int:
        """How many of `wanted` tokens a prompt of this class may have."""
        return min(wanted, self.left) if rank > self.guarded else wanted

    @property
    def left(self) -> int:
        """Of lower classes."""
        return max(self.tokens - self.held, LEAST - self.lower, 0)


class Pace:
    """An allowance that follows the clock: less after a step that took too long, else more.

    The allowance moves by what was measured and knows no model of the device: a step longer than
    its target cuts it in proportion, by a half at most, since one slow step may have had another
    reason, and to no less than `least`. Whose tokens they were makes no difference to the time: one
    that a higher class made long is cut by all that it held, which is seldom less than is allowed
    anyway. Only steps with some of lower classes count, since nobody else is bound. It begins with
    `least`, as what steps take is not known before the first.
    """

    def __init__(self, most: int, least: int) -> None:
        self._most = most
        self._least = min(least, most)
        self._allowed = self._least

    def allowance(self) -> Allowance:
        """Of the next step, until it is said whom it guards."""
        return Allowance(self._allowed)

    def learn(self, step: Allowance, took_s: float) -> None:
        """The step that had this allowance is over."""
        if step.lower:
            self._follow(step.held, step.target_s, took_s)

    def _follow(self, tokens: int, target_s: float, took_s: float) -> None:
        if took_s > target_s:
            cut = min(self._allowed, int(tokens * max(0.5, target_s / took_s)))
            self._allowed = max(cut, self._allowed // 2, self._least)
        elif tokens >= self._allowed:
            self._allowed = min(int(self._allowed * GROWTH) + 1, self._most)


class StreamPace(Pace):
    """A pace that streams in the step are promised.

    Where steps miss the target bare of prompts, too, cutting would cost the others their pace and
    give nobody his: then it grows. (Who may come, on the other hand, gains by any shorter step.)
    """

    def __init__(self, most: int) -> None:
        super().__init__(most, LEAST)
        self._allowed = most  # who streams has the first steps behind it
        self._bare_s: float | None = None

    def learn(self, step: Allowance, took_s: float) -> None:
        """What a step takes with hardly a prompt token in it is learned from all steps."""
        if step.held <= LEAST:
            mean = took_s if self._bare_s is None else self._bare_s
            self._bare_s = mean + WEIGHT * (took_s - mean)
        elif self._bare_s is not None:
            self._bare_s *= FADE
        super().learn(step, took_s)

    def _follow(self, tokens: int, target_s: float, took_s: float) -> None:
        in_vain = self._bare_s is not None and self._bare_s > target_s
        super()._follow(tokens, math.inf if in_vain else target_s, took_s)
