"""How long requests gather before they are placed: nothing while idle, little while busy."""

from __future__ import annotations

import math

from cluster.measures import RecentSeconds
from cluster.rates import BusyRate

PERIOD_S = 5.0
"""Between two judgements whether more gathering would pay."""

STEP = 0.25
"""By how much of the most that is sensible a judgement changes the window."""

WORSE = 1.05
"""A p99 above so many times the last one is worse; percentiles are no more accurate than that."""

ENOUGH = 20
"""First outputs that a period needs to be judged by."""


class GatheringWindow:
    """Holds arrivals of one model back while no shard could begin with them anyway.

    Whoever would wait at its shard for prompts in front of it loses nothing by waiting here, where
    an urgent request can still pass it and a better shard may turn up. So the window is a part of
    the wait at the least loaded shard, between `min_s` and `max_s`, and nothing while that shard
    has no prompt to compute. Which part is found by hill climbing on the measured p99 of the time
    to the first output. It closes early once as many have gathered as arrive in `max_s`.
    """

    def __init__(self, min_s: float, max_s: float) -> None:
        self._min_s = min_s
        self._max_s = max_s
        self._part = 0.5
        self._direction = STEP
        self._arrivals = BusyRate(tau_s=1.0)
        self._arrived_at: float | None = None
        self._ttft = RecentSeconds(span_s=PERIOD_S)
        self._last_p99: float | None = None
        self._judged_at = 0.0
        self._closes_at = -math.inf
        self._gathered = 0

    @property
    def closes_at(self) -> float:
        """When what has gathered is placed."""
        return self._closes_at

    @property
    def cap(self) -> int:
        """As many as arrive in the longest window; one is enough where few arrive."""
        return max(1, math.floor((self._arrivals.per_second or 0.0) * self._max_s))

    def length_s(self, wait_s: float) -> float:
        """For arrivals that would wait `wait_s` at their shard."""
        if not wait_s:
            return 0.0
        return min(max(self._part * wait_s, self._min_s), self._max_s)

    def arrive(self, wait_s: float, now: float) -> None:
        """A request came; the first one opens the window, the last that fits closes it."""
        if self._arrived_at is not None:
            self._arrivals.record(1, now - self._arrived_at)
        self._arrived_at = now
        if now >= self._closes_at:
            self._gathered, self._closes_at = 0, now + self.length_s(wait_s)
        self._gathered += 1
        if self._gathered >= self.cap:
            self._closes_at = min(self._closes_at, now)

    def holds(self, now: float) -> bool:
        """Whether those who wait shall wait for others to come."""
        return now < self._closes_at

    def started(self, ttft_s: float, now: float) -> None:
        """A first output came so long after its request: the measure of whether gathering pays."""
        self._ttft.record(ttft_s, now)
        if now - self._judged_at >= PERIOD_S:
            self._judge(now)

    def _judge(self, now: float) -> None:
        """Go on in the direction that has not made the p99 worse, or turn round."""
        measured = self._ttft.percentiles(now)
        if measured.p99 is None or measured.count < ENOUGH:
            return
        if self._last_p99 is not None and measured.p99 > self._last_p99 * WORSE:
            self._direction = -self._direction
        self._part = min(max(self._part + self._direction, 0.0), 1.0)
        self._last_p99, self._judged_at = measured.p99, now
