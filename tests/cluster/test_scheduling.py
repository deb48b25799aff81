"""The brain: events in, instructions out, on a clock that the test moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from cluster.events import (
    Acknowledge,
    DoorGone,
    Event,
    Reported,
    RouterGone,
    ShardGone,
    Submitted,
    Tell,
    Ticked,
    Withdrawn,
)
from cluster.messages import Decision, Lease, PageHash, Refusal, RefusalKind, ShardRef, Submission
from cluster.reports import HeldRequest, ShardCapacity, ShardReport
from cluster.scheduling import SchedulerBrain
from cluster.scheduling_config import SchedulingConfig

CONFIG = SchedulingConfig(max_queued=2, shard_timeout_s=10, not_ready_timeout_s=30)
PAGE = bytes(16)
PAGES = tuple(bytes([n]) * 16 for n in range(6))


def ref(name: str, life: int = 1) -> ShardRef:
    return ShardRef(name, "m", name, str(life))


class Bench:
    """A brain, its clock, and shards of one slot each."""

    def __init__(self) -> None:
        self.brain = SchedulerBrain(CONFIG, epoch=3)
        self.now = 50.0

    def happens(self, event: Event) -> list[Decision]:
        instructions = self.brain.handle(event, self.now)
        self.brain.verify()
        return [each.decision for each in instructions if isinstance(each, Tell)]

    def submit(self, request_id: str, **wishes: object) -> Decision | None:
        decisions = self.happens(Submitted(submission(request_id, **wishes)))
        return decisions[0] if decisions else None

    def join(self, name: str, life: int = 1, **news: object) -> list[Decision]:
        return self.report(name, 1, life=life, full=True, **news)

    def report(self, name: str, number: int, life: int = 1, **news: object) -> list[Decision]:
        return self.happens(Reported(self.heard(name, number, life, **news)))

    def heard(self, name: str, number: int, life: int = 1, **news: object) -> ShardReport:
        capacity = ShardCapacity(block_size=16, total_pages=64, max_num_seqs=1, max_model_len=512)
        return ShardReport(ref(name, life), number, capacity, 64, **news)  # type: ignore[arg-type]

    def resync_asked(self, name: str, number: int, life: int = 1, **news: object) -> bool:
        instructions = self.brain.handle(Reported(self.heard(name, number, life, **news)), self.now)
        [ack] = [each.ack for each in instructions if isinstance(each, Acknowledge)]
        assert ack.epoch == 3
        return ack.resync


def submission(request_id: str, **wishes: object) -> Submission:
    figures: dict[str, object] = {
        "router": "r1",
        "model": "m",
        "tenant": "t",
        "sla": "P1",
        "prompt_tokens": 40,
        "max_tokens": 10,
        "choices": 1,
        "page_hashes": (),
    }
    return Submission(request_id, **(figures | wishes))  # type: ignore[arg-type]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.brain.verify()


def shard_of(decision: Decision | None) -> str:
    assert isinstance(decision, Lease)
    return decision.shard.shard


def kind_of(decision: Decision | None) -> RefusalKind:
    assert isinstance(decision, Refusal)
    return decision.kind


def names(decisions: list[Decision]) -> list[str]:
    return [decision.request_id for decision in decisions if isinstance(decision, Lease)]


def test_a_submit_on_an_idle_system_is_decided_at_once(bench: Bench) -> None:
    bench.join("s")
    lease = bench.submit("a")
    assert isinstance(lease, Lease)
    assert (lease.epoch, lease.shard, lease.reason.waited_s) == (3, ref("s"), 0.0)
    assert [candidate.shard for candidate in lease.reason.candidates] == ["s"]


def test_an_end_serves_the_next_in_order_and_says_how_long_it_waited(bench: Bench) -> None:
    bench.join("s")
    bench.submit("a")
    for request_id in ("first", "second"):
        assert bench.submit(request_id) is None
    bench.now += 4
    [lease] = bench.report("s", 2, ended=("a",))
    assert isinstance(lease, Lease)
    assert (lease.request_id, lease.reason.waited_s) == ("first", 4.0)
    assert names(bench.report("s", 3, ended=("first",))) == ["second"]


def test_a_long_prompt_stands_back_behind_a_short_one_until_it_has_waited_for_it(
    bench: Bench,
) -> None:
    bench.join("s")
    bench.submit("a")
    bench.submit("long", prompt_tokens=440)
    bench.now += 0.7  # of the 0.8 s that 400 tokens more stand back
    bench.submit("short")
    assert names(bench.report("s", 2, ended=("a",))) == ["short"]
    bench.now += 0.2
    bench.submit("late")
    assert names(bench.report("s", 3, ended=("short",))) == ["long"]


def test_what_the_cluster_holds_of_a_prompt_does_not_make_it_long(bench: Bench) -> None:
    bench.join("s", stored=PAGES)
    bench.submit("a")
    bench.submit("other", prompt_tokens=40)
    bench.submit("turn", prompt_tokens=6 * 16 + 20, page_hashes=PAGES)
    assert names(bench.report("s", 2, ended=("a",))) == ["turn"]


def test_cold_requests_spread_over_all_shards_evenly(bench: Bench) -> None:
    shards = [f"s{n}" for n in range(5)]
    for name in shards:
        bench.join(name)
    granted: Counter[str] = Counter()
    for n in range(50):
        name = shard_of(bench.submit(f"q{n}"))
        granted[name] += 1
        bench.report(name, granted[name] + 1, ended=(f"q{n}",))
    assert granted == dict.fromkeys(shards, 10)


def test_a_request_goes_where_its_prefix_is_cached_and_elsewhere_once_it_is_not(
    bench: Bench,
) -> None:
    bench.join("a")
    bench.join("b", stored=PAGES)
    assert shard_of(bench.submit("q1", prompt_tokens=100, page_hashes=PAGES)) == "b"
    bench.report("b", 2, ended=("q1",), removed=PAGES)
    assert shard_of(bench.submit("q2", prompt_tokens=100, page_hashes=PAGES)) == "a"


def test_a_full_report_replaces_the_pages_known(bench: Bench) -> None:
    other: PageHash = b"1" * 16
    bench.join("s", stored=(PAGE,))
    bench.report("s", 2, full=True, stored=(other,))
    assert bench.brain.stats().indexed_pages == 1
    lease = bench.submit("q", page_hashes=(PAGE,))
    assert isinstance(lease, Lease)
    assert lease.cached_tokens == 0


def test_a_full_class_is_told_when_to_come_back(bench: Bench) -> None:
    bench.join("s")
    bench.submit("q1")
    for number in range(2, 12):  # one request a second, while another waits
        bench.submit(f"q{number}")
        bench.now += 1
        bench.report("s", number, ended=(f"q{number - 1}",))
    for request_id in ("x", "y"):
        bench.submit(request_id)
    refusal = bench.submit("z")
    assert kind_of(refusal) is RefusalKind.QUEUE_FULL
    assert isinstance(refusal, Refusal)
    assert 1 <= refusal.retry_after_s <= 3
    assert bench.submit("urgent", sla="P0") is None, "another class has room"


def test_submitting_again_changes_nothing(bench: Bench) -> None:
    bench.join("s")
    lease = bench.submit("a")
    assert bench.submit("a") == lease
    assert bench.submit("b") is None
    assert bench.submit("b") is None
    assert bench.submit("c") is None
    stats = bench.brain.stats()
    assert (stats.leased, stats.granted, stats.queued["P1"]) == (1, 1, 2)


def test_a_request_that_waits_is_told_by_the_router_that_asked_last(bench: Bench) -> None:
    bench.join("s")
    bench.submit("a")
    bench.submit("b", router="r1")
    bench.submit("b", router="r2")
    told = bench.brain.handle(Reported(bench.heard("s", 2, ended=("a",))), bench.now)
    assert [each.router for each in told if isinstance(each, Tell)] == ["r2"]


def test_a_request_whose_shard_died_is_placed_anew(bench: Bench) -> None:
    bench.join("s")
    bench.join("t")
    lost = shard_of(bench.submit("a"))
    bench.happens(ShardGone(ref(lost)))
    assert shard_of(bench.submit("a")) == ({"s", "t"} - {lost}).pop()


def test_the_death_of_an_earlier_life_does_not_touch_the_present_one(bench: Bench) -> None:
    bench.join("s", life=2)
    bench.happens(ShardGone(ref("s", life=1)))
    assert shard_of(bench.submit("a")) == "s"


def test_withdrawing_frees_the_place_in_the_queue_or_on_the_shard(bench: Bench) -> None:
    bench.join("s")
    bench.submit("a")
    bench.submit("b")
    bench.submit("c")
    assert bench.happens(Withdrawn("b")) == []
    assert names(bench.happens(Withdrawn("a"))) == ["c"]
    assert bench.brain.stats().withdrawn == 2


def test_a_router_that_waits_for_what_another_withdraws_is_told(bench: Bench) -> None:
    bench.join("s")
    bench.submit("a")
    bench.submit("b", router="r2")
    [told] = bench.brain.handle(Withdrawn("b", "r1"), bench.now)
    assert isinstance(told, Tell)
    assert told.router == "r2"
    assert kind_of(told.decision) is RefusalKind.ABANDONED
    bench.submit("c", router="r1")
    assert bench.happens(Withdrawn("c", "r1")) == []


def test_a_withdrawn_lease_that_its_shard_started_ends_when_the_shard_says_so(
    bench: Bench,
) -> None:
    bench.join("s")
    bench.submit("a")
    bench.submit("b")
    bench.report("s", 2, started=("a",))
    assert bench.happens(Withdrawn("a")) == []
    assert names(bench.report("s", 3, ended=("a",))) == ["b"]


def test_a_router_that_is_gone_takes_its_waiting_requests_along(bench: Bench) -> None:
    bench.join("s")
    bench.submit("a")
    bench.submit("b", router="r1")
    bench.submit("c", router="r2")
    bench.happens(RouterGone("r1"))
    assert names(bench.report("s", 2, ended=("a",))) == ["c"]


def test_a_door_that_is_gone_takes_its_waiting_requests_along_and_routers_are_told(
    bench: Bench,
) -> None:
    bench.join("s")
    bench.submit("a", door="d1")
    bench.submit("b", door="d1", router="r1")
    bench.submit("c", door="d2", router="r1")
    bench.report("s", 2, started=("a",))
    assert bench.brain.doors() == {"d1", "d2"}
    [told] = bench.happens(DoorGone("d1"))
    assert (told.request_id, kind_of(told)) == ("b", RefusalKind.ABANDONED)
    assert bench.brain.doors() == {"d2"}
    assert names(bench.report("s", 3, ended=("a",))) == ["c"]


def test_a_lease_that_a_dead_door_had_not_used_is_free_at_once(bench: Bench) -> None:
    bench.join("s")
    bench.submit("a", door="d1")
    bench.submit("b", door="d2")
    assert bench.brain.doors() == {"d1", "d2"}
    assert names(bench.happens(DoorGone("d1"))) == ["b"]
    assert bench.brain.doors() == {"d2"}


def test_what_a_dead_door_had_sent_after_all_is_in_the_books_until_it_ends(bench: Bench) -> None:
    bench.join("s")
    bench.submit("a", door="d1")
    bench.happens(DoorGone("d1"))
    bench.report("s", 2, started=("a",))
    bench.report("s", 3, full=True, held=(HeldRequest("a", 40, 40, 1),))
    assert bench.brain.stats().leased == 1
    bench.report("s", 4, ended=("a",))
    assert bench.brain.stats().leased == 0


def test_what_waits_past_its_deadline_is_refused(bench: Bench) -> None:
    bench.join("s")
    bench.submit("a")
    bench.submit("b", deadline_s=5.0)
    bench.now += 4
    assert bench.happens(Ticked()) == []
    bench.now += 1
    assert [kind_of(decision) for decision in bench.happens(Ticked())] == [RefusalKind.DEADLINE]


def test_what_no_shard_could_ever_hold_is_refused_at_once(bench: Bench) -> None:
    bench.join("s")
    assert kind_of(bench.submit("a", prompt_tokens=500, max_tokens=13)) is RefusalKind.NEVER_FITS
    assert shard_of(bench.submit("b", prompt_tokens=500, max_tokens=12)) == "s"


def test_without_a_shard_requests_wait_for_one(bench: Bench) -> None:
    assert bench.submit("a") is None
    bench.now += 29
    assert bench.happens(Ticked()) == []
    assert names(bench.join("s")) == ["a"]


def test_a_model_missed_for_long_is_not_ready_and_later_requests_hear_it_at_once(
    bench: Bench,
) -> None:
    assert bench.submit("a") is None
    bench.now += 30
    assert [kind_of(decision) for decision in bench.happens(Ticked())] == [RefusalKind.NOT_READY]
    assert kind_of(bench.submit("b")) is RefusalKind.NOT_READY
    bench.join("s")
    assert shard_of(bench.submit("b")) == "s"


def test_a_silent_shard_is_lost_with_its_leases_and_pages(bench: Bench) -> None:
    bench.join("s", stored=(PAGE,))
    bench.submit("a")
    bench.now += 10
    bench.happens(Ticked())
    stats = bench.brain.stats()
    assert (stats.shards, stats.leased, stats.indexed_pages) == ((), 0, 0)


def test_only_a_full_report_introduces_a_shard(bench: Bench) -> None:
    assert bench.resync_asked("s", 7)
    assert bench.brain.stats().shards == ()
    assert not bench.resync_asked("s", 8, full=True)
    assert bench.resync_asked("s", 9, life=2)
    assert bench.brain.stats().shards == (ref("s"),)


def test_a_gap_asks_for_a_full_report_until_it_comes(bench: Bench) -> None:
    bench.join("s")
    assert not bench.resync_asked("s", 2)
    assert bench.resync_asked("s", 4)
    assert bench.resync_asked("s", 5)
    assert not bench.resync_asked("s", 6, full=True)


def test_a_report_sent_again_is_acknowledged_and_not_applied(bench: Bench) -> None:
    bench.join("s")
    bench.report("s", 2, stored=(PAGE,))
    bench.report("s", 3, removed=(PAGE,))
    assert not bench.resync_asked("s", 2, stored=(PAGE,))
    assert bench.brain.stats().indexed_pages == 0


def test_who_waits_for_a_lease_that_a_shard_holds_already_is_told_of_it(bench: Bench) -> None:
    bench.submit("a")
    held = HeldRequest("a", prompt_tokens=40, computed_tokens=40, choices=1)
    assert names(bench.join("s", held=(held,))) == ["a"]
    assert bench.brain.stats().leased == 1


def test_an_unknown_class_is_served_as_the_default_one(bench: Bench) -> None:
    bench.submit("a", sla="platinum")
    assert bench.brain.stats().queued == {"P0": 0, "P1": 1, "P2": 0}
