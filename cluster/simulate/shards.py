"""A simulated shard's face to the scheduler: which life it is, and what it has yet to report."""

from __future__ import annotations

from cluster.messages import ShardRef
from cluster.reports import ShardReport
from cluster.simulate.costs import Device
from cluster.simulate.engine import SimulatedEngine
from cluster.simulate.runs import Outcome
from cluster.simulate.workload import MODEL


class SimulatedShard:
    """An engine, and reports of its events numbered as the scheduler expects them."""

    def __init__(self, name: str, device: Device, page_tokens: int) -> None:
        self.ref = ShardRef(name, MODEL, name, "1")
        self.engine = SimulatedEngine(device, page_tokens)
        self.reported_at = 0.0
        self.is_reporting = False
        self.is_retired = False
        self._number = 0
        self._full = True
        self._started: list[str] = []
        self._ended: list[str] = []
        self._produced: list[int] = []

    @property
    def has_news(self) -> bool:
        return self._full or bool(self._started or self._ended)

    def enter(self, outcome: Outcome) -> None:
        self._started += [one.request_id for one in outcome.started]
        self._ended += [one.request_id for one in outcome.ended]
        self._produced += [one.offered.output_tokens for one in outcome.ended]

    def resync(self) -> None:
        """The scheduler doubts its books: the next report is a full one."""
        self._full = True

    def report(self, now: float) -> ShardReport:
        """All events since the last report."""
        self._number += 1
        pages = self.engine.pool.drain_events()
        report = ShardReport(
            shard=self.ref,
            number=self._number,
            capacity=self.engine.capacity,
            free_pages=self.engine.pool.available,
            started=tuple(self._started),
            ended=tuple(self._ended),
            stored=self.engine.pool.findable() if self._full else pages.stored,
            removed=() if self._full else pages.removed,
            full=self._full,
            held=self.engine.held() if self._full else (),
            produced=tuple(self._produced),
            prefilling=self.engine.drain_prefilling(),
        )
        self._full, self.reported_at, self.is_reporting = False, now, False
        self._started.clear()
        self._ended.clear()
        self._produced.clear()
        return report
