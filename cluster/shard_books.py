"""What is known of one shard and of each lease on it: the rows of the lease book."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from cluster.errors import LedgerBroken
from cluster.messages import Lease, ShardRef
from cluster.rates import BusyRate
from cluster.reports import ShardCapacity


class LeaseState(StrEnum):
    """Where a lease stands; one that is over is no longer in the books."""

    GRANTED = "granted"  # the scheduler promised; the shard has not spoken of it yet
    CLAIMED = "claimed"  # the shard holds it and has not computed its prompt yet
    STARTED = "started"  # the prompt is computed
    ENDED = "ended"
    EXPIRED = "expired"  # nobody claimed it in time
    RELEASED = "released"  # whoever asked for it gave it back unused
    LOST = "lost"  # its shard is gone, or leaves and let it go


TRANSITIONS: Mapping[LeaseState, frozenset[LeaseState]] = MappingProxyType(
    {
        LeaseState.GRANTED: frozenset(LeaseState) - {LeaseState.GRANTED},
        LeaseState.CLAIMED: frozenset({LeaseState.STARTED, LeaseState.ENDED, LeaseState.LOST}),
        LeaseState.STARTED: frozenset({LeaseState.ENDED, LeaseState.LOST}),
        LeaseState.ENDED: frozenset(),
        LeaseState.EXPIRED: frozenset(),
        LeaseState.RELEASED: frozenset(),
        LeaseState.LOST: frozenset(),
    }
)
"""A withdrawn request that its shard already holds is no move: the shard will report its end."""

OVER = frozenset(state for state, onward in TRANSITIONS.items() if not onward)


class Load(NamedTuple):
    """What a lease weighs: tokens and pages of prompt to compute until it starts, and its choices.

    `pages` counts one page of output for each choice too, as no choice gets far without.
    """

    prefill_tokens: int
    pages: int
    sequences: int


class Bill(NamedTuple):
    """Whose request a lease serves, and what it was charged: output as expected, not as it came.

    `since` is when it was submitted, None where that was in another life of the scheduler, or
    before it lost a shard: no first token is to be timed then. `alone_s`, seconds, what computing
    the prompt takes where nothing else is to be computed, 0 where that is not known. `door` is the
    Ray actor at which its client stands, empty where in none.
    """

    tenant: str
    sla: str
    since: float | None
    uncached_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    pages: int = 0
    alone_s: float = 0.0
    door: str = ""


@dataclass(slots=True, eq=False)
class LeaseEntry:
    """One lease in the books; `output_tokens` is its shard's word at the end, where it has one."""

    lease: Lease
    load: Load
    bill: Bill
    granted_at: float
    state: LeaseState = LeaseState.GRANTED
    started_at: float | None = None
    output_tokens: int | None = None


@dataclass(slots=True, eq=False)
class ShardBook:
    """What the scheduler knows of one life of a shard. Only `LeaseBook` writes to it.

    `free_pages` is the shard's own word as of report `number`; `promised_pages` and
    `prefill_tokens` are of the leases it has not computed yet, and `prefill_behind` those of them
    that each class goes before, the highest first; `sequences` are of all its leases.
    `resync` says that the books doubt themselves and the next report has to be a full one.
    `last_grant` counts the book's grants, so that the smallest is the least recently used.
    `speed` is that of its prefill, by its own word.
    `longest` is the most tokens, prompt and output, that one sequence can ever have here.
    One that is `leaving` gets no more leases.
    """

    ref: ShardRef
    capacity: ShardCapacity
    free_pages: int
    number: int
    heard_at: float
    resync: bool = False
    leaving: bool = False
    last_grant: int = 0
    prefill_tokens: int = 0
    prefill_behind: list[int] = field(default_factory=list)
    promised_pages: int = 0
    sequences: int = 0
    speed: BusyRate = field(default_factory=BusyRate)
    leases: dict[str, LeaseEntry] = field(default_factory=dict)
    longest: int = field(init=False)

    def __post_init__(self) -> None:
        pool = self.capacity.total_pages * self.capacity.block_size
        self.longest = min(self.capacity.max_model_len, pool)

    @property
    def unpromised(self) -> int:
        """Pages that are free and that nobody has a lease on."""
        return self.free_pages - self.promised_pages

    @property
    def wait_s(self) -> float:
        """How long the prompts that are leased take it, as far as its speed is known."""
        return self.prefill_tokens / (self.speed.per_second or math.inf)

    def weigh(self, entry: LeaseEntry, sign: int) -> None:
        """Put the weight of a lease here on (+1), as what state it is in, or take it off (-1)."""
        self.sequences += sign * entry.load.sequences
        if entry.state is not LeaseState.STARTED:
            self._weigh_prompt(entry, sign)

    def computed(self, entry: LeaseEntry) -> None:
        """The prompt of a lease that did not start before weighs nothing any more."""
        self._weigh_prompt(entry, -1)

    def _weigh_prompt(self, entry: LeaseEntry, sign: int) -> None:
        tokens, pages, _ = entry.load
        self.prefill_tokens += sign * tokens
        self.promised_pages += sign * pages
        behind, rank = self.prefill_behind, entry.lease.rank
        if rank > len(behind):
            behind += [0] * (rank - len(behind))
        for higher in range(rank):
            behind[higher] += sign * tokens

    def pages_of(self, tokens: int) -> int:
        return -(-tokens // self.capacity.block_size)

    def verify(self) -> None:
        """Raises LedgerBroken where a sum kept along the way is not that of the leases."""
        entries = self.leases.values()
        waiting = [entry for entry in entries if entry.state is not LeaseState.STARTED]
        tokens = sum(entry.load.prefill_tokens for entry in waiting)
        self._same("sequences", self.sequences, sum(entry.load.sequences for entry in entries))
        self._same("tokens", self.prefill_tokens, tokens)
        for rank, kept in enumerate(self.prefill_behind):
            lower = [entry.load.prefill_tokens for entry in waiting if entry.lease.rank > rank]
            self._same(f"tokens behind class {rank}", kept, sum(lower))
        self._same("pages", self.promised_pages, sum(entry.load.pages for entry in waiting))
        self._same("over", 0, sum(entry.state in OVER for entry in entries))
        self._same("strangers", 0, sum(entry.lease.shard != self.ref for entry in entries))

    def _same(self, what: str, kept: int, counted: int) -> None:
        if kept != counted:
            raise LedgerBroken(f"{self.ref.shard}: {what} kept {kept}, counted {counted}")
