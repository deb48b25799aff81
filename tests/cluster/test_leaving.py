"""A shard that leaves: it keeps its leases to their end and gets no more."""

from __future__ import annotations

from cluster.events import Reported, Submitted, Tell
from cluster.messages import Lease, ShardRef, Submission
from cluster.reports import ShardCapacity, ShardReport
from cluster.scheduling import SchedulerBrain
from cluster.scheduling_config import SchedulingConfig

CAPACITY = ShardCapacity(block_size=16, total_pages=64, max_num_seqs=8, max_model_len=512)
REF = {name: ShardRef(name, "m", name, "life") for name in ("a", "b")}


def report(brain: SchedulerBrain, name: str, number: int, **news: object) -> None:
    told = ShardReport(REF[name], number, CAPACITY, 64, full=number == 1, **news)  # type: ignore[arg-type]
    brain.handle(Reported(told), float(number))


def lease(brain: SchedulerBrain, request_id: str) -> str | None:
    wish = Submission(request_id, "router", "m", "t", "P1", 40, 10, 1, ())
    told = brain.handle(Submitted(wish), 9.0)
    leases = [one.decision for one in told if isinstance(one, Tell)]
    return leases[0].shard.shard if leases and isinstance(leases[0], Lease) else None


def test_a_shard_that_leaves_gets_no_more_leases_and_keeps_those_it_has() -> None:
    brain = SchedulerBrain(SchedulingConfig(), epoch=1)
    report(brain, "a", 1)
    assert lease(brain, "first") == "a"
    report(brain, "b", 1)
    report(brain, "a", 2, leaving=True)
    assert [lease(brain, str(number)) for number in range(6)] == ["b"] * 6
    assert brain.leases_on(REF["a"]) == {"first"}
    brain.verify()


def test_what_a_leaving_shard_lets_go_is_off_the_books_and_counts_as_not_served() -> None:
    brain = SchedulerBrain(SchedulingConfig(), epoch=1)
    report(brain, "a", 1)
    assert [lease(brain, name) for name in ("running", "done")] == ["a", "a"]
    report(brain, "a", 2, started=("running", "done"))
    done = {"ended": ("done",), "produced": (10,)}
    report(brain, "a", 3, leaving=True, displaced=("running",), **done)
    assert brain.leases_on(REF["a"]) == set()
    assert [one.usage.served for one in brain.stats().tenants.values()] == [1]
    brain.verify()


def test_where_all_leave_requests_wait_for_the_next_shard() -> None:
    brain = SchedulerBrain(SchedulingConfig(), epoch=1)
    report(brain, "a", 1, leaving=True)
    assert lease(brain, "r") is None
    told = brain.handle(Reported(ShardReport(REF["b"], 1, CAPACITY, 64, full=True)), 10.0)
    assert [one.decision.request_id for one in told if isinstance(one, Tell)] == ["r"]
    brain.verify()
