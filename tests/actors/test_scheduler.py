"""The scheduler actor as a plain object: mailboxes, acknowledgements, silent routers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import uvloop

from actors.scheduler import BatchScheduler
from cluster.messages import Decision, DecisionBatch, Lease, Refusal, ShardRef, Submission
from cluster.reports import ShardCapacity, ShardReport
from cluster.scheduling_config import SchedulingConfig

CAPACITY = ShardCapacity(block_size=16, total_pages=64, max_num_seqs=1, max_model_len=512)
SHARD = ShardRef("shard-0", "m", "shard-0", "life-1")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def scheduler(clock: Clock) -> AsyncIterator[BatchScheduler]:
    config = SchedulingConfig(router_timeout_s=15, shard_timeout_s=1e6)
    scheduler = BatchScheduler(config, epoch=7, clock=clock)
    assert (await scheduler.report(ShardReport(SHARD, 1, CAPACITY, 64, full=True))).epoch == 7
    yield scheduler
    await scheduler.verify()


def submission(request_id: str, router: str = "r1", prompt_tokens: int = 20) -> Submission:
    return Submission(request_id, router, "m", "t", "P1", prompt_tokens, 10, 1, ())


def ended(number: int, *request_ids: str) -> ShardReport:
    return ShardReport(SHARD, number, CAPACITY, 64, ended=request_ids)


def ids(decisions: tuple[Decision, ...]) -> list[str]:
    return [decision.request_id for decision in decisions]


async def test_a_submit_on_an_idle_system_is_answered_with_its_lease(
    scheduler: BatchScheduler,
) -> None:
    [lease] = await scheduler.submit("r1", (submission("a"),))
    assert isinstance(lease, Lease)
    assert (lease.epoch, lease.shard) == (7, SHARD)


async def test_a_batch_is_answered_with_those_decided_at_once_only(
    scheduler: BatchScheduler,
) -> None:
    told = await scheduler.submit(
        "r1", (submission("a"), submission("b"), submission("huge", prompt_tokens=999))
    )
    assert ids(told) == ["a", "huge"]
    assert isinstance(told[1], Refusal)


async def test_a_poll_waits_for_the_decision_that_was_left_pending(
    scheduler: BatchScheduler,
) -> None:
    await scheduler.submit("r1", (submission("a"), submission("b")))
    poll = asyncio.create_task(scheduler.decisions("r1", 0))
    await asyncio.sleep(0)
    assert not poll.done()
    await scheduler.report(ended(2, "a"))
    batch = await poll
    assert (batch.epoch, batch.number, ids(batch.decisions)) == (7, 1, ["b"])


async def test_what_an_arrival_lets_be_served_of_another_router_goes_to_that_router(
    clock: Clock,
) -> None:
    config = SchedulingConfig(gather_min_s=0.05, gather_max_s=0.05)
    scheduler = BatchScheduler(config, epoch=7, clock=clock)
    roomy = ShardCapacity(16, 4096, 64, 4096)
    await scheduler.report(ShardReport(SHARD, 1, roomy, 4096, full=True))
    answers: dict[str, list[str]] = {"r1": [], "r2": []}
    for turn in range(200):
        router = ("r1", "r2")[turn % 2]
        told = await scheduler.submit(router, (submission(f"{router}-{turn}", router),))
        answers[router] += ids(told)
        clock.now += 0.002
    for router, mine in answers.items():
        mine += ids((await scheduler.decisions(router, 0)).decisions)
        assert mine
        assert {one.partition("-")[0] for one in mine} == {router}
        assert len(set(mine)) == len(mine)
    await scheduler.verify()


async def test_a_batch_whose_reply_was_lost_is_sent_again_unchanged(
    scheduler: BatchScheduler,
) -> None:
    await scheduler.submit("r1", (submission("a"), submission("b"), submission("c")))
    await scheduler.report(ended(2, "a"))
    lost = await scheduler.decisions("r1", 0)
    await scheduler.report(ended(3, "b"))
    assert await scheduler.decisions("r1", 0) == lost
    after = await scheduler.decisions("r1", 1)
    assert (after.number, ids(after.decisions)) == (2, ["c"])


async def test_a_poll_given_up_on_takes_nothing_away_from_the_next(
    scheduler: BatchScheduler,
) -> None:
    await scheduler.submit("r1", (submission("a"), submission("b")))
    given_up = asyncio.create_task(scheduler.decisions("r1", 0))
    again = asyncio.create_task(scheduler.decisions("r1", 0))
    await asyncio.sleep(0)
    await scheduler.report(ended(2, "a"))
    assert await given_up == await again


async def test_a_router_that_outlived_the_scheduler_goes_on_numbering(
    scheduler: BatchScheduler,
) -> None:
    await scheduler.submit("r1", (submission("a"), submission("b")))
    await scheduler.report(ended(2, "a"))
    assert (await scheduler.decisions("r1", 17)).number == 18


async def test_a_poll_without_news_ends_empty() -> None:
    scheduler = BatchScheduler(SchedulingConfig(router_timeout_s=0.03), epoch=1)
    assert await scheduler.decisions("r1", 4) == DecisionBatch(1, 4, ())


async def test_of_a_silent_router_what_waits_is_withdrawn_and_what_is_undelivered_goes_to_others(
    scheduler: BatchScheduler, clock: Clock
) -> None:
    await scheduler.submit("r1", (submission("a"), submission("b"), submission("c")))
    await scheduler.report(ended(2, "a"))
    clock.now += 10
    await scheduler.submit("r2", (submission("d", router="r2"),))
    clock.now += 5
    scheduler.tick()
    assert ids((await scheduler.decisions("r2", 0)).decisions) == ["d"]
    stats = await scheduler.stats()
    assert (stats.withdrawn, stats.leased, sum(stats.queued.values())) == (2, 1, 0)


async def test_a_router_in_the_middle_of_a_poll_is_not_silent(
    scheduler: BatchScheduler, clock: Clock
) -> None:
    await scheduler.submit("r1", (submission("a"), submission("b")))
    poll = asyncio.create_task(scheduler.decisions("r1", 0))
    await asyncio.sleep(0)
    clock.now += 100
    scheduler.tick()
    await scheduler.report(ended(2, "a"))
    assert ids((await poll).decisions) == ["b"]


async def test_what_is_withdrawn_is_never_decided(scheduler: BatchScheduler) -> None:
    await scheduler.submit("r1", (submission("a"), submission("b"), submission("c")))
    await scheduler.withdraw("r1", ("b",))
    await scheduler.report(ended(2, "a"))
    assert ids((await scheduler.decisions("r1", 0)).decisions) == ["c"]


async def test_a_shard_seen_dying_frees_its_requests_to_be_placed_anew(
    scheduler: BatchScheduler,
) -> None:
    await scheduler.submit("r1", (submission("a"),))
    await scheduler.shard_gone(SHARD)
    reborn = ShardRef("shard-0", "m", "shard-0", "life-2")
    await scheduler.report(ShardReport(reborn, 1, CAPACITY, 64, full=True))
    [lease] = await scheduler.submit("r1", (submission("a"),))
    assert isinstance(lease, Lease)
    assert lease.shard == reborn


async def test_an_unknown_shard_is_asked_for_a_full_report(scheduler: BatchScheduler) -> None:
    stranger = ShardRef("shard-9", "m", "shard-9", "x")
    assert (await scheduler.report(ShardReport(stranger, 5, CAPACITY, 64))).resync


async def test_timers_run_by_themselves_once_anything_happened(
    scheduler: BatchScheduler, clock: Clock
) -> None:
    await scheduler.submit("r1", (submission("a"), submission("b")))
    poll = asyncio.create_task(scheduler.decisions("r1", 0))
    clock.now += 1e6
    while not poll.done():  # the shard is found silent, then its model missing for too long
        clock.now += 60
        await asyncio.sleep(0.01)
    [refusal] = (await poll).decisions
    assert isinstance(refusal, Refusal)


async def test_its_name_in_the_log_tells_the_epoch(scheduler: BatchScheduler) -> None:
    assert repr(scheduler) == "BatchScheduler(epoch=7)"
    assert await scheduler.ping() == 7


def test_a_timer_that_is_due_at_once_may_be_followed_by_others_on_the_loop_of_ray() -> None:
    async def submit_three() -> None:
        scheduler = BatchScheduler(SchedulingConfig(), epoch=7)
        await scheduler.report(ShardReport(SHARD, 1, CAPACITY, 64, full=True))
        for name in ("a", "b", "c"):  # of which two wait, until a moment from now
            await scheduler.submit("r1", (replace(submission(name), deadline_s=1e-4),))
        await scheduler.verify()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(submit_three())
