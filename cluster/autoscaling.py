"""How many shards a model should have: from how full they are and how late its requests are.

The policy is a handful of functions of one look at the model; `Autoscaler` owns what they need to
remember between looks, and is the one to change the number. More shards come at once, and by more
than one; fewer only after a whole period in which fewer would have done. When a model sleeps and
wakes is told in `waking`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cluster.autoscaling_config import AutoscalingConfig
from cluster.stats import ModelStats
from cluster.waking import Interest, to_begin_with

TOLERANCE = 0.1
"""Pressures closer to 1 than this change nothing: the dead band of Kubernetes' HPA, its default."""

HEADROOM = 0.9
"""Of its target, a p95 should stay below this share."""

SMOOTH_S = 10.0
"""Time constant of the means over looks, seconds."""

LATE_STEP = 1.5
"""Lateness asks for at most so many times as many shards: how many would do, it does not tell."""

FEW = 10
"""A percentile of fewer requests than this tells nothing."""

FORGET = 4
"""After so many times `down_after_s`, what once was too few shards may be tried again."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A look at a model, evened out.

    `work`: how many shards what comes in would keep wholly busy; `in_hand`: requests, waiting or
    running. `delay` and `tpot`: 95th percentiles in units of what the targets allow, 0 where too
    little was measured.
    """

    shards: int
    work: float
    in_hand: float
    delay: float
    tpot: float

    @property
    def late(self) -> float:
        return max(self.delay, self.tpot) / HEADROOM

    def utilization(self, shards: int) -> float:
        """What so many shards would have of it."""
        return self.work / shards


def enough(seen: Seen, config: AutoscalingConfig) -> int:
    """Shards that would do where these do not, at most `growth` times as many; else these.

    The ratio of a measure to its target, as in Kubernetes' Horizontal Pod Autoscaler: wanted =
    ceil(shards x measure / target).
    """
    busy = seen.utilization(seen.shards) / config.target_utilization
    asked = max(busy, min(seen.late, LATE_STEP))
    if asked <= 1.0 + TOLERANCE:
        return seen.shards
    return math.ceil(seen.shards * min(asked, config.growth) - 1e-9)


def holds(seen: Seen, shards: int, config: AutoscalingConfig, limit: float) -> bool:
    """Whether so many shards, fewer than now, would still keep the targets.

    The delay before a prompt is computed grows as u / (1 - u) with utilization u (Pollaczek and
    Khinchine's formula for M/G/1); a step, and so the time of a further token, grows at most in
    proportion to the sequences of a shard. No shard gets as much as made it late before: `limit`.
    """
    before, after = seen.utilization(seen.shards), seen.utilization(shards)
    if after > min(config.target_utilization, limit) or after >= 1.0:
        return False
    more = seen.shards / shards
    delay = seen.delay * more * (1.0 - before) / (1.0 - after)
    return max(delay, seen.tpot * more) <= HEADROOM


