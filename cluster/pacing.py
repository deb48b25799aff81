"""How many prompt tokens of lower classes a step may hold, so that streams keep their pace."""

from __future__ import annotations

LEAST = 32
"""Tokens that lower classes may always have in a step, so that they move on."""

GROWTH = 1.25
"""A step that was quick enough with all that was allowed lets the next hold so much more."""


class Pace:
    """An allowance that follows the clock: less after a step that took too long, else more.

    The allowance moves by what was measured and knows no model of the device: a step longer than
    its streams' target cuts it in proportion, by a half at most, since one slow step may have had
    another reason.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._allowed = most

    @property
    def allowed(self) -> int:
        """Tokens beside streams that have a target."""
        return self._allowed

    def record(self, tokens: int, target_s: float, took_s: float) -> None:
        """A step with so many tokens of lower classes, beside streams of this target, is over."""
        if tokens and took_s > target_s:
            cut = min(tokens, self._allowed) * max(0.5, target_s / took_s)
            self._allowed = max(int(cut), min(LEAST, self._most))
        elif tokens >= self._allowed:
            self._allowed = min(int(self._allowed * GROWTH) + 1, self._most)
