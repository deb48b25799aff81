"""Where requests wait: bounded class queues, first come first served within a class."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from cluster.errors import LedgerBroken
from cluster.messages import Submission


@dataclass(frozen=True, slots=True)
class Waiting:
    """A submission in the queue; both times are readings of the scheduler's clock."""

    submission: Submission
    since: float
    deadline_at: float = math.inf


Lane = OrderedDict[str, Waiting]
"""One class of one model, oldest first. Ordered, since a plain dict is slow to pop in front."""


class ClassQueues:
    """For each model, its classes in strict order; each class is bounded over all models.

    A bound a class, not one for all, so that a flood of one class turns nobody else away. Models
    share no shards, so one model's head never blocks another's.
    """

    def __init__(self, classes: tuple[str, ...], max_queued: int) -> None:
        self._ranks = {name: rank for rank, name in enumerate(classes)}
        self._max_queued = max_queued
        self._lanes: dict[str, tuple[Lane, ...]] = {}
        self._where: dict[str, Lane] = {}
        self._depths = [0] * len(classes)

    def __len__(self) -> int:
        return len(self._where)

    def __iter__(self) -> Iterator[Waiting]:
        """All that wait: of each model in turn, next to be served first."""
        for lanes in self._lanes.values():
            for lane in lanes:
                yield from lane.values()

    def models(self) -> tuple[str, ...]:
        """The models that somebody waits for."""
        return tuple(self._lanes)

    def depths(self) -> dict[str, int]:
        return dict(zip(self._ranks, self._depths, strict=True))

    def is_full(self, sla: str) -> bool:
        return self._depths[self._ranks[sla]] >= self._max_queued

    def ahead(self, model: str, sla: str) -> int:
        """How many of `model` would be served before a new request of class `sla`."""
        lanes = self._lanes.get(model, ())
        return sum(len(lane) for lane in lanes[: self._ranks[sla] + 1])

    def get(self, request_id: str) -> Waiting | None:
        lane = self._where.get(request_id)
        return None if lane is None else lane[request_id]

    def head(self, model: str) -> Waiting | None:
        """Whose turn it is."""
        for lane in self._lanes.get(model, ()):
            for waiting in lane.values():
                return waiting
        return None

    def add(self, waiting: Waiting) -> None:
        """Append to its class; a request that waits there already keeps its turn."""
        submission = waiting.submission
        old = self.get(submission.request_id)
        if old is not None and _class_of(old.submission) != _class_of(submission):
            self.remove(submission.request_id)
        lane = self._of_model(submission.model)[self._ranks[submission.sla]]
        self._depths[self._ranks[submission.sla]] += submission.request_id not in lane
        self._where[submission.request_id] = lane
        lane[submission.request_id] = waiting

    def remove(self, request_id: str) -> Waiting | None:
        """Take it out, wherever it stands; None where it does not wait."""
        lane = self._where.pop(request_id, None)
        if lane is None:
            return None
        waiting = lane.pop(request_id)
        self._depths[self._ranks[waiting.submission.sla]] -= 1
        if not any(self._lanes[waiting.submission.model]):
            del self._lanes[waiting.submission.model]
        return waiting

    def _of_model(self, model: str) -> tuple[Lane, ...]:
        if model not in self._lanes:
            self._lanes[model] = tuple(OrderedDict() for _ in self._ranks)
        return self._lanes[model]

    def verify(self) -> None:
        """Raises LedgerBroken where the lanes, the depths and the register disagree."""
        counted = [sum(len(lanes[rank]) for lanes in self._lanes.values()) for rank in self._rows()]
        if counted != self._depths:
            raise LedgerBroken(f"queues: depths kept {self._depths}, counted {counted}")
        if sum(counted) != len(self._where):
            raise LedgerBroken(f"queues: {len(self._where)} registered, {sum(counted)} in lanes")
        astray = [key for key, lane in self._where.items() if key not in lane]
        if astray or not all(any(lanes) for lanes in self._lanes.values()):
            raise LedgerBroken(f"queues: not where registered: {astray}, or an empty model kept")

    def _rows(self) -> range:
        return range(len(self._ranks))


def _class_of(submission: Submission) -> tuple[str, str]:
    return submission.model, submission.sla
