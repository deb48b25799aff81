"""How fast something works while it has work: the measure behind every prediction."""

from __future__ import annotations

import math

INSTANT_S = 1e-6
"""What happens within it tells nothing of a rate."""


class BusyRate:
    """Tokens per second of busy time, the older weighing exponentially less.

    Only time with work counts, since an idle system drains nothing however fast it is. `tau_s` is
    the time constant in busy seconds.
    """

    __slots__ = ("_busy_s", "_tau_s", "_tokens")

    def __init__(self, tau_s: float = 10.0) -> None:
        self._tau_s = tau_s
        self._tokens = 0.0
        self._busy_s = 0.0

    def record(self, tokens: float, busy_s: float) -> None:
        """So many tokens were done in so many seconds with work."""
        kept = math.exp(-busy_s / self._tau_s)
        self._tokens = self._tokens * kept + tokens
        self._busy_s = self._busy_s * kept + busy_s

    @property
    def per_second(self) -> float | None:
        """None while nothing was measured, or for no more than an instant."""
        if self._busy_s > INSTANT_S and self._tokens > 0:
            return self._tokens / self._busy_s
        return None
