"""The books of what is promised on each shard: leases, their states, and what they weigh."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from cluster.errors import IllegalTransition, LedgerBroken
from cluster.messages import HeldRequest, Lease, Reason, ShardCapacity, ShardRef, ShardReport


class LeaseState(StrEnum):
    """Where a lease stands; one that is over is no longer in the books."""

    GRANTED = "granted"  # the scheduler promised; the shard has not spoken of it yet
    CLAIMED = "claimed"  # the shard holds it and has not computed its prompt yet
    STARTED = "started"  # the prompt is computed
    ENDED = "ended"
    EXPIRED = "expired"  # nobody claimed it in time
    RELEASED = "released"  # whoever asked for it gave it back unused
    LOST = "lost"  # its shard is gone


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


@dataclass(frozen=True, slots=True)
class Load:
    """What a lease weighs: tokens and pages of prompt to compute until it starts, and its choices.

    `pages` counts one page of output for each choice too, as no choice gets far without.
    """

    prefill_tokens: int
    pages: int
    sequences: int


@dataclass(slots=True, eq=False)
class LeaseEntry:
    """One lease in the books."""

    lease: Lease
    load: Load
    granted_at: float
    state: LeaseState = LeaseState.GRANTED


@dataclass(slots=True, eq=False)
class ShardBook:
    """What the scheduler knows of one life of a shard. Only `LeaseBook` writes to it.

    `free_pages` is the shard's own word as of report `number`; `promised_pages` and
    `prefill_tokens` are of the leases it has not computed yet, `sequences` of all its leases.
    `resync` says that the books doubt themselves and the next report has to be a full one.
    `last_grant` counts the book's grants, so that the smallest is the least recently used.
    `longest` is the most tokens, prompt and output, that one sequence can ever have here.
    """

    ref: ShardRef
    capacity: ShardCapacity
    free_pages: int
    number: int
    heard_at: float
    resync: bool = False
    last_grant: int = 0
    prefill_tokens: int = 0
    promised_pages: int = 0
    sequences: int = 0
    leases: dict[str, LeaseEntry] = field(default_factory=dict)
    longest: int = field(init=False)

    def __post_init__(self) -> None:
        pool = self.capacity.total_pages * self.capacity.block_size
        self.longest = min(self.capacity.max_model_len, pool)

    def pages_of(self, tokens: int) -> int:
        return -(-tokens // self.capacity.block_size)


class LeaseBook:
    """All shards and all leases; changed by the verbs below and by nothing else."""

    def __init__(self, epoch: int, claim_timeout_s: float) -> None:
        self._epoch = epoch
        self._claim_timeout_s = claim_timeout_s
        self._shards: dict[str, ShardBook] = {}
        self._models: dict[str, dict[str, ShardBook]] = {}
        self._entries: dict[str, LeaseEntry] = {}
        self._unclaimed: deque[tuple[float, str]] = deque()
        self._grants = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def grants(self) -> int:
        return self._grants

    def shards(self) -> Iterable[ShardBook]:
        return self._shards.values()

    def serving(self, model: str) -> Mapping[str, ShardBook]:
        """The shards of `model`, by name."""
        return self._models.get(model, {})

    def shard(self, ref: ShardRef) -> ShardBook | None:
        """The book of this very life of the shard."""
        book = self._shards.get(ref.shard)
        return book if book is not None and book.ref == ref else None

    def entry(self, request_id: str) -> LeaseEntry | None:
        return self._entries.get(request_id)

    def grant(self, lease: Lease, load: Load, now: float) -> None:
        shard = self._shards[lease.shard.shard]
        self._grants += 1
        shard.last_grant = self._grants
        self._unclaimed.append((now, lease.request_id))
        self._enter(shard, LeaseEntry(lease, load, now))

    def move(self, request_id: str, state: LeaseState) -> None:
        """Raises IllegalTransition, and changes nothing, where `TRANSITIONS` has no such move."""
        entry = self._entries[request_id]
        if state not in TRANSITIONS[entry.state]:
            raise IllegalTransition(f"lease {request_id}: {entry.state} to {state}")
        shard = self._shards[entry.lease.shard.shard]
        self._weigh(shard, entry, -1)
        entry.state = state
        if state in OVER:
            del self._entries[request_id], shard.leases[request_id]
        else:
            self._weigh(shard, entry, +1)

    def hear(self, ref: ShardRef, now: float) -> ShardBook:
        """A known shard gave a sign of life."""
        shard = self._shards[ref.shard]
        shard.heard_at = now
        return shard

    def settle(self, report: ShardReport) -> None:
        """Apply a report of a known shard; where one is missing, the next has to be full."""
        shard = self._shards[report.shard.shard]
        shard.resync |= report.number > shard.number + 1
        shard.number, shard.free_pages = report.number, report.free_pages
        self._happen(shard, report)

    def reconcile(self, report: ShardReport, now: float) -> None:
        """Let a full report replace what was known: of a new shard, of a new life, of each lease.

        A young lease that the shard does not hold stays: its door is on the way there. What the
        report says to have started or ended did so after `held` was drawn up.
        """
        name = report.shard.shard
        if self.shard(report.shard) is None:
            self.drop(name)
            shard = ShardBook(report.shard, report.capacity, report.free_pages, 0, now)
            self._shards[name] = self._models.setdefault(report.shard.model, {})[name] = shard
        shard = self._shards[name]
        shard.number, shard.free_pages = report.number, report.free_pages
        shard.resync = False
        for request in report.held:
            self._hold(shard, request, now)
        self._happen(shard, report)
        there = {request.request_id for request in report.held} | set(report.started)
        for entry in [e for key, e in shard.leases.items() if key not in there]:
            self._miss(entry, now)

    def drop(self, name: str) -> None:
        """Forget a shard, if known, and lose its leases."""
        shard = self._shards.get(name)
        if shard is None:
            return
        for request_id in list(shard.leases):
            self.move(request_id, LeaseState.LOST)
        del self._shards[name], self._models[shard.ref.model][name]

    def doubt_unclaimed(self, now: float) -> None:
        """Ask for a full report wherever a lease stayed unclaimed: only the shard knows the truth.

        A lease may wait long in its shard's own queue, which no report mentions but a full one.
        """
        while self._unclaimed and self._unclaimed[0][0] <= now - self._claim_timeout_s:
            granted_at, request_id = self._unclaimed.popleft()
            entry = self._entries.get(request_id)
            if entry is None or entry.granted_at != granted_at:
                continue
            if entry.state is LeaseState.GRANTED:
                self._shards[entry.lease.shard.shard].resync = True

    def _happen(self, shard: ShardBook, report: ShardReport) -> None:
        for request_id in report.started:
            if request_id not in report.ended:
                self._start(shard, request_id)
        for request_id in report.ended:
            if request_id in shard.leases:
                self.move(request_id, LeaseState.ENDED)

    def _start(self, shard: ShardBook, request_id: str) -> None:
        entry = self._entries.get(request_id)
        if entry is None:  # expired or released, and used after all
            shard.resync = True
        elif request_id in shard.leases and entry.state is not LeaseState.STARTED:
            self.move(request_id, LeaseState.STARTED)

    def _miss(self, entry: LeaseEntry, now: float) -> None:
        if entry.state is not LeaseState.GRANTED:
            self.move(entry.lease.request_id, LeaseState.ENDED)
        elif entry.granted_at <= now - self._claim_timeout_s:
            self.move(entry.lease.request_id, LeaseState.EXPIRED)

    def _hold(self, shard: ShardBook, held: HeldRequest, now: float) -> None:
        """Where two shards hold a request, the books follow the one it was last leased to."""
        if held.request_id not in self._entries:
            self._enter(shard, self._adopted(shard, held, now))
        if held.request_id not in shard.leases:
            return
        started = held.computed_tokens >= held.prompt_tokens
        state = LeaseState.STARTED if started else LeaseState.CLAIMED
        if state in TRANSITIONS[self._entries[held.request_id].state]:
            self.move(held.request_id, state)

    def _adopted(self, shard: ShardBook, held: HeldRequest, now: float) -> LeaseEntry:
        """The lease that another life of the scheduler, or this one forgetting, must have made."""
        missing = max(held.prompt_tokens - held.computed_tokens, 0)
        lease = Lease(held.request_id, self._epoch, shard.ref, 0, Reason(0.0, ()))
        load = Load(missing, shard.pages_of(missing) + held.choices, held.choices)
        return LeaseEntry(lease, load, now)

    def _enter(self, shard: ShardBook, entry: LeaseEntry) -> None:
        self._entries[entry.lease.request_id] = entry
        shard.leases[entry.lease.request_id] = entry
        self._weigh(shard, entry, +1)

    def _weigh(self, shard: ShardBook, entry: LeaseEntry, sign: int) -> None:
        shard.sequences += sign * entry.load.sequences
        if entry.state is not LeaseState.STARTED:
            shard.prefill_tokens += sign * entry.load.prefill_tokens
            shard.promised_pages += sign * entry.load.pages

    def verify(self) -> None:
        """Raises LedgerBroken where a sum kept along the way differs from one made afresh."""
        for name, shard in self._shards.items():
            entries = shard.leases.values()
            waiting = [e.load for e in entries if e.state is not LeaseState.STARTED]
            _same(name, "sequences", shard.sequences, sum(e.load.sequences for e in entries))
            _same(name, "tokens", shard.prefill_tokens, sum(w.prefill_tokens for w in waiting))
            _same(name, "pages", shard.promised_pages, sum(w.pages for w in waiting))
            _same(name, "over", 0, sum(e.state in OVER for e in entries))
            _same(name, "strangers", 0, sum(e.lease.shard != shard.ref for e in entries))
        kept = {key: e for shard in self._shards.values() for key, e in shard.leases.items()}
        _same("all", "leases", len(self._entries), len(kept))
        _same("all", "entries", 0, sum(self._entries[key] is not e for key, e in kept.items()))
        by_model = {name for shards in self._models.values() for name in shards}
        _same("all", "unlisted shards", 0, len(self._shards.keys() ^ by_model))


def _same(shard: str, what: str, kept: int, counted: int) -> None:
    if kept != counted:
        raise LedgerBroken(f"leases of {shard}: {what} kept {kept}, counted {counted}")
