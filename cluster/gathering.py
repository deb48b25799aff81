"""For which models requests gather at this moment: the windows of all."""

from __future__ import annotations

import math

from cluster.leases import LeaseBook
from cluster.scheduling_config import SchedulingConfig
from cluster.windows import GatheringWindow


class Gathering:
    """Whether who comes waits for others to come, model by model."""

    def __init__(self, config: SchedulingConfig, leases: LeaseBook) -> None:
        self._min_s = config.gather_min_s
        self._max_s = config.gather_max_s
        self._leases = leases
        self._windows: dict[str, GatheringWindow] = {}

    def arrive(self, model: str, now: float) -> bool:
        """A request came; whether it waits for others."""
        if not self._max_s:
            return False
        window = self._windows.get(model)
        if window is None:
            window = self._windows[model] = GatheringWindow(self._min_s, self._max_s)
        window.arrive(self._leases.serving(model).wait_s(), now)
        return window.holds(now)

    def closes(self, model: str, now: float) -> bool:
        """Whether the newest arrival was the last that its window waited for."""
        window = self._windows.get(model)
        return window is not None and window.closes_at == now

    def holds(self, model: str, now: float) -> bool:
        """Whether those who wait shall wait on: not where a shard could begin with them at once."""
        window = self._windows.get(model)
        return bool(window and window.holds(now) and self._leases.serving(model).wait_s())

    def started(self, model: str, ttft_s: float, now: float) -> None:
        """A first output came so long after its request."""
        window = self._windows.get(model)
        if window is not None:
            window.started(ttft_s, now)

    def next_close(self, now: float) -> float:
        """When the next window closes by time alone; infinite where none is open."""
        return min([w.closes_at for w in self._windows.values() if w.holds(now)], default=math.inf)
