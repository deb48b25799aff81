"""Snapshots of the books, for tests, dashboards and people: what is, at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.binding import Binding
from cluster.messages import ShardRef


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Pages and sequences now, and totals since the start.

    used + cached + free = total: `used_pages` belong to live sequences, `cached_pages` are kept
    only for their prefix and may be reused at once. `host_pages` are kept in host memory, whatever
    the pool holds of them; `pages_saved` went there, `pages_loaded` came back. `folder_pages` are
    kept in files, of `folder_bytes` together; files were written, or could not be
    (`folder_failed`), and were read back, or found missing or damaged (`folder_corrupt`); so often
    they were all given up for a while (`folder_given_up`), as the disk failed. `pauses` are the
    watermark's, `preemptions` for want of pages. Of `tokens_guessed` ahead of their turn so many
    were `guesses_right`. `compiled`: by a program made for the model, not by its layers one by one.
    `device_s`: from the first to the last kernel of each forward pass, on a GPU.
    """

    steps: int
    running: int
    waiting: int
    total_pages: int
    used_pages: int
    cached_pages: int
    free_pages: int
    host_pages: int
    pages_saved: int
    pages_loaded: int
    folder_pages: int
    folder_bytes: int
    folder_written: int
    folder_failed: int
    folder_read: int
    folder_corrupt: int
    folder_given_up: int
    pauses: int
    preemptions: int
    tokens_computed: int
    tokens_sampled: int
    prefix_hit_tokens: int
    tokens_guessed: int
    guesses_right: int
    compiled: bool
    device_s: float


@dataclass(frozen=True, slots=True)
class HandOverStats:
    """Requests whose pages are being fetched from a shard that leaves, and pages since the start:
    given to other shards, received from them, and refused since they were not what they should be.
    """

    fetching: int = 0
    pages_given: int = 0
    pages_received: int = 0
    pages_refused: int = 0
    bytes_received: int = 0


@dataclass(frozen=True, slots=True)
class ShardStats(EngineStats):
    """The books of a shard's engine, which shard it is, how many doors listen to it, and where it
    computes: with how many threads, bound to what, and why. `mended`: by its audits, by what was
    wrong (`cluster.audit.Discrepancy`). `hand_over`: pages that came from other shards or went
    there."""

    shard: ShardRef
    doors: int
    threads: int
    binding: Binding
    hand_over: HandOverStats = HandOverStats()
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

    `wait` is in the scheduler's queue, `ttft` from submission until the prompt was computed, of
    those that lost no shard, `tpot` per output token after that, of those whose shard counts them.
    """

    queued: int
    queued_tokens: int
    wait: Percentiles
    ttft: Percentiles
    tpot: Percentiles


@dataclass(frozen=True, slots=True)
class ModelStats:
    """One model: what its shards have in hand, how full they are, and how late they were lately.

    `granted` leases and those refused for want of room, `asked_in_vain`, are counted from the
    start. `utilization`: of what is fullest over all shards: places, pages, or the prompt tokens
    leased ahead of their computation. `delay`: of the time that the target for the first token
    leaves beside computing the prompt, and at least of a half, how much was waited; `tpot`, of that
    target: 1 is just in time. Who has no target, or was held up by a limit of its own, is left out.
    """

    shards: int = 0
    queued: int = 0
    running: int = 0
    granted: int = 0
    asked_in_vain: int = 0
    utilization: float = 0.0
    delay: Percentiles = Percentiles()
    tpot: Percentiles = Percentiles()

    @property
    def in_hand(self) -> int:
        return self.queued + self.running

    @property
    def idle(self) -> bool:
        """Nothing in hand, and nothing lately."""
        return not (self.in_hand or self.delay.count or self.tpot.count)


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
    models: dict[str, ModelStats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterStats:
    """The books of the scheduler, and of those shards that it knows and that answered."""

    scheduler: SchedulerStats
    shards: tuple[ShardStats, ...]
