"""What the scheduler and a living router lost between them is found at two looks, and mended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.audit import Discrepancy
from cluster.events import (
    Ask,
    Audited,
    DoorGone,
    Instruction,
    Reported,
    RouterGone,
    Submitted,
    Tell,
    Withdrawn,
)
from cluster.failover import attempt_id
from cluster.messages import Lease, Refusal, RefusalKind, ShardRef, Submission
from cluster.reports import ShardCapacity, ShardReport
from cluster.scheduling import SchedulerBrain
from cluster.scheduling_config import SchedulingConfig

SHARD = ShardRef("s", "m", "s", "1")
ONE_PLACE = ShardCapacity(block_size=16, total_pages=64, max_num_seqs=1, max_model_len=512)
NOBODY: frozenset[str] = frozenset()


class Audits:
    """A scheduler whose only shard runs "running", and its routers."""

    def __init__(self, **config: Any) -> None:
        self.brain = SchedulerBrain(SchedulingConfig(**config), epoch=1)
        self.now = 0.0
        self.brain.handle(Reported(ShardReport(SHARD, 1, ONE_PLACE, 64, full=True)), 0.0)
        self.submit("running")

    def submit(
        self, request_id: str, router: str = "r", prompt_tokens: int = 20, door: str = ""
    ) -> None:
        asked = Submission(request_id, router, "m", "t", "P1", prompt_tokens, 10, 1, (), door=door)
        self.brain.handle(Submitted(asked), self.now)

    def end(self, request_id: str, number: int = 2) -> None:
        self.brain.handle(
            Reported(ShardReport(SHARD, number, ONE_PLACE, 64, ended=(request_id,))), self.now
        )

    def audit(self, *awaited: str, router: str = "r") -> tuple[Instruction, ...]:
        told = self.brain.handle(Audited(router, frozenset(awaited)), self.now)
        self.brain.verify()
        return told

    @property
    def queued(self) -> int:
        return sum(self.brain.stats().queued.values())

    def mended(self, discrepancy: Discrepancy) -> int:
        return self.brain.stats().mended.get(discrepancy, 0)


@pytest.fixture
def audits() -> Iterator[Audits]:
    audits = Audits()
    yield audits
    audits.brain.verify()


def test_what_is_queued_for_a_router_that_does_not_wait_is_withdrawn(audits: Audits) -> None:
    audits.submit("dropped")
    audits.submit("awaited")
    assert (audits.audit("awaited"), audits.queued) == ((), 2)
    assert (audits.audit("awaited"), audits.queued) == ((), 1)
    assert audits.mended(Discrepancy.UNAWAITED) == 1


def test_what_is_queued_for_another_router_is_none_of_this_ones_business(audits: Audits) -> None:
    audits.submit("others", router="other")
    for _ in range(3):
        assert audits.audit() == audits.audit("others") == ()
    assert audits.queued == 1


def test_a_lease_that_its_router_was_not_told_of_is_told_again(audits: Audits) -> None:
    assert audits.audit("running") == ()
    [told] = audits.audit("running")
    assert isinstance(told, Tell)
    assert isinstance(told.decision, Lease)
    assert (told.router, told.decision.request_id) == ("r", "running")
    assert audits.mended(Discrepancy.UNDECIDED) == 1


def told_of(instructions: tuple[Instruction, ...]) -> Lease | Refusal:
    [told] = instructions
    assert isinstance(told, Tell)
    return told.decision


def test_what_was_served_and_is_over_is_told_again_and_not_asked_for(audits: Audits) -> None:
    audits.submit("running", router="other")
    audits.end("running")
    audits.audit("running")
    decision = told_of(audits.audit("running"))
    assert isinstance(decision, Lease)
    assert decision.request_id == "running"
    assert audits.brain.stats().leased == 0


def test_a_refusal_that_its_router_has_not_fetched_is_told_again(audits: Audits) -> None:
    audits.submit("too long", prompt_tokens=600)
    audits.audit("too long")
    decision = told_of(audits.audit("too long"))
    assert isinstance(decision, Refusal)
    assert decision.kind is RefusalKind.NEVER_FITS


def test_what_a_dead_door_had_waiting_is_told_again_and_not_asked_for(audits: Audits) -> None:
    audits.submit("waiting", door="d")
    audits.brain.handle(DoorGone("d"), audits.now)
    audits.audit("waiting")
    decision = told_of(audits.audit("waiting"))
    assert isinstance(decision, Refusal)
    assert decision.kind is RefusalKind.ABANDONED


def test_what_another_router_withdrew_is_not_asked_for_again(audits: Audits) -> None:
    """The first was asked, did not seem to answer, and waits on; then the second was."""
    audits.submit("waiting", router="first")
    audits.submit("waiting", router="second")
    audits.brain.handle(Withdrawn("waiting", "second"), audits.now)
    audits.audit("waiting", router="first")
    decision = told_of(audits.audit("waiting", router="first"))
    assert isinstance(decision, Refusal)
    assert decision.kind is RefusalKind.ABANDONED


def test_an_attempt_that_is_over_is_not_asked_for_where_the_next_was_decided(
    audits: Audits,
) -> None:
    audits.end("running")
    audits.submit(attempt_id("running", 1))
    audits.audit("running")
    decision = told_of(audits.audit("running"))
    assert isinstance(decision, Refusal)
    assert (decision.request_id, decision.kind) == ("running", RefusalKind.ABANDONED)


def test_an_attempt_that_never_came_is_asked_for_though_the_one_before_was_decided(
    audits: Audits,
) -> None:
    again = attempt_id("running", 1)
    audits.audit(again)
    assert audits.audit(again) == (Ask("r", again),)


def test_a_burst_of_decisions_since_leaves_what_is_over_known() -> None:
    audits = Audits(max_explained=1)
    audits.end("running")
    audits.submit("after it")
    audits.now = 60.0
    audits.audit("running")
    decision = told_of(audits.audit("running"))
    assert isinstance(decision, Refusal)
    assert decision.kind is RefusalKind.ABANDONED


def test_what_was_decided_long_ago_is_forgotten() -> None:
    audits = Audits(max_explained=1, audit_s=10.0)
    audits.end("running")
    for number, now in enumerate((40.0, 80.0)):
        audits.now = now
        audits.submit(f"{number}")
        audits.brain.handle(Withdrawn(f"{number}"), now)
    audits.audit("running")
    assert audits.audit("running") == (Ask("r", "running"),)


def test_telling_again_makes_no_decision_newer(audits: Audits) -> None:
    audits.now = 5.0
    for _ in range(2):
        audits.audit("running")
    explanation = audits.brain.explain("running", 5.0)
    assert explanation is not None
    assert explanation.ago_s == 5.0


def test_a_submission_that_never_came_is_asked_for_again(audits: Audits) -> None:
    assert audits.audit("lost") == ()
    assert audits.audit("lost") == (Ask("r", "lost"),)


def test_what_was_on_its_way_at_one_look_is_left_alone(audits: Audits) -> None:
    audits.submit("new")
    for awaited in (("lost",), ("new",), ("lost",), ("new",)):
        assert audits.audit(*awaited) == ()
    assert audits.queued == 1


def test_of_a_router_that_is_gone_nothing_is_kept_in_doubt(audits: Audits) -> None:
    audits.audit("lost")
    audits.brain.handle(RouterGone("r"), 1.0)
    assert audits.audit("lost") == ()
