"""Who is turned away, why, and when it is worth coming back."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from cluster.lanes import Waiting
from cluster.loads import ModelShards
from cluster.messages import Refusal, RefusalKind, Submission
from cluster.rates import BusyRate
from cluster.routing import could_hold
from cluster.scheduling_config import SchedulingConfig

MIN_RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 60.0

ENOUGH = 8
"""Requests that have to come out of the queue before a prediction is made of how fast they do."""

WORDS = {
    RefusalKind.QUEUE_FULL: "too many requests of class {0.sla} are waiting",
    RefusalKind.NOT_READY: "no shard serves {0.model} at this moment",
    RefusalKind.DEADLINE: "its deadline of {0.deadline_s} s cannot be met",
    RefusalKind.QUEUE_TIMEOUT: "it waited as long as requests of class {0.sla} may",
    RefusalKind.NEVER_FITS: "{0.prompt_tokens} tokens of prompt and {0.max_tokens} of output"
    " are more than any shard of {0.model} holds",
}
WAKING = "; {0.model} has no shard yet, and is being woken"


def retry_after_s(predicted_s: float | None) -> float:
    """When those ahead will have left, in whole seconds: between 1 s and 60 s.

    60 s too where nothing is known of how fast they leave.
    """
    if predicted_s is None or predicted_s > MAX_RETRY_AFTER_S:
        return MAX_RETRY_AFTER_S
    return max(float(math.ceil(predicted_s)), MIN_RETRY_AFTER_S)


class Admission:
    """Objects to requests that cannot be served in time, from how fast the others are served.

    `ahead` tells the tokens that are served before a new request (`FairQueues.ahead`). The rate is
    that of tokens granted while somebody waited: what the cluster can do, not what it was asked.
    """

    def __init__(self, config: SchedulingConfig, ahead: Callable[[Submission], float]) -> None:
        self._config = config
        self._ahead = ahead
        self._rates: dict[str, BusyRate] = {}
        self._measured: Counter[str] = Counter()
        self._measured_at: dict[str, float] = {}
        self._unserved_since: dict[str, float] = {}
        self._unserved_s: dict[str, float] = {}

    def backlogged(self, model: str, now: float) -> None:
        """The first request of `model` begins to wait."""
        self._measured_at[model] = now

    def granted(self, waiting: Waiting, now: float) -> None:
        """A request that waited got its lease."""
        model = waiting.submission.model
        rate = self._rates.setdefault(model, BusyRate())
        rate.record(waiting.tokens, now - self._measured_at[model])
        self._measured_at[model] = now
        self._measured[model] += 1

    def missed(self, model: str, now: float) -> None:
        """Somebody wants `model`, and no shard is there."""
        self._unserved_since.setdefault(model, now)

    def served(self, model: str, now: float) -> None:
        """A shard of `model` is there. While there was none, nothing was to be measured."""
        since = self._unserved_since.pop(model, None)
        if since is not None:
            self._measured_at[model] = now
            self._unserved_s[model] = now - since

    def wait_s(self, submission: Submission) -> float | None:
        """How long a new request would wait, by Little's law; None where too little is known."""
        ahead = self._ahead(submission)
        if not ahead:
            return 0.0
        if self._measured[submission.model] < ENOUGH:
            return None
        per_second = self._rates[submission.model].per_second
        return None if per_second is None else ahead / per_second

    def foreseen_s(self, submission: Submission, shards: ModelShards, now: float) -> float | None:
        """As `wait_s`; where none of `shards` is there yet, after what is left of loading one."""
        wait_s = self.wait_s(submission)
        if len(shards) or wait_s is None:
            return wait_s
        loading_s = self._loading_s(submission.model, now)
        return None if loading_s is None else loading_s + wait_s

    def _loading_s(self, model: str, now: float) -> float | None:
        """As the last time, of which some has passed where somebody waits already; None where it
        never was, or takes longer now.
        """
        left_s = self._unserved_s.get(model, 0.0) - (now - self._unserved_since.get(model, now))
        return left_s if left_s > 0 else None

    def objection(self, waiting: Waiting, shards: ModelShards, now: float) -> RefusalKind | None:
        """Why it cannot be served any more by `shards`, all those of its model.

        A model is not ready when somebody has wanted it for `not_ready_timeout_s` with no shard
        there all the while: the first to come wait that long, those after are told at once. Who
        wakes it waits for as long as its class and its deadline let it.
        """
        submission = waiting.submission
        if waiting.deadline_at <= now:
            return RefusalKind.DEADLINE
        if waiting.expires_at <= now:
            return RefusalKind.QUEUE_TIMEOUT
        if not len(shards):
            if submission.wakes:
                return None
            since = self._unserved_since.get(submission.model, now)
            return (
                RefusalKind.NOT_READY if now - since >= self._config.not_ready_timeout_s else None
            )
        return None if could_hold(shards.longest, submission) else RefusalKind.NEVER_FITS

    def hopeless(self, waiting: Waiting, now: float) -> RefusalKind | None:
        """Why it would wait in vain: better said at once than after it has waited."""
        wait_s = self.wait_s(waiting.submission)
        if wait_s is None or now + wait_s < waiting.expires_at:
            return None
        late = waiting.deadline_at <= now + wait_s
        return RefusalKind.DEADLINE if late else RefusalKind.QUEUE_FULL

    def refusal(self, submission: Submission, kind: RefusalKind) -> Refusal:
        """Put it in words. To wake the model takes as long, one may hope, as it took before."""
        wait_s = None if kind is RefusalKind.NOT_READY else self.wait_s(submission)
        message = WORDS[kind].format(submission)
        if submission.wakes and submission.model in self._unserved_since:
            wait_s = self._unserved_s.get(submission.model)
            message += WAKING.format(submission)
        return Refusal(submission.request_id, kind, message, retry_after_s(wait_s))
