"""A router's connection to real schedulers: across their deaths, their lives and their failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
import ray

from actors.creation import create_scheduler
from actors.naming import SCHEDULER
from actors.scheduler import BatchScheduler
from actors.scheduler_client import SchedulerClient
from cluster.errors import NotReady, SchedulerLost
from cluster.messages import Decision, Lease, ShardRef, Submission
from cluster.reports import ShardCapacity, ShardReport
from cluster.scheduling_config import SchedulingConfig
from cluster.stats import SchedulerStats
from tests.actors.living import ray_session, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

ONE_SEAT = ShardCapacity(block_size=16, total_pages=64, max_num_seqs=1, max_model_len=512)
SHARD = ShardRef("shard-0", "m", "shard-0", "life-1")
ROUTER = "r1"


class FailingOnce(BatchScheduler):
    """A scheduler that a broken ledger fails at its first submit."""

    broken = True

    async def submit(
        self, router: str, submissions: tuple[Submission, ...]
    ) -> tuple[Decision, ...]:
        if self.broken:
            self.broken = False
            raise KeyError("a bug")
        return await super().submit(router, submissions)


class LosingOneReply(BatchScheduler):
    """A scheduler whose first audit waits until somebody submits, and whose answer is lost."""

    def __init__(self, config: SchedulingConfig, epoch: int) -> None:
        super().__init__(config, epoch)
        self.audits = 0
        self.submitted = asyncio.Event()

    async def submit(
        self, router: str, submissions: tuple[Submission, ...]
    ) -> tuple[Decision, ...]:
        decided = await super().submit(router, submissions)
        if self.audits:
            self.submitted.set()
        return decided

    async def audit(self, router: str, awaited: frozenset[str]) -> tuple[str, ...]:
        self.audits += 1
        first = self.audits == 1
        if first:
            await self.submitted.wait()
        lost = await super().audit(router, awaited)
        if first:
            raise NotReady("the connection broke", retry_after_s=0.0)
        return lost

    async def audited(self) -> int:
        return self.audits


class Session:
    """A namespace with a router's client in it, and the schedulers that live there in turn."""

    def __init__(self) -> None:
        self.namespace = uuid4().hex
        self.client = SchedulerClient(ROUTER, self.namespace, patience_s=0.5)
        self.scheduler: Any = None

    async def begin(self) -> None:
        """A new life of the scheduler, with one shard that has room for one request."""
        self.scheduler = create_scheduler(SchedulingConfig(), self.namespace).handle
        await self.report(1, full=True)

    async def report(self, number: int, **fields: Any) -> None:
        await self.scheduler.report.remote(ShardReport(SHARD, number, ONE_SEAT, 64, **fields))

    async def queued(self) -> int:
        stats: SchedulerStats = await self.scheduler.stats.remote()
        return sum(stats.queued.values())

    async def queue(self, request_id: str) -> asyncio.Task[Decision]:
        """A placement that waits in the scheduler's queue."""
        placing = asyncio.create_task(self.client.place(submission(request_id)))

        async def waits() -> bool:
            return await self.queued() == 1

        await until(waits)
        return placing


def submission(request_id: str) -> Submission:
    return Submission(request_id, ROUTER, "m", "t", "P1", 20, 10, 1, ())


@pytest.fixture(scope="module", autouse=True)
def ray_here() -> Iterator[None]:
    with ray_session():
        yield


@pytest_asyncio.fixture(loop_scope="module")
async def session() -> AsyncIterator[Session]:
    session = Session()
    yield session
    await session.client.close()
    if session.scheduler is not None:
        await session.scheduler.verify.remote()
        ray.kill(session.scheduler)


async def test_a_lease_comes_at_once_where_there_is_room_and_by_the_poll_where_not(
    session: Session,
) -> None:
    await session.begin()
    at_once = await session.client.place(submission("a"))
    placing = await session.queue("b")
    await session.report(2, ended=("a",))
    later = await placing
    assert isinstance(at_once, Lease)
    assert isinstance(later, Lease)
    assert (at_once.request_id, later.request_id) == ("a", "b")


