"""When those who wait will have waited too long."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from cluster.lanes import Waiting
from cluster.queues import FairQueues

SLACK = 64


class Expiries:
    """A heap of times; who left the queue stays in it until he is swept out or his time comes."""

    def __init__(self, queues: FairQueues) -> None:
        self._queues = queues
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_at(self) -> float:
        """When somebody's time may be up; infinite where nobody's is."""
        return self._heap[0][0] if self._heap else math.inf

    def note(self, waiting: Waiting) -> None:
        """It stands in the queue now. Those that left, or were noted before, are swept out before
        they outnumber the others.
        """
        heapq.heappush(self._heap, (waiting.expires_at, waiting.submission.request_id))
        if len(self._heap) > SLACK + 2 * len(self._queues):
            self._heap = [(one.expires_at, one.submission.request_id) for one in self._queues]
            heapq.heapify(self._heap)

    def due(self, now: float) -> Iterator[Waiting]:
        """Those in the queue whose time may be up; each is told once."""
        while self.next_at <= now:
            _, request_id = heapq.heappop(self._heap)
            waiting = self._queues.get(request_id)
            if waiting is not None:
                yield waiting
