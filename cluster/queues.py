"""Where requests wait: for each model its classes, in each class its tenants, in fair order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cluster.errors import LedgerBroken
from cluster.fairness import FairClock
from cluster.lanes import Lane, Waiting
from cluster.messages import Submission
from cluster.scheduling_config import SlaClass, ranks_of


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
        self._ranks = ranks_of(classes)
        self._bounds = [max_queued if c.max_queued is None else c.max_queued for c in classes]
        self._weights = [sla.weight for sla in classes]
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

    def tokens(self) -> dict[str, int]:
        """What all that wait in each class are expected to cost."""
        sums = dict.fromkeys(self._ranks, 0)
        for model in self._models.values():
            for sla, lane in zip(self._classes, model.lanes, strict=True):
                sums[sla.name] += lane.tokens
        return sums

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

    def number(self, submission: Submission) -> int:
        """The place in line that `submission` gets: its own where it waits there already."""
        old = self._waiting.get(submission.request_id)
        if old is not None and _line_of(old.submission) == _line_of(submission):
            return old.number
        return self._number + 1

    def add(self, waiting: Waiting) -> None:
        """Put it in line by its number; a request that waits already is replaced."""
        self.remove(waiting.submission.request_id)
        self._number = max(self._number, waiting.number)
        self._waiting[waiting.submission.request_id] = waiting
        lane = self._lane(waiting.submission.model, waiting.submission.sla)
        if not lane.depth:
            queue, sla = self._models[waiting.submission.model], waiting.submission.sla
            queue.starts[self._ranks[sla]] = queue.clock.start(sla)
        lane.insert(waiting)
        self._count(waiting.submission, +1)

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
        sla, queue = submission.sla, self._queue(submission.model)
        rank, clock = self._ranks[sla], queue.clock
        lane, weight = queue.lanes[rank], self._weights[rank]
        if lane.depth:
            clock.charge(sla, queue.starts[rank], tokens, weight)
            queue.starts[rank] = clock.start(sla)
        else:
            clock.serve(sla, tokens, weight)
        lane.charge(submission.tenant, tokens)

    def correct(self, model: str, sla: str, tenant: str, tokens: int) -> None:
        """What was charged turned out to be so many tokens too few."""
        if sla in self._ranks and model in self._models:
            rank, queue = self._ranks[sla], self._models[model]
            weight = self._weights[rank]
            queue.clock.correct(sla, tokens, weight)
            if queue.lanes[rank].depth:
                queue.starts[rank] += tokens / weight
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

    def _queue(self, model: str) -> ModelQueue:
        queue = self._models.get(model)
        if queue is None:
            lanes = tuple(Lane(self._weight_of, self._parked) for _ in self._classes)
            queue = self._models[model] = ModelQueue(lanes)
        return queue

    def _lane(self, model: str, sla: str) -> Lane:
        return self._queue(model).lanes[self._ranks[sla]]

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