async def test_what_waits_at_a_scheduler_that_dies_is_placed_by_the_next(
    session: Session,
) -> None:
    await session.begin()
    first = await session.client.place(submission("a"))
    placing = await session.queue("b")
    ray.kill(session.scheduler)
    await session.begin()
    second = await placing
    assert isinstance(first, Lease)
    assert isinstance(second, Lease)
    assert second.request_id == "b"
    assert second.epoch > first.epoch


async def test_without_a_scheduler_it_is_lost_when_patience_ends(session: Session) -> None:
    with pytest.raises(SchedulerLost):
        await session.client.place(submission("a"))


async def test_a_withdrawn_request_leaves_the_queue(session: Session) -> None:
    await session.begin()
    await session.client.place(submission("a"))
    placing = await session.queue("b")
    await session.client.withdraw("b")
    with pytest.raises(asyncio.CancelledError):
        await placing
    assert await session.queued() == 0


async def test_a_withdrawn_lease_makes_room_for_who_waits(session: Session) -> None:
    await session.begin()
    await session.client.place(submission("a"))
    placing = await session.queue("b")
    await session.client.withdraw("a")
    assert isinstance(await placing, Lease)


async def test_a_scheduler_that_fails_at_a_call_leaves_nobody_waiting_and_is_asked_again(
    session: Session,
) -> None:
    failing = ray.remote(FailingOnce).options(
        name=SCHEDULER, namespace=session.namespace, num_cpus=0, max_concurrency=100
    )
    session.scheduler = failing.remote(SchedulingConfig(), 1)
    await session.report(1, full=True)
    with pytest.raises(SchedulerLost, match="failed"):
        await session.client.place(submission("a"))
    assert isinstance(await session.client.place(submission("b")), Lease)


async def test_closing_leaves_nobody_waiting(session: Session) -> None:
    await session.begin()
    await session.client.place(submission("a"))
    placing = await session.queue("b")
    await session.client.close()
    with pytest.raises(SchedulerLost, match="closed"):
        await placing


def lose_submission(scheduler: Any, request_id: str) -> None:
    """Strike from the scheduler's books what waits there."""
    brain = scheduler._brain
    brain._books.queues.remove(request_id)
    brain._dispatch.accounts.released(request_id, brain._now)


async def test_what_scheduler_and_router_lost_of_each_others_requests_is_mended(
    session: Session,
) -> None:
    session.client = SchedulerClient(ROUTER, session.namespace, patience_s=0.5, audit_s=0.1)
    await session.begin()
    await session.client.place(submission("a"))
    placing = await session.queue("b")
    # As if a submission had not come, and a withdrawal neither.
    await session.scheduler.__ray_call__.remote(lose_submission, "b")
    await session.scheduler.submit.remote(ROUTER, (submission("nobody's"),))

    async def mended() -> bool:
        stats: SchedulerStats = await session.scheduler.stats.remote()
        return (stats.mended.get("undecided"), stats.mended.get("unawaited")) == (1, 1)

    await until(mended)
    await session.report(2, ended=("a",))
    decision = await placing
    assert isinstance(decision, Lease)
    assert decision.request_id == "b"


async def test_an_audit_whose_answer_was_lost_withdraws_nothing_that_came_meanwhile(
    session: Session,
) -> None:
    session.client = SchedulerClient(ROUTER, session.namespace, audit_s=0.1)
    losing = ray.remote(LosingOneReply).options(
        name=SCHEDULER, namespace=session.namespace, num_cpus=0, max_concurrency=100
    )
    session.scheduler = losing.remote(SchedulingConfig(), 1)
    await session.report(1, full=True)

    async def audited(times: int) -> bool:
        return bool(await session.scheduler.audited.remote() >= times)

    await session.client.place(submission("a"))
    await until(lambda: audited(1))
    placing = await session.queue("b")
    await until(lambda: audited(3))
    stats: SchedulerStats = await session.scheduler.stats.remote()
    assert (sum(stats.queued.values()), sum(stats.mended.values())) == (1, 0)
    await session.report(2, ended=("a",))
    assert isinstance(await placing, Lease)
