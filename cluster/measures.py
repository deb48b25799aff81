"""Percentiles of what was measured lately, in bounded memory."""

from __future__ import annotations

import math
from collections import Counter

from cluster.stats import Percentiles

ACCURACY = 0.05
"""A percentile is off by so much of itself at most."""

SMALLEST_S = 0.0001
LARGEST_S = 100_000.0

_GAMMA = math.log((1.0 + ACCURACY) / (1.0 - ACCURACY))
_FIRST = math.ceil(math.log(SMALLEST_S) / _GAMMA)


class RecentSeconds:
    """Durations of the last one to two spans of `span_s` seconds, as counts by magnitude.

    The buckets grow by a constant factor, so that every percentile has the same relative accuracy:
    DDSketch, Masson, Rim and Lee, VLDB 2019. There are about two hundred at most.
    """

    def __init__(self, span_s: float = 60.0) -> None:
        self._span_s = span_s
        self._begun = 0.0
        self._young: Counter[int] = Counter()
        self._old: Counter[int] = Counter()

    def record(self, seconds: float, now: float) -> None:
        if now - self._begun >= self._span_s:
            self._age(now)
        if seconds <= SMALLEST_S:
            bucket = _FIRST
        else:
            bucket = math.ceil(math.log(min(seconds, LARGEST_S)) / _GAMMA)
        self._young[bucket] += 1

    def percentiles(self, now: float) -> Percentiles:
        self._age(now)
        counts = self._young + self._old
        total = counts.total()
        if not total:
            return Percentiles()
        return Percentiles(total, *(_at(counts, share * total) for share in (0.5, 0.95, 0.99)))

    def _age(self, now: float) -> None:
        if now - self._begun >= 2 * self._span_s:
            self._old, self._young, self._begun = Counter(), Counter(), now
        elif now - self._begun >= self._span_s:
            self._old, self._young, self._begun = self._young, Counter(), now


def _at(counts: Counter[int], rank: float) -> float:
    """The middle of the bucket that holds the value of this rank."""
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= rank:
            break
    return 2.0 * math.exp(bucket * _GAMMA) / (math.exp(_GAMMA) + 1.0)
