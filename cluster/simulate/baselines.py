"""The policies to compare with: routers that send each request on at once, as today's peers do.

They keep no queue of their own; requests wait in the shard's line, in order of arrival. They keep
their books by what they see themselves, as an in-process router does: a lease is charged when it is
given, its prompt until the first token, its place until its end.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

from cluster.errors import LedgerBroken
from cluster.events import Acknowledge, Event, Instruction, Reported, Submitted, Tell
from cluster.messages import Lease, Reason, Refusal, RefusalKind, ShardRef, Submission
from cluster.prefixes import PrefixIndex
from cluster.reports import ReportAck, ShardCapacity, ShardReport
from cluster.scheduling_config import SchedulingConfig

EPOCH = 1

DECODE_TOKENS = 64
"""What a running sequence weighs beside a prompt; the brain's own default."""


@dataclass(slots=True, eq=False)
class Target:
    """A shard as a router sees it; `prefill` has the tokens of each request not yet started."""

    ref: ShardRef
    capacity: ShardCapacity
    prefill: dict[str, int] = field(default_factory=dict)
    requests: set[str] = field(default_factory=set)
    prefill_tokens: int = 0
    grants: int = 0

    def charge(self, request_id: str, tokens: int) -> None:
        self.prefill[request_id] = tokens
        self.prefill_tokens += tokens
        self.requests.add(request_id)
        self.grants += 1

    def started(self, request_id: str) -> None:
        self.prefill_tokens -= self.prefill.pop(request_id, 0)

    def ended(self, request_id: str) -> None:
        self.started(request_id)
        self.requests.discard(request_id)


class DirectRouter(ABC):
    """Chooses a shard the moment a request comes; a subclass says which."""

    def __init__(self, config: SchedulingConfig) -> None:
        self._targets: dict[str, Target] = {}

    def handle(self, event: Event, now: float) -> tuple[Instruction, ...]:
        match event:
            case Submitted(submission):
                return (self._route(submission),)
            case Reported(report):
                self._settle(report)
                return (Acknowledge(report.shard, ReportAck(EPOCH, resync=False)),)
        return ()

    def wake_at(self) -> float:
        """Never: it has nothing to wait for."""
        return math.inf

    def verify(self) -> None:
        """Raises LedgerBroken where a sum kept along the way differs from one made afresh."""
        for target in self._targets.values():
            if target.prefill_tokens != sum(target.prefill.values()):
                raise LedgerBroken(f"{target.ref.shard}: tokens outstanding do not add up")
            if not target.prefill.keys() <= target.requests:
                raise LedgerBroken(f"{target.ref.shard}: computes for requests that it has not")

    @abstractmethod
    def choose(self, submission: Submission, targets: Iterable[Target]) -> tuple[Target, int]:
        """The shard, and the tokens it will have to compute as far as the router knows."""

    def _route(self, submission: Submission) -> Tell:
        wanted = submission.prompt_tokens + submission.max_tokens
        able = [one for one in self._targets.values() if wanted <= one.capacity.max_model_len]
        if not able:
            refusal = Refusal(submission.request_id, RefusalKind.NEVER_FITS, "too long", 60.0)
            return Tell(submission.router, refusal)
        target, uncached = self.choose(submission, able)
        target.charge(submission.request_id, uncached)
        cached = submission.prompt_tokens - uncached
        lease = Lease(submission.request_id, EPOCH, target.ref, cached, Reason(0.0, ()))
        return Tell(submission.router, lease)

    def _settle(self, report: ShardReport) -> None:
        name = report.shard.shard
        target = self._targets.setdefault(name, Target(report.shard, report.capacity))
        for request_id in report.started:
            target.started(request_id)
        for request_id in report.ended:
            target.ended(request_id)


class RoundRobin(DirectRouter):
    """Each shard in turn."""

    def choose(self, submission: Submission, targets: Iterable[Target]) -> tuple[Target, int]:
        return min(targets, key=lambda one: one.grants), submission.prompt_tokens


class LeastRequests(DirectRouter):
    """The shard with the fewest requests in flight; of equals the one that had the fewest yet."""

    def choose(self, submission: Submission, targets: Iterable[Target]) -> tuple[Target, int]:
        best = min(targets, key=lambda one: (len(one.requests), one.grants))
        return best, submission.prompt_tokens


class LeastLoaded(DirectRouter):
    """The shard with the fewest tokens outstanding: prompts to compute, and running sequences.

    The router knows no caches, so that a prompt counts whole.
    """

    def choose(self, submission: Submission, targets: Iterable[Target]) -> tuple[Target, int]:
        return min(targets, key=_load), submission.prompt_tokens


class PrefixOnly(LeastLoaded):
    """The shard with the longest cached prefix, however busy; below `MATCH` of the prompt, the
    least loaded, as otherwise the first shard to hold a common preamble would get everything.
    """

    MATCH = 0.1

    def __init__(self, config: SchedulingConfig) -> None:
        super().__init__(config)
        self._index = PrefixIndex(config.max_indexed_pages)

    def choose(self, submission: Submission, targets: Iterable[Target]) -> tuple[Target, int]:
        targets = list(targets)
        match = self._index.match(submission.page_hashes)
        cached = match.depth * targets[0].capacity.block_size
        if cached < self.MATCH * submission.prompt_tokens:
            return super().choose(submission, targets)
        holders = [one for one in targets if match.pages_of(one.ref.shard) == match.depth]
        return min(holders, key=_load), max(submission.prompt_tokens - cached, 1)

    def _settle(self, report: ShardReport) -> None:
        super()._settle(report)
        if report.full:
            self._index.drop(report.shard.shard)
        self._index.store(report.shard.shard, report.stored)
        self._index.remove(report.shard.shard, report.removed)


def _load(target: Target) -> tuple[int, int]:
    return target.prefill_tokens + DECODE_TOKENS * len(target.requests), target.grants
