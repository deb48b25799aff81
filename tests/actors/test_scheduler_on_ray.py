"""The scheduler as a Ray actor: what only a real session can show."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from actors.scheduler import BatchScheduler
from cluster.messages import Lease, ShardRef, Submission
from cluster.reports import ShardCapacity, ShardReport
from cluster.scheduling_config import SchedulingConfig

ROOT = Path(__file__).parents[2]
CAPACITY = ShardCapacity(block_size=16, total_pages=64, max_num_seqs=1, max_model_len=512)
SHARD = ShardRef("shard-0", "m", "shard-0", "life-1")


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={
            "env_vars": {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        },
    )
    yield
    ray.shutdown()


def launch(epoch: int, router_timeout_s: float = 15) -> Any:
    actor = ray.remote(max_concurrency=10_000, num_cpus=0)(BatchScheduler)
    return actor.remote(SchedulingConfig(router_timeout_s=router_timeout_s), epoch)


@pytest.fixture
def scheduler() -> Iterator[Any]:
    scheduler = launch(epoch=1)
    ray.get(scheduler.report.remote(ShardReport(SHARD, 1, CAPACITY, 64, full=True)))
    yield scheduler
    ray.get(scheduler.verify.remote())
    ray.kill(scheduler)


def submission(request_id: str) -> Submission:
    return Submission(request_id, "r1", "m", "t", "P1", 20, 10, 1, ())


def ended(number: int, *request_ids: str) -> ShardReport:
    return ShardReport(SHARD, number, CAPACITY, 64, ended=request_ids)


def test_pending_decisions_come_by_a_poll_and_again_until_acknowledged(scheduler: Any) -> None:
    pair = (submission("a"), submission("b"))
    [lease] = ray.get(scheduler.submit.remote("r1", pair))
    assert (lease.request_id, lease.epoch) == ("a", 1)
    poll = scheduler.decisions.remote("r1", 0)
    ray.get(scheduler.report.remote(ended(2, "a")))
    batch = ray.get(poll)
    assert [decision.request_id for decision in batch.decisions] == ["b"]
    assert ray.get(scheduler.decisions.remote("r1", 0)) == batch


class Process:
    """In which a door is, as far as the scheduler sees it."""

    def called(self) -> str | None:
        name: str | None = ray.get_runtime_context().get_actor_name()
        return name

    def pid(self) -> int:
        return os.getpid()


def test_what_the_door_of_a_killed_process_has_waiting_is_dropped(scheduler: Any) -> None:
    actor = ray.remote(num_cpus=0)(Process)
    doors = [actor.options(name=name).remote() for name in ("dying", "living")]
    names = ray.get([door.called.remote() for door in doors])
    asked = [replace(submission(name), door=name) for name in names]
    ray.get(scheduler.submit.remote("r1", (submission("a"), *asked)))
    os.kill(ray.get(doors[0].pid.remote()), signal.SIGKILL)
    batch = ray.get(scheduler.decisions.remote("r1", 0), timeout=60)
    assert [decision.request_id for decision in batch.decisions] == ["dying"]
    assert ray.get(scheduler.stats.remote()).queued == {"P0": 0, "P1": 1, "P2": 0}


def test_a_thousand_polls_do_not_starve_a_report() -> None:
    scheduler = launch(epoch=1, router_timeout_s=3600)
    polls = [scheduler.decisions.remote(f"r{n}", 0) for n in range(1100)]
    assert ray.get(scheduler.report.remote(ended(2)), timeout=120).epoch == 1
    assert ray.wait(polls, timeout=0)[0] == []
    ray.kill(scheduler)


def test_whoever_watches_learns_of_its_death_and_a_new_life_rebuilds_the_books() -> None:
    first = launch(epoch=1)
    ray.get(first.report.remote(ShardReport(SHARD, 1, CAPACITY, 64, full=True)))
    watch = first.watch.remote()
    ray.kill(first)
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(watch, timeout=60)

    second = launch(epoch=2)
    assert ray.get(second.submit.remote("r1", (submission("a"),))) == ()
    ack = ray.get(second.report.remote(ended(2)))
    assert (ack.epoch, ack.resync) == (2, True)
    poll = second.decisions.remote("r1", 0)
    ray.get(second.report.remote(ShardReport(SHARD, 3, CAPACITY, 64, full=True)))
    [lease] = ray.get(poll).decisions
    assert isinstance(lease, Lease)
    assert (lease.request_id, lease.epoch, lease.shard) == ("a", 2, SHARD)
    ray.get(second.verify.remote())
    ray.kill(second)
