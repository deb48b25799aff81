"""What each model is asked for, in the terms that autoscaling decides by."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from cluster.books import Books
from cluster.loads import ModelShards
from cluster.measures import RecentSeconds
from cluster.messages import RefusalKind
from cluster.scheduling_config import SlaClass
from cluster.shard_books import Bill, ShardBook
from cluster.stats import ModelStats

SPAN_S = 15.0
"""Percentiles are of the last one to two spans: shorter than what judges a class, to react."""

WANTS_ROOM = frozenset(
    {
        RefusalKind.QUEUE_FULL,
        RefusalKind.DEADLINE,
        RefusalKind.QUEUE_TIMEOUT,
        RefusalKind.NOT_READY,
    }
)
"""Refusals that more shards would have spared."""


class Demand:
    """What came of the requests for each model, and how late: for whoever decides on its shards."""

    def __init__(self, classes: Iterable[SlaClass]) -> None:
        self._classes = {sla.name: sla for sla in classes}
        self._granted: Counter[str] = Counter()
        self._in_vain: Counter[str] = Counter()
        self._delay: defaultdict[str, RecentSeconds] = defaultdict(_recent)
        self._tpot: defaultdict[str, RecentSeconds] = defaultdict(_recent)
        self._served_since: dict[str, float] = {}

    def served(self, model: str, now: float) -> None:
        """From now on it has a shard, and had none before."""
        self._served_since[model] = now

    def granted(self, model: str) -> None:
        self._granted[model] += 1

    def refused(self, model: str, kind: RefusalKind) -> None:
        self._in_vain[model] += kind in WANTS_ROOM

    def started(self, model: str, bill: Bill, now: float) -> None:
        """A target that its prompt alone would miss tells nothing of how many shards there are, nor
        does the time in which there was none."""
        sla = self._classes.get(bill.sla)
        if sla is None or sla.ttft_s is None or bill.since is None:
            return
        if bill.alone_s < sla.ttft_s:
            since = max(bill.since, self._served_since.get(model, bill.since))
            waited_s = max(now - since - bill.alone_s, 0.0)
            allowed_s = max(sla.ttft_s - bill.alone_s, sla.ttft_s / 2)
            self._delay[model].record(waited_s / allowed_s, now)

    def ended(self, model: str, bill: Bill, tpot_s: float, now: float) -> None:
        sla = self._classes.get(bill.sla)
        if sla is not None and sla.tpot_s is not None:
            self._tpot[model].record(tpot_s / sla.tpot_s, now)

    def stats(self, books: Books, now: float) -> dict[str, ModelStats]:
        """Of every model that has shards or was asked for."""
        models = {shard.ref.model for shard in books.leases.shards()}
        models |= {*books.queues.models(), *self._granted, *self._in_vain}
        return {model: self._of(model, books, now) for model in sorted(models)}

    def _of(self, model: str, books: Books, now: float) -> ModelStats:
        shards, nothing = books.leases.serving(model), _recent()
        return ModelStats(
            shards=len(staying(shards)),
            queued=books.queues.depth(model),
            running=shards.taken,
            granted=self._granted[model],
            asked_in_vain=self._in_vain[model],
            utilization=utilization(shards),
            delay=self._delay.get(model, nothing).percentiles(now),
            tpot=self._tpot.get(model, nothing).percentiles(now),
        )


def utilization(shards: ModelShards) -> float:
    """How full the shards are of what they are fullest of, by the measures of room for a newcomer.

    A mean over time tells more than one look, above all of the prompts leased ahead. Who is
    leaving has no room, and does not count.
    """
    every = staying(shards)
    if not every:
        return 0.0
    places = sum(one.sequences for one in every) / sum(one.capacity.max_num_seqs for one in every)
    pages = sum(1.0 - one.unpromised / one.capacity.total_pages for one in every)
    prefill = sum(min(1.0, one.prefill_tokens / shards.lookahead(one)) for one in every)
    return min(1.0, max(places, pages / len(every), prefill / len(every)))


def staying(shards: ModelShards) -> list[ShardBook]:
    return [one for one in shards.shards.values() if not one.leaving]


def _recent() -> RecentSeconds:
    return RecentSeconds(SPAN_S)
