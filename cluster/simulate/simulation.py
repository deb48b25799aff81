"""The virtual clock: requests, decisions, steps and reports as events in order of time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from cluster.errors import LedgerBroken
from cluster.events import (
    Acknowledge,
    Event,
    Instruction,
    Reported,
    ShardGone,
    Submitted,
    Tell,
    Ticked,
)
from cluster.messages import Decision, Lease, RefusalKind
from cluster.reports import ShardReport
from cluster.simulate.runs import Run
from cluster.simulate.shards import SimulatedShard
from cluster.simulate.workload import Offered


class Decider(Protocol):
    """Whoever decides which shard serves what: the scheduler's brain, or a baseline."""

    def handle(self, event: Event, now: float) -> tuple[Instruction, ...]: ...

    def wake_at(self) -> float:
        """When it wants to be told that time has passed, at the latest."""
        ...

    def verify(self) -> None:
        """Raises LedgerBroken where its books do not add up."""
        ...


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, as the real actors take them: a message's way, the least time between two reports of
    a shard, its longest silence, and the longest sleep of the scheduler.

    What is not over `drain_s` after the last arrival counts as missed.
    """

    hop_s: float = 0.001
    gap_s: float = 0.02
    heartbeat_s: float = 1.0
    idle_tick_s: float = 0.5
    drain_s: float = 600.0


@dataclass(slots=True, eq=False)
class Story:
    """What became of one request: served to its end, refused, or neither by the end of time.

    Times are the client's: a token is there one message after the step that made it.
    """

    offered: Offered
    first_at: float = math.inf
    ended_at: float = math.inf
    cached_tokens: int = 0
    refusal: RefusalKind | None = None
    retry_after_s: float = 0.0

    @property
    def ttft_s(self) -> float:
        return self.first_at - self.offered.arrival_s

    @property
    def tpot_s(self) -> float:
        """Mean time of an output token after the first; 0 where there is only one."""
        further = self.offered.output_tokens - 1
        return (self.ended_at - self.first_at) / further if further else 0.0

    @property
    def is_served(self) -> bool:
        return self.ended_at < math.inf


class Simulation:
    """One load on one cluster under one decider; `run` it once.

    `stopwatch` reads the CPU time in seconds, for what decisions take of it.
    """

    def __init__(
        self,
        load: Sequence[Offered],
        shards: Sequence[SimulatedShard],
        decider: Decider,
        timing: Timing,
        stopwatch: Callable[[], float],
    ) -> None:
        self.stories = {one.submission.request_id: Story(one) for one in load}
        self.decider_s = 0.0
        self.decisions = 0
        self._shards = {shard.ref.shard: shard for shard in shards}
        self._decider = decider
        self._timing = timing
        self._stopwatch = stopwatch
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._numbers = count()
        self._now = 0.0
        self._timer_at = math.inf
        self._open = len(load)
        self._ends_at = max(one.arrival_s for one in load) + timing.drain_s

    def run(self) -> None:
        """Until every request is over, or the time is."""
        for shard in list(self._shards.values()):
            self.join(shard)
        for story in self.stories.values():
            arrival_s = story.offered.arrival_s + self._timing.hop_s
            self._at(arrival_s, self._submit, story.offered)
        while self._open and self._now < self._ends_at:
            self._now, _, act, subject = heapq.heappop(self._heap)
            act(subject)

    def join(self, shard: SimulatedShard) -> None:
        """From now on it serves."""
        self._shards[shard.ref.shard] = shard
        self._decide(Reported(shard.report(self._now)))
        self._at(self._now + self._timing.heartbeat_s, self._beat, shard)

    def retire(self, shard: SimulatedShard) -> None:
        """It gets no more leases and is not heard of any more; what it has it serves to the end."""
        shard.is_retired = True
        self._decide(ShardGone(shard.ref))

    def call(self, when: float, act: Callable[[float], None]) -> None:
        """Have `act` called at that time, with the time."""
        self._at(when, act, when)

    def verify(self) -> None:
        """Raises LedgerBroken where a request ended twice, or somebody's books do not add up."""
        self._decider.verify()
        for shard in self._shards.values():
            shard.engine.verify()
        twice = [one for one in self.stories.values() if one.refusal and one.first_at < math.inf]
        over = sum(bool(one.is_served or one.refusal) for one in self.stories.values())
        if twice or over + self._open != len(self.stories):
            raise LedgerBroken(
                f"{len(self.stories)} offered: {over} over, {self._open} open,"
                f" {len(twice)} both refused and served"
            )

    def _at(self, when: float, act: Callable[[Any], None], subject: object) -> None:
        heapq.heappush(self._heap, (when, next(self._numbers), act, subject))

    def _submit(self, offered: Offered) -> None:
        self._decide(Submitted(offered.submission))

    def _wake(self, due_at: float) -> None:
        """Unless an earlier timer was set since, which sets the next itself."""
        if due_at == self._timer_at:
            self._timer_at = math.inf
            self._decide(Ticked())

    def _set_timer(self) -> None:
        latest = self._now + self._timing.idle_tick_s
        due_at = min(max(self._decider.wake_at(), self._now), latest)
        if due_at < self._timer_at:
            self._timer_at = due_at
            self._at(due_at, self._wake, due_at)

    def _decide(self, event: Event) -> None:
        started = self._stopwatch()
        instructions = self._decider.handle(event, self._now)
        self._set_timer()
        self.decider_s += self._stopwatch() - started
        for instruction in instructions:
            match instruction:
                case Tell(_, decision):
                    self._told(decision)
                case Acknowledge(shard, ack):
                    if ack.resync:
                        self._shards[shard.shard].resync()

    def _told(self, decision: Decision) -> None:
        """The lease goes by way of the door to the shard; a refusal ends the request."""
        self.decisions += 1
        if isinstance(decision, Lease):
            self._at(self._now + 2 * self._timing.hop_s, self._assign, decision)
            return
        story = self.stories[decision.request_id]
        story.refusal, story.retry_after_s = decision.kind, decision.retry_after_s
        self._open -= 1

    def _assign(self, lease: Lease) -> None:
        shard = self._shards[lease.shard.shard]
        run = shard.engine.run
        steps = run.steps if run else 0
        offered, promises = self.stories[lease.request_id].offered, (lease.tpot_s, lease.ttft_s)
        shard.engine.admit(offered, self._now, lease.rank, *promises)
        if run is None:
            self._begin(shard)
        elif run.steps < steps:
            self._at(run.end_s, self._stepped, (shard, run, run.steps))

    def _begin(self, shard: SimulatedShard) -> None:
        run = shard.engine.begin(self._now)
        if run is not None:
            self._at(run.end_s, self._stepped, (shard, run, run.steps))

    def _stepped(self, ended: tuple[SimulatedShard, Run, int]) -> None:
        """The end of a run, unless it was shortened since this end was foreseen."""
        shard, run, steps = ended
        if shard.engine.run is not run or run.steps != steps:
            return
        outcome = shard.engine.finish()
        heard_at = self._now + self._timing.hop_s
        for one in outcome.started:
            story = self.stories[one.request_id]
            story.first_at, story.cached_tokens = heard_at, one.cached or 0
        for one in outcome.ended:
            self.stories[one.request_id].ended_at = heard_at
            self._open -= 1
        shard.enter(outcome)
        self._begin(shard)
        self._arrange_report(shard)

    def _arrange_report(self, shard: SimulatedShard) -> None:
        if shard.has_news and not shard.is_reporting:
            shard.is_reporting = True
            leaves_at = max(self._now, shard.reported_at + self._timing.gap_s)
            self._at(leaves_at, self._report, shard)

    def _report(self, shard: SimulatedShard) -> None:
        self._at(self._now + self._timing.hop_s, self._hear, shard.report(self._now))

    def _hear(self, report: ShardReport) -> None:
        if not self._shards[report.shard.shard].is_retired:
            self._decide(Reported(report))

    def _beat(self, shard: SimulatedShard) -> None:
        """A shard with nothing to say says that it lives."""
        if shard.is_retired:
            return
        due_at = shard.reported_at + self._timing.heartbeat_s
        if due_at <= self._now and not shard.is_reporting:
            self._report(shard)
            due_at = self._now + self._timing.heartbeat_s
        self._at(max(due_at, self._now + self._timing.gap_s), self._beat, shard)
