"""When a model may sleep, which is to have no shard, and with how many shards it wakes."""

from __future__ import annotations

import math

from cluster.autoscaling_config import AutoscalingConfig
from cluster.stats import ModelStats


class Interest:
    """Whether somebody wanted the model lately: had a request in hand, or asked between two looks.

    A shard that begins to serve counts too, or one that is woken would be given up before who
    could not wait for it comes back.
    """

    def __init__(self, idle_s: float, asleep: bool) -> None:
        """What is not `asleep` is wanted as of the first look."""
        self._idle_s = idle_s
        self._at = -math.inf if asleep else None
        self._last: ModelStats | None = None

    def note(self, stats: ModelStats, now: float) -> None:
        last, self._last = self._last, stats
        came = last is not None and (stats.shards > last.shards or _asked_between(last, stats))
        if self._at is None or stats.in_hand or came:
            self._at = now

    def is_gone(self, now: float) -> bool:
        """Whether nobody wanted it for `idle_s`."""
        return self._at is not None and now - self._at >= self._idle_s


def _asked_between(last: ModelStats, stats: ModelStats) -> bool:
    """Counters that went back are of a scheduler that began since, and have begun at zero."""
    restarted = stats.granted < last.granted or stats.asked_in_vain < last.asked_in_vain
    since = ModelStats() if restarted else last
    return stats.granted > since.granted or stats.asked_in_vain > since.asked_in_vain


def to_begin_with(queued: int, places: int, config: AutoscalingConfig) -> int:
    """Shards, each with so many `places`, for those who wait where none is; at most `growth`.

    How long they will keep a place is not known, so all are to have one at once.
    """
    asked = queued / (places * config.target_utilization)
    return max(1, math.ceil(min(asked, config.growth) - 1e-9))
