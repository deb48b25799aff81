"""Snapshots of the books, for tests, dashboards and people: what is, at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.binding import Binding
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
    """The books of a shard's engine, which shard it is, how many doors listen to it, and where it
    computes: with how many threads, bound to what, and why. `mended`: by its audits, by what was
    wrong (`cluster.audit.Discrepancy`)."""

    shard: ShardRef
    doors: int
    threads: int
    binding: Binding
    mended: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tenant has used since the scheduler began; `page_seconds` are pages x seconds held."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    page_seconds: float = 0.0
    served: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of what was measured lately, in seconds; None where nothing was."""

    count: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class ClassStats:
    """One class: who waits now, and how it went lately.

    `wait` is in the scheduler's queue, `ttft` from submission until the prompt was computed, `tpot`
    per output token after that, of requests whose shard counts them.
    """

    queued: int
    queued_tokens: int
    wait: Percentiles
    ttft: Percentiles
    tpot: Percentiles


@dataclass(frozen=True, slots=True)
class TenantStats:
    """One tenant: what it has in hand now, and what it has used."""

    queued: int
    running: int
    pages: int
    window_tokens: int
    usage: Usage


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The scheduler's books at one moment.

    `prompt_tokens` and `cached_tokens` are of all leases granted: their ratio is the hit rate as
    predicted. `refusals` counts by reason, `mended` by what audits found wrong; `tenants` are those
    that are remembered.
    """

    epoch: int
    queued: dict[str, int] = field(default_factory=dict)
    leased: int = 0
    shards: tuple[ShardRef, ...] = ()
    granted: int = 0
    refused: int = 0
    withdrawn: int = 0
    indexed_pages: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    mended: dict[str, int] = field(default_factory=dict)
    classes: dict[str, ClassStats] = field(default_factory=dict)
    tenants: dict[str, TenantStats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterStats:
    """The books of the scheduler, and of those shards that it knows and that answered."""

    scheduler: SchedulerStats
    shards: tuple[ShardStats, ...]