def fewest(seen: Seen, config: AutoscalingConfig, limit: float) -> int:
    """The fewest shards that hold: a quarter less than there are at most, or one."""
    shards, least = seen.shards, max(1, seen.shards - max(1, seen.shards // 4))
    while shards > least and holds(seen, shards - 1, config, limit):
        shards -= 1
    return shards


def useful(seen: Seen, config: AutoscalingConfig) -> int:
    """More shards than this help nobody: a request runs on one, however late it is there."""
    if seen.in_hand <= 1.0 + TOLERANCE:
        return 1
    return math.ceil(seen.in_hand / config.target_utilization - 1e-9)


@dataclass(frozen=True, slots=True)
class Change:
    """So many shards from now on, and why, for a person to read."""

    shards: int
    why: str


class Means:
    """What was seen over the last `SMOOTH_S` seconds or so."""

    def __init__(self) -> None:
        self._at = -math.inf
        self._last = ModelStats()
        self._busy = 0.0
        self._in_hand = 0.0
        self._arrived = 0.0
        self._granted = 0.0

    def take(self, stats: ModelStats, now: float) -> None:
        kept = math.exp(-(now - self._at) / SMOOTH_S)
        self._busy += (1.0 - kept) * (stats.shards * stats.utilization - self._busy)
        self._in_hand += (1.0 - kept) * (stats.in_hand - self._in_hand)
        granted = max(stats.granted - self._last.granted, 0)
        arrived = granted + stats.asked_in_vain - self._last.asked_in_vain
        arrived += stats.queued - self._last.queued
        self._granted = kept * self._granted + granted
        self._arrived = kept * self._arrived + arrived
        self._at, self._last = now, stats

    def seen(self, settled: bool) -> Seen:
        """Until all has `settled`, latencies are not counted: they are of other times.

        Work is what keeps the shards busy times the requests that came for each that began: while
        a backlog grows it is more than the shards do, while one is worked off it is less.
        """
        delay, tpot = (
            one.p95 or 0.0 if settled and one.count >= FEW else 0.0
            for one in (self._last.delay, self._last.tpot)
        )
        surge = self._arrived / self._granted if self._granted else 1.0
        work = self._busy * max(surge, 0.0)
        return Seen(self._last.shards, work, self._in_hand, delay, tpot)


class Autoscaler:
    """The number of one model's shards; `look` at it every second or so is its one door.

    Starts with `shards` as wanted, of which each has `places` for sequences. Time is in seconds and
    never goes back.
    """

    def __init__(self, config: AutoscalingConfig, shards: int, places: int) -> None:
        self._config = config
        self._wanted = config.bounded(shards)
        self._places = places
        self._interest = Interest(config.idle_s, asleep=not self._wanted)
        self._means = Means()
        self._serving = 0
        self._settled_at = -math.inf
        self._calm_since = math.inf
        self._calm_needed = 0
        self._late_at = -math.inf
        self._late_with = math.inf
        self._shrank_at = -math.inf
        self._shrank_from = 0

    @property
    def wanted(self) -> int:
        return self._wanted

    def look(self, stats: ModelStats, now: float) -> Change | None:
        """Take note of how the model does; what is wanted from now on, where that changes."""
        if stats.shards > self._serving:
            self._settled_at = now + self._config.settle_s
        self._serving = stats.shards
        self._means.take(stats, now)
        self._interest.note(stats, now)
        if self._config.may_sleep and self._interest.is_gone(now):
            return self._sleep()
        seen = self._means.seen(settled=now >= self._settled_at)
        # More than are wanted are there while one replaces another, or while they leave.
        seen = replace(seen, shards=min(seen.shards, self._wanted))
        needed = self._needed(stats, seen, now)
        if needed > self._wanted:
            return self._grow(needed, seen, now)
        if needed == self._wanted:
            self._calm_since, self._calm_needed = math.inf, 0
            return None
        return self._rest(needed, now)

    def _needed(self, stats: ModelStats, seen: Seen, now: float) -> int:
        """Within the bounds: some to begin with, more than now, as many, or fewer."""
        if stats.idle:
            return self._config.bounded(1)
        if not seen.shards:
            first = to_begin_with(stats.queued, self._places, self._config)
            return max(self._wanted, self._config.bounded(first))
        asked = enough(seen, self._config)
        if asked > seen.shards:
            asked = max(asked, self._wanted)  # some may be on their way
        else:
            asked = fewest(seen, self._config, self._limit(now))
        return self._config.bounded(min(asked, useful(seen, self._config)))

    def _sleep(self) -> Change | None:
        self._calm_since, self._calm_needed = math.inf, 0
        if not self._wanted:
            return None
        self._wanted = 0
        return Change(0, f"for {self._config.idle_s:g} s nobody asked for it")

    def _grow(self, needed: int, seen: Seen, now: float) -> Change | None:
        self._calm_since, self._calm_needed = math.inf, 0
        if seen.shards and seen.late > 1.0 + TOLERANCE:
            needed = self._learn(needed, seen, now)
        if needed <= self._wanted:
            return None
        self._wanted = needed
        return Change(needed, _why_more(seen))

    def _learn(self, needed: int, seen: Seen, now: float) -> int:
        """Note what was too much. Where going down is what made requests late, it is as it was:
        back to as many as before is enough, and what was known before still holds."""
        utilization, shrank_at = seen.utilization(seen.shards), self._shrank_at
        recent = now - shrank_at < self._config.down_after_s and seen.shards < self._shrank_from
        self._late_at = now
        self._late_with = min(utilization, self._late_with) if recent else utilization
        if not recent:
            return needed
        busy = math.ceil(seen.work / self._config.target_utilization)
        return min(needed, max(self._shrank_from, busy))

    def _rest(self, needed: int, now: float) -> Change | None:
        """Fewer would do; once that has been so for `down_after_s`, the most needed meanwhile."""
        self._calm_since = min(self._calm_since, now)
        self._calm_needed = max(self._calm_needed, needed)
        if now - self._calm_since < self._config.down_after_s:
            return None
        self._shrank_at, self._shrank_from = now, self._wanted
        self._wanted, self._calm_since, self._calm_needed = self._calm_needed, math.inf, 0
        return Change(self._wanted, f"for {self._config.down_after_s:g} s no more were needed")

    def _limit(self, now: float) -> float:
        """A little below the utilization at which shards last were late, while remembered."""
        forgotten = now - self._late_at > FORGET * self._config.down_after_s
        return math.inf if forgotten else HEADROOM * self._late_with


def _why_more(seen: Seen) -> str:
    if not seen.shards:
        return "it is asked for, and has none"
    return (
        f"work for {seen.work:.1f} on {seen.shards}; of what the targets allow, the wait takes"
        f" {seen.delay:.0%} and further tokens {seen.tpot:.0%} (p95)"
    )
