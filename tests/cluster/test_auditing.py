"""What the scheduler and a living router lost between them is found at two looks, and mended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.audit import Discrepancy
from cluster.events import Ask, Audited, Instruction, Reported, RouterGone, Submitted, Tell
from cluster.messages import Lease, ShardRef, Submission
from cluster.reports import ShardCapacity, ShardReport
from cluster.scheduling import SchedulerBrain
from cluster.scheduling_config import SchedulingConfig

SHARD = ShardRef("s", "m", "s", "1")
ONE_PLACE = ShardCapacity(block_size=16, total_pages=64, max_num_seqs=1, max_model_len=512)
NOBODY: frozenset[str] = frozenset()


class Audits:
    """A scheduler whose only shard runs "running", and its routers."""

    def __init__(self) -> None:
        self.brain = SchedulerBrain(SchedulingConfig(), epoch=1)
        self.brain.handle(Reported(ShardReport(SHARD, 1, ONE_PLACE, 64, full=True)), 0.0)
        self.submit("running")

    def submit(self, request_id: str, router: str = "r") -> None:
        asked = Submission(request_id, router, "m", "t", "P1", 20, 10, 1, ())
        self.brain.handle(Submitted(asked), 0.0)

    def audit(self, *awaited: str, router: str = "r") -> tuple[Instruction, ...]:
        told = self.brain.handle(Audited(router, frozenset(awaited)), 1.0)
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
