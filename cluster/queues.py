"""Where requests wait: for each model its classes, in each class its tenants, in fair order."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from cluster.config import SlaClass
from cluster.errors import LedgerBroken
from cluster.fairness import FairClock
from cluster.messages import Submission


@dataclass(frozen=True, slots=True)
class Waiting:
    """A submission in the queue; times are readings of the scheduler's clock.

    `due` orders a tenant's requests: the deadline, or the class's target. `tokens` is what it is
    expected to cost, and `number` grows with each that is added.
    """

    submission: Submission
    since: float
    deadline_at: float = math.inf
    due: float = math.inf
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

    def charge(self, tenant: str, tokens: int) -> None:
        """`tenant` was served; what it still has waiting stands further back."""
        flow = self._flows.get(tenant)
        start = self._clock.start(tenant) if flow is None else flow.start
        self._clock.charge(tenant, start, tokens, self._weight_of(tenant))
        if flow is not None:
            self._leave(flow)
            flow.start = self._clock.start(tenant)
            self._take_turn(flow)

    def correct(self, tenant: str, tokens: int) -> None:
        self._clock.correct(tenant, tokens, self._weight_of(tenant))

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
        weights = sum(self._weight_of(name) for name in self._flows)
        return min(flow.tokens * weights / self._weight_of(tenant), float(self.tokens))

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

    def verify(self, waiting: dict[str, Waiting]) -> None:
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
        sums = sum(len(flow.line) for flow in flows), sum(flow.tokens for flow in flows)
        if sums != (self.depth, self.tokens):
            raise LedgerBroken(f"queues: counted {sums}, kept {(self.depth, self.tokens)}")


class ModelQueue:
    """The lanes of one model, one for each class, and the clock between them.

    `starts` is where each class stands that has somebody waiting.
    """

    def __init__(self, lanes: tuple[Lane, ...]) -> None:
        self.lanes = lanes
        self.starts = [0.0] * len(lanes)
        self.clock = FairClock()
        self.depth = 0


class FairQueues:
    """For each model: weighted fair between classes, then between tenants, then by deadline.

    Each class is bounded over all models, so that a flood of one turns nobody else away. Models
    share no shards, so one model's head never blocks another's.
    """

    def __init__(
        self,
        classes: tuple[SlaClass, ...],
        max_queued: int,
        weight_of: Callable[[str], float] = lambda tenant: 1.0,
    ) -> None:
        self._classes = classes
        self._ranks = {sla.name: rank for rank, sla in enumerate(classes)}
        self._bounds = [max_queued if c.max_queued is None else c.max_queued for c in classes]
        self._weight_of = weight_of
        self._models: dict[str, ModelQueue] = {}
        self._waiting: dict[str, Waiting] = {}
        self._depths = [0] * len(classes)
        self._parked: set[str] = set()
        self._number = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        """All that wait, in no order."""
        return iter(self._waiting.values())

    def models(self) -> tuple[str, ...]:
        """The models that somebody waits for."""
        return tuple(name for name, model in self._models.items() if model.depth)

    def depth(self, model: str) -> int:
        """How many wait for it."""
        queue = self._models.get(model)
        return queue.depth if queue else 0

    def of_model(self, model: str) -> list[Waiting]:
        """All that wait for it, class by class."""
        lanes = self._models[model].lanes if model in self._models else ()
        return [self._waiting[request_id] for lane in lanes for request_id in lane.ids()]

    def depths(self) -> dict[str, int]:
        return dict(zip(self._ranks, self._depths, strict=True))

    def is_full(self, sla: str) -> bool:
        return self._depths[self._ranks[sla]] >= self._bounds[self._ranks[sla]]

    def get(self, request_id: str) -> Waiting | None:
        return self._waiting.get(request_id)

    def heads(self, model: str) -> list[tuple[int, Waiting]]:
        """Whose turn it is in each class, with its rank: the class that has had least first."""
        queue = self._models.get(model)
        if queue is None or not queue.depth:
            return []
        turns = []
        for rank, lane in enumerate(queue.lanes):
            head = lane.head()
            if head is not None:
                turns.append((queue.starts[rank], rank, head))
        return [(rank, self._waiting[head]) for _, rank, head in sorted(turns)]

    def waive(self, model: str, rank: int) -> None:
        """This class may not have its turn now, and shall not have saved it up when it may."""
        queue = self._models[model]
        queue.starts[rank] = max(queue.starts[rank], queue.clock.now)

    def is_head(self, request_id: str) -> bool:
        """Whether its class would serve it next."""
        submission = self._waiting[request_id].submission
        return self._lane(submission.model, submission.sla).head() == request_id

    def add(self, waiting: Waiting) -> Waiting:
        """Put it in line; a request that waits there already keeps its turn. Returns it as kept."""
        request_id = waiting.submission.request_id
        self._number += 1
        old, number = self.remove(request_id), self._number
        if old is not None and _line_of(old.submission) == _line_of(waiting.submission):
            number = old.number
        kept = replace(waiting, number=number)
        self._waiting[request_id] = kept
        lane = self._lane(kept.submission.model, kept.submission.sla)
        if not lane.depth:
            queue, sla = self._models[kept.submission.model], kept.submission.sla
            queue.starts[self._ranks[sla]] = queue.clock.start(sla)
        lane.insert(kept)
        self._count(kept.submission, +1)
        return kept

    def remove(self, request_id: str) -> Waiting | None:
        """Take it out, wherever it stands; None where it does not wait."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is None:
            return None
        self._lane(waiting.submission.model, waiting.submission.sla).delete(waiting)
        self._count(waiting.submission, -1)
        return waiting

    def charge(self, submission: Submission, tokens: int) -> None:
        """It is served; to be called before it is removed, if it waited."""
        rank = self._ranks[submission.sla]
        lane = self._lane(submission.model, submission.sla)
        queue, sla = self._models[submission.model], submission.sla
        start = queue.starts[rank] if lane.depth else queue.clock.start(sla)
        queue.clock.charge(sla, start, tokens, self._classes[rank].weight)
        queue.starts[rank] = queue.clock.start(sla)
        lane.charge(submission.tenant, tokens)

    def correct(self, model: str, sla: str, tenant: str, tokens: int) -> None:
        """What was charged turned out to be so many tokens too few."""
        if sla in self._ranks and model in self._models:
            weight = self._classes[self._ranks[sla]].weight
            self._models[model].clock.correct(sla, tokens, weight)
            self._lane(model, sla).correct(tenant, tokens)

    def park(self, tenant: str, parked: bool) -> None:
        """It may have nothing more at present, or may again."""
        if parked == (tenant in self._parked):
            return
        (self._parked.add if parked else self._parked.discard)(tenant)
        for model in self._models.values():
            for lane in model.lanes:
                lane.park(tenant, parked)

    def ahead(self, submission: Submission) -> float:
        """Tokens served before a new request, when all classes and tenants get their shares.

        Never more than all that wait: who has nothing waiting leaves its share to the others.
        """
        lanes = self._models[submission.model].lanes if submission.model in self._models else ()
        rank, total, weights = self._ranks[submission.sla], 0, 0.0
        for sla, lane in zip(self._classes, lanes, strict=bool(lanes)):
            total += lane.tokens
            weights += sla.weight if lane.depth else 0.0
        if not lanes or not lanes[rank].depth:
            return 0.0
        share = self._classes[rank].weight / weights
        return min(lanes[rank].ahead(submission.tenant) / share, float(total))

    def _lane(self, model: str, sla: str) -> Lane:
        if model not in self._models:
            lanes = tuple(Lane(self._weight_of, self._parked) for _ in self._classes)
            self._models[model] = ModelQueue(lanes)
        return self._models[model].lanes[self._ranks[sla]]

    def _count(self, submission: Submission, requests: int) -> None:
        self._models[submission.model].depth += requests
        self._depths[self._ranks[submission.sla]] += requests

    def verify(self) -> None:
        """Raises LedgerBroken where the lanes, the depths and the register disagree."""
        for model in self._models.values():
            for lane in model.lanes:
                lane.verify(self._waiting)
        lanes = [model.lanes for model in self._models.values()]
        counted = [sum(row[rank].depth for row in lanes) for rank in range(len(self._classes))]
        if counted != self._depths:
            raise LedgerBroken(f"queues: depths kept {self._depths}, counted {counted}")
        by_model = [sum(lane.depth for lane in model.lanes) for model in self._models.values()]
        if by_model != [model.depth for model in self._models.values()]:
            raise LedgerBroken(f"queues: depths of models are not {by_model}")
        if sum(counted) != len(self._waiting):
            raise LedgerBroken(f"queues: {len(self._waiting)} registered, {sum(counted)} in lanes")


def _line_of(submission: Submission) -> tuple[str, str, str]:
    return submission.model, submission.sla, submission.tenant
