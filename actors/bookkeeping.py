"""Keeps the scheduler's books of a shard up to date, and all books about it of one mind."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from actors.doors import Doors
from actors.engine_thread import EngineThread, Outcome
from actors.hand_over import Intake
from actors.naming import SCHEDULER, ActorAddress
from actors.reporting import Reporter, ReportLedger
from actors.shard_audit import Ledgers, ShardAudit
from actors.shard_spec import ShardSpec
from cluster.audit import Discrepancy
from cluster.errors import Displaced
from cluster.messages import ShardRef
from cluster.reports import ShardCapacity


class Bookkeeping:
    """The reports and the audit of one shard, from when its `capacity` is known.

    `heard` is called whenever a scheduler has taken in a report.
    """

    def __init__(
        self,
        spec: ShardSpec,
        capacity: ShardCapacity,
        doors: Doors,
        engine: EngineThread,
        intake: Intake,
        heard: Callable[[], None],
    ) -> None:
        scheduler = ActorAddress(SCHEDULER, spec.namespace)
        ledger = ReportLedger(spec.ref, capacity)
        self._spec = spec
        self._doors = doors
        self._engine = engine
        self._intake = intake
        self._reporter = Reporter(
            ledger, scheduler, engine.ask_snapshot, spec.timing.reports, heard
        )
        self._audit = ShardAudit(spec.ref, scheduler, self._ledgers())

    @property
    def mended(self) -> Mapping[str, int]:
        """What the audit had to put right, by what was wrong."""
        return self._audit.mended

    @property
    def looks(self) -> int:
        """How often the audit has compared all books."""
        return self._audit.looks

    def loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """The work that has to go on as long as the shard lives."""
        return self._reporter.run(), self._audit.run(self._spec.timing.audit_s)

    def enter(self, outcome: Outcome) -> None:
        self._reporter.enter(outcome)
        if outcome.snapshot is not None:
            self._audit.enter(frozenset(one.request_id for one in outcome.snapshot.held))

    def leave(self) -> None:
        """Say at once that the shard takes no more."""
        self._reporter.leave()

    def displace(self, request_ids: Iterable[str]) -> None:
        """When these end, they have not been served: they go on elsewhere."""
        self._reporter.displace(request_ids)

    def count(self, discrepancy: Discrepancy, requests: int) -> None:
        """So many were found wrong, and mended, by a door."""
        self._audit.count(discrepancy, requests)

    def _ledgers(self) -> Ledgers:
        kind, why = Displaced.__name__, no_record(self._spec.ref)
        return Ledgers(
            at_doors=self._doors.requests,
            ask_engine=self._engine.ask_snapshot,
            on_their_way=self._intake.fetching,
            end=lambda request_id: self._intake.cancel(request_id, None),
            tell_doors=lambda request_ids: self._doors.fail(request_ids, kind, why),
            report_in_full=self._reporter.resync,
        )


def no_record(shard: ShardRef) -> str:
    """What a door is told that waits for what the shard has not."""
    return f"{shard.shard} has no record of it any more"
