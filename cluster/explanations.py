"""What was decided lately: on which requests, and why they went where they went."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from cluster.failover import original_id
from cluster.messages import Candidate, Decision, Refusal


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision that was made `ago_s` seconds ago; a lease carries its own reason."""

    decision: Decision
    ago_s: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """What would become of a request submitted at this moment.

    It would be refused, or wait about `wait_s` (None: nobody knows how long) behind `ahead_tokens`.
    Where its model has no shard, that counts loading one, as long as it took the last time.
    `candidates` are the shards it would have the choice of now, cheapest first.
    """

    refusal: Refusal | None
    wait_s: float | None
    ahead_tokens: float
    candidates: tuple[Candidate, ...]


class DecisionLog:
    """The last `max_decisions` decisions, under the ids that their requests had at first."""

    def __init__(self, max_decisions: int) -> None:
        self._max_decisions = max_decisions
        self._decided: OrderedDict[str, tuple[Decision, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._decided)

    def record(self, decision: Decision, now: float) -> None:
        """The latest of a request is the one that counts, whichever attempt it was for."""
        request_id = original_id(decision.request_id)
        self._decided[request_id] = decision, now
        self._decided.move_to_end(request_id)
        if len(self._decided) > self._max_decisions:
            self._decided.popitem(last=False)

    def explain(self, request_id: str, now: float) -> Explanation | None:
        """None where it was never decided, or too long ago."""
        decided = self._decided.get(original_id(request_id))
        if decided is None:
            return None
        decision, at = decided
        return Explanation(decision, now - at)


class Decided:
    """The attempts that were decided in the last `kept_s` seconds, and some of those before.

    They are kept by time and not by number, or a burst would have those forgotten that audits ask
    for: two generations, and the older is dropped whole.
    """

    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self._since = 0.0
        self._young: set[str] = set()
        self._old: set[str] = set()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._young or request_id in self._old

    def add(self, request_id: str, now: float) -> None:
        if now - self._since >= self._kept_s:
            self._old, self._young, self._since = self._young, set(), now
        self._young.add(request_id)
