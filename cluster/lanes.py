"""One class of one model in the queue: its tenants in fair order, and each one's requests."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from cluster.errors import LedgerBroken
from cluster.fairness import FairClock
from cluster.messages import Submission


class Waiting(NamedTuple):
    """A submission in the queue; times are readings of the scheduler's clock.

    `due` orders a tenant's requests: the deadline, or the class's target. `expires_at` is when it
    will have waited too long. `tokens` is what it is expected to cost, and `number` grows with each
    that is added.
    """

    submission: Submission
    since: float
    deadline_at: float = math.inf
    due: float = math.inf
    expires_at: float = math.inf
    tokens: int = 0
    number: int = 0

    @property
    def place(self) -> tuple[float, int, str]:
        """Deadlines first, then first come first served."""
        return self.due, self.number, self.submission.request_id


class Flow:
    """One tenant's requests of one class; `start` is where it stands in virtual time."""

    __slots__ = ("line", "parked", "start", "tenant", "tokens")

    def __init__(self, tenant: str, start: float, parked: bool) -> None:
        self.tenant = tenant
        self.start = start
        self.parked = parked
        self.line: list[tuple[float, int, str]] = []
        self.tokens = 0

    @property
    def turn(self) -> tuple[float, float, str]:
        """Of tenants that have had as much, the one with the earliest deadline goes first."""
        return self.start, self.line[0][0], self.tenant


class Lane:
    """One class of one model: flows of tenants in order of their turns.

    `parked` tenants keep their requests and have no turn. A flow without requests is gone, while
    the clock remembers what it has had.
    """

    def __init__(self, weight_of: Callable[[str], float], parked: set[str]) -> None:
        self._weight_of = weight_of
        self._parked = parked
        self._clock = FairClock()
        self._flows: dict[str, Flow] = {}
        self._turns: list[tuple[float, float, str]] = []
        self._weights = 0.0
        self.depth = 0
        self.tokens = 0

    def head(self) -> str | None:
        """Whose turn it is."""
        return self._flows[self._turns[0][2]].line[0][2] if self._turns else None

    def ids(self) -> Iterator[str]:
        for flow in self._flows.values():
            yield from (request_id for _, _, request_id in flow.line)

    def insert(self, waiting: Waiting) -> None:
        tenant = waiting.submission.tenant
        flow = self._flows.get(tenant)
        if flow is None:
            start = self._clock.start(tenant)
            flow = self._flows[tenant] = Flow(tenant, start, tenant in self._parked)
            self._weights += self._weight_of(tenant)
        self._leave(flow)
        insort(flow.line, waiting.place)
        self._count(flow, +1, waiting.tokens)
        self._take_turn(flow)

    def delete(self, waiting: Waiting) -> None:
        flow = self._flows[waiting.submission.tenant]
        self._leave(flow)
        del flow.line[bisect_left(flow.line, waiting.place)]
        self._count(flow, -1, -waiting.tokens)
        if flow.line:
            self._take_turn(flow)
        else:
            del self._flows[flow.tenant]
            self._weights = self._weights - self._weight_of(flow.tenant) if self._flows else 0.0

    def charge(self, tenant: str, tokens: int) -> None:
        """`tenant` was served; what it still has waiting stands further back."""
        flow, weight = self._flows.get(tenant), self._weight_of(tenant)
        if flow is None:
            self._clock.serve(tenant, tokens, weight)
        else:
            self._clock.charge(tenant, flow.start, tokens, weight)
            self._leave(flow)
            flow.start = self._clock.start(tenant)
            self._take_turn(flow)

    def correct(self, tenant: str, tokens: int) -> None:
        """What it still has waiting stands further back for it, or further in front."""
        weight = self._weight_of(tenant)
        self._clock.correct(tenant, tokens, weight)
        flow = self._flows.get(tenant)
        if flow is not None:
            self._leave(flow)
            flow.start += tokens / weight
            self._take_turn(flow)

    def park(self, tenant: str, parked: bool) -> None:
        flow = self._flows.get(tenant)
        if flow is not None:
            self._leave(flow)
            flow.parked = parked
            flow.start = max(flow.start, self._clock.now)
            self._take_turn(flow)

    def ahead(self, tenant: str) -> float:
        """Tokens served here before a new request of `tenant`, when all get their shares."""
        flow = self._flows.get(tenant)
        if flow is None:
            return 0.0
        return min(flow.tokens * self._weights / self._weight_of(tenant), float(self.tokens))

    def _leave(self, flow: Flow) -> None:
        if flow.line and not flow.parked:
            del self._turns[bisect_left(self._turns, flow.turn)]

    def _take_turn(self, flow: Flow) -> None:
        if not flow.parked:
            insort(self._turns, flow.turn)

    def _count(self, flow: Flow, requests: int, tokens: int) -> None:
        flow.tokens += tokens
        self.tokens += tokens
        self.depth += requests

    def verify(self, waiting: Mapping[str, Waiting]) -> None:
        """Raises LedgerBroken where turns, lines and sums disagree with who is `waiting`."""
        for flow in self._flows.values():
            own = [waiting[request_id] for _, _, request_id in flow.line]
            if flow.line != sorted(each.place for each in own) or not own:
                raise LedgerBroken(f"queues: the line of {flow.tenant} is out of order")
            if flow.tokens != sum(each.tokens for each in own):
                raise LedgerBroken(f"queues: tokens of {flow.tenant} do not add up")
            if flow.parked != (flow.tenant in self._parked):
                raise LedgerBroken(f"queues: {flow.tenant} is parked in one book only")
        flows = self._flows.values()
        if self._turns != sorted(flow.turn for flow in flows if not flow.parked):
            raise LedgerBroken(f"queues: {len(self._turns)} turns, not those of {len(flows)} flows")
        weights = sum(self._weight_of(flow.tenant) for flow in flows)
        if not math.isclose(weights, self._weights):
            raise LedgerBroken(f"queues: counted a weight of {weights}, kept {self._weights}")
        sums = sum(len(flow.line) for flow in flows), sum(flow.tokens for flow in flows)
        if sums != (self.depth, self.tokens):
            raise LedgerBroken(f"queues: counted {sums}, kept {(self.depth, self.tokens)}")
