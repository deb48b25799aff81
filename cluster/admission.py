"""Who is turned away, why, and when it is worth coming back."""

from __future__ import annotations

import math

from cluster.loads import ModelShards
from cluster.messages import Refusal, RefusalKind, Submission
from cluster.queues import Waiting
from cluster.routing import could_hold

MIN_RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 60.0


def retry_after_s(ahead: int, drain_per_s: float) -> float:
    """When the `ahead` requests will have left, by Little's law: whole seconds, `ahead / drain`.

    Between 1 s and 60 s; 60 s too where nothing drains, as nothing better is known.
    """
    if drain_per_s * MAX_RETRY_AFTER_S <= ahead:
        return MAX_RETRY_AFTER_S
    return max(float(math.ceil(ahead / drain_per_s)), MIN_RETRY_AFTER_S)


class DrainRate:
    """Events per second over the recent past, in constant memory.

    An exponentially decaying count with time constant `tau_s`; divided by the weight that the time
    since the first event can have had, as Adam's bias correction does (Kingma and Ba 2015,
    section 3), so that the estimate is fair from the first second on.
    """

    def __init__(self, tau_s: float = 10.0) -> None:
        self._tau_s = tau_s
        self._count = 0.0
        self._first: float | None = None
        self._last = 0.0

    def record(self, now: float) -> None:
        if self._first is None:
            self._first = self._last = now
        self._count = self._decayed(now) + 1.0
        self._last = now

    def per_second(self, now: float) -> float:
        """0 until the first event; the first second counts as a whole one."""
        if self._first is None:
            return 0.0
        age_s = max(now - self._first, 1.0)
        return self._decayed(now) / (self._tau_s * -math.expm1(-age_s / self._tau_s))

    def _decayed(self, now: float) -> float:
        return self._count * math.exp((self._last - now) / self._tau_s)


WORDS = {
    RefusalKind.QUEUE_FULL: "too many requests of class {0.sla} are waiting",
    RefusalKind.NOT_READY: "no shard serves {0.model} at this moment",
    RefusalKind.DEADLINE: "its deadline of {0.deadline_s} s passed while it waited",
    RefusalKind.NEVER_FITS: "{0.prompt_tokens} tokens of prompt and {0.max_tokens} of output"
    " are more than any shard of {0.model} holds",
}


class Admission:
    """Objects to requests that cannot be served, and measures how fast the others are."""

    def __init__(self, not_ready_timeout_s: float) -> None:
        self._not_ready_timeout_s = not_ready_timeout_s
        self._drain: dict[str, DrainRate] = {}
        self._unserved_since: dict[str, float] = {}

    def granted(self, model: str, now: float) -> None:
        """A request of `model` got its lease."""
        self._drain.setdefault(model, DrainRate()).record(now)

    def served(self, model: str) -> None:
        """A shard of `model` is there."""
        self._unserved_since.pop(model, None)

    def objection(self, waiting: Waiting, shards: ModelShards, now: float) -> RefusalKind | None:
        """Why it can never be served by `shards`, all those of its model; the first that holds.

        A model is not ready when somebody has wanted it for `not_ready_timeout_s` with no shard
        there all the while: the first to come wait that long, those after are told at once.
        """
        submission = waiting.submission
        if waiting.deadline_at <= now:
            return RefusalKind.DEADLINE
        if not len(shards):
            since = self._unserved_since.setdefault(submission.model, now)
            return RefusalKind.NOT_READY if now - since >= self._not_ready_timeout_s else None
        if not could_hold(shards.longest, submission):
            return RefusalKind.NEVER_FITS
        return None

    def refusal(self, submission: Submission, kind: RefusalKind, ahead: int, now: float) -> Refusal:
        """Put it in words; `ahead` requests would be served before one that comes back."""
        drain = self._drain.get(submission.model)
        retry = retry_after_s(ahead, 0.0 if drain is None else drain.per_second(now))
        return Refusal(submission.request_id, kind, WORDS[kind].format(submission), retry)
