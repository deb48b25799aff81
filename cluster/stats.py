"""Snapshots of the books, for tests, dashboards and people: what is, at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.messages import ShardRef


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Pages and sequences now, and totals since the start.

    used + cached + free = total: `used_pages` belong to live sequences, `cached_pages` are kept
    only for their prefix and may be reused at once. `compiled`: by a program made
    for the model, not by its layers one by one.
    """

    steps: int
    running: int
    waiting: int
    total_pages: int
    used_pages: int
    cached_pages: int
    free_pages: int
    preemptions: int
    tokens_computed: int
    tokens_sampled: int
    prefix_hit_tokens: int
    compiled: bool


@dataclass(frozen=True, slots=True)
class ShardStats(EngineStats):
    """The books of a shard's engine, which shard it is, and how many doors listen to it."""

    shard: ShardRef
    doors: int


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The scheduler's books at one moment."""

    epoch: int
    queued: dict[str, int] = field(default_factory=dict)
    leased: int = 0
    shards: tuple[ShardRef, ...] = ()
    granted: int = 0
    refused: int = 0
    withdrawn: int = 0
    indexed_pages: int = 0


@dataclass(frozen=True, slots=True)
class ClusterStats:
    """The books of the scheduler, and of those shards that it knows and that answered."""

    scheduler: SchedulerStats
    shards: tuple[ShardStats, ...]
