"""The books of what is promised on each shard: leases, their states, and what they weigh."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import zip_longest

from cluster.errors import IllegalTransition, LedgerBroken
from cluster.holdings import Holding, Holdings
from cluster.loads import ModelShards
from cluster.messages import Lease, Reason, ShardRef
from cluster.register import ShardRegister
from cluster.reports import HeldRequest, ShardReport
from cluster.scheduling_config import PlacementConfig
from cluster.shard_books import (
    OVER,
    TRANSITIONS,
    Bill,
    LeaseEntry,
    LeaseState,
    Load,
    ShardBook,
)
from cluster.unclaimed import Unclaimed


class LeaseBook:
    """All shards and all leases; changed by the verbs below and by nothing else.

    Leases that started or are over since the last look are handed out once, by `drain`.
    """

    def __init__(
        self,
        epoch: int,
        claim_timeout_s: float,
        placement: PlacementConfig | None = None,
        ranks: Mapping[str, int] | None = None,
    ) -> None:
        """`ranks`: of the classes by name, 0 the highest."""
        self._ranks = ranks or {}
        self._epoch = epoch
        self._claim_timeout_s = claim_timeout_s
        self._shards = ShardRegister(placement or PlacementConfig())
        self._entries: dict[str, LeaseEntry] = {}
        self.unclaimed = Unclaimed()
        self._holdings = Holdings()
        self._moved: list[tuple[LeaseEntry, LeaseState]] = []
        self._grants = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def grants(self) -> int:
        return self._grants

    def shards(self) -> Iterable[ShardBook]:
        return self._shards.every()

    def serving(self, model: str) -> ModelShards:
        """The shards of `model`, perhaps none."""
        return self._shards.serving(model)

    def shard(self, ref: ShardRef) -> ShardBook | None:
        """The book of this very life of the shard."""
        return self._shards.life(ref)

    def entry(self, request_id: str) -> LeaseEntry | None:
        return self._entries.get(request_id)

    def drain(self) -> list[tuple[LeaseEntry, LeaseState]]:
        """The leases that started or are over since the last call, and which of it."""
        moved, self._moved = self._moved, []
        return moved

    def holding(self, tenant: str) -> Holding:
        """What the leases of `tenant` hold."""
        return self._holdings.of(tenant)

    def grant(self, lease: Lease, load: Load, bill: Bill, now: float) -> None:
        shard = self._shards[lease.shard.shard]
        self._grants += 1
        shard.last_grant = self._grants
        entry = LeaseEntry(lease, load, bill, now)
        self._enter(shard, entry)
        self.unclaimed.add(entry)

    def move(self, request_id: str, state: LeaseState) -> None:
        """Raises IllegalTransition, and changes nothing, where `TRANSITIONS` has no such move."""
        entry = self._entries[request_id]
        if state not in TRANSITIONS[entry.state]:
            raise IllegalTransition(f"lease {request_id}: {entry.state} to {state}")
        shard = self._shards[entry.lease.shard.shard]
        self.unclaimed.remove(entry)
        if state in OVER:
            self._shards.weigh(shard, entry, -1)
            del self._entries[request_id], shard.leases[request_id]
            self._holdings.remove(entry.bill)
        elif state is LeaseState.STARTED:
            self._shards.computed(shard, entry)
        entry.state = state
        if state is not LeaseState.CLAIMED:
            self._moved.append((entry, state))

    def hear(self, ref: ShardRef, now: float) -> ShardBook:
        """A known shard gave a sign of life."""
        shard = self._shards[ref.shard]
        shard.heard_at = now
        return shard

    def settle(self, report: ShardReport, now: float) -> None:
        """Apply a report of a known shard; where one is missing, the next has to be full."""
        shard = self._shards[report.shard.shard]
        shard.resync |= report.number > shard.number + 1
        shard.number, shard.free_pages = report.number, report.free_pages
        shard.leaving = report.leaving
        self._happen(shard, report, now)

    def reconcile(self, report: ShardReport, now: float) -> None:
        """Let a full report replace what was known: of a new shard, of a new life, of each lease.

        A young lease that the shard does not hold stays: its door is on the way there. What the
        report says to have started or ended did so after `held` was drawn up.
        """
        name = report.shard.shard
        if self.shard(report.shard) is None:
            self.drop(name)
            self._shards.add(ShardBook(report.shard, report.capacity, report.free_pages, 0, now))
        shard = self._shards[name]
        shard.number, shard.free_pages = report.number, report.free_pages
        shard.leaving = report.leaving
        shard.resync = False
        for request in report.held:
            self._hold(shard, request, now)
        self._happen(shard, report, now)
        there = {request.request_id for request in report.held} | set(report.started)
        for entry in [e for key, e in shard.leases.items() if key not in there]:
            self._miss(entry, now)

    def drop(self, name: str) -> None:
        """Forget a shard, if known, and lose its leases."""
        if name in self._shards:
            for request_id in list(self._shards[name].leases):
                self.move(request_id, LeaseState.LOST)
            self._shards.remove(name)

    def doubt_unclaimed(self, now: float) -> None:
        """Ask for a full report wherever a lease stayed unclaimed: only the shard knows the truth.

        A lease may wait long in its shard's own queue, which no report mentions but a full one.
        """
        for request_id in self.unclaimed.doubt(now - self._claim_timeout_s):
            self._shards[self._entries[request_id].lease.shard.shard].resync = True

    def _happen(self, shard: ShardBook, report: ShardReport, now: float) -> None:
        self._shards.changed(shard)
        for request_id in report.started:
            self._start(shard, request_id, now)
        if report.prefilling.tokens:
            shard.speed.record(report.prefilling.tokens, report.prefilling.seconds)
        for request_id in report.displaced:
            if request_id in shard.leases:
                self.move(request_id, LeaseState.LOST)
        for request_id, tokens in zip_longest(report.ended, report.produced):
            if request_id in shard.leases:
                shard.leases[request_id].output_tokens = tokens
                self.move(request_id, LeaseState.ENDED)

    def _start(self, shard: ShardBook, request_id: str, now: float) -> None:
        entry = self._entries.get(request_id)
        if entry is None:  # expired or released, and used after all
            shard.resync = True
        elif request_id in shard.leases and entry.state is not LeaseState.STARTED:
            entry.started_at = now
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
        """The lease that another life of the scheduler, or this one forgetting, must have made.

        What that life charged is forgotten with it, so nothing can be given back here, and so is
        when the request came.
        """
        missing = max(held.prompt_tokens - held.computed_tokens, 0)
        rank = self._ranks.get(held.sla, 0)
        lease = Lease(held.request_id, self._epoch, shard.ref, 0, Reason(0.0, ()), rank)
        load = Load(missing, shard.pages_of(missing) + held.choices, held.choices)
        bill = Bill(held.tenant, held.sla, since=None, pages=shard.pages_of(held.prompt_tokens))
        return LeaseEntry(lease, load, bill, now)

    def _enter(self, shard: ShardBook, entry: LeaseEntry) -> None:
        self._entries[entry.lease.request_id] = entry
        shard.leases[entry.lease.request_id] = entry
        self._holdings.add(entry.bill)
        self._shards.weigh(shard, entry, +1)

    def verify(self) -> None:
        """Raises LedgerBroken where a sum kept along the way differs from one made afresh."""
        self._shards.verify()
        kept = {key: e for shard in self._shards.every() for key, e in shard.leases.items()}
        if kept != self._entries:
            raise LedgerBroken(f"leases: {len(self._entries)} kept, {len(kept)} on shards")
        self._holdings.verify(entry.bill for entry in self._entries.values())
        self.unclaimed.verify(self._entries.values())
