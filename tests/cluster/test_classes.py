"""The brain under load: classes, tenants, deadlines and budgets, on shards that tests play."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import pytest

from cluster.events import Event, Reported, ShardGone, Submitted, Tell, Ticked, Withdrawn
from cluster.messages import Decision, Lease, Refusal, RefusalKind, ShardRef, Submission
from cluster.reports import HeldRequest, Prefilling, ShardCapacity, ShardReport
from cluster.scheduling import SchedulerBrain
from cluster.scheduling_config import (
    PlacementConfig,
    SchedulingConfig,
    SlaClass,
    TenantConfig,
)

CLASSES = (
    SlaClass(name="P0", weight=4, ttft_s=1, aging_s=2),
    SlaClass(name="P1", weight=1, queue_timeout_s=100),
    SlaClass(name="P2", weight=1, fill=0.5, burst_share=0, queue_timeout_s=3600),
)
REF = ShardRef("s", "m", "s", "1")


class Loaded:
    """A brain with one shard, which ends what the test says, in the order it was leased."""

    def __init__(self, places: int = 4, pages: int = 1000, **knobs: object) -> None:
        self.brain = SchedulerBrain(SchedulingConfig(classes=CLASSES, **knobs), epoch=1)
        self.capacity = ShardCapacity(16, pages, places, 8192)
        self.now = 10.0
        self.number = 0
        self.count = 0
        self.running: list[str] = []
        self.report(full=True)

    def handle(self, event: Event) -> list[Decision]:
        told = self.brain.handle(event, self.now)
        self.brain.verify()
        decisions = [each.decision for each in told if isinstance(each, Tell)]
        self.running += [each.request_id for each in decisions if isinstance(each, Lease)]
        return decisions

    def report(self, **news: object) -> list[Decision]:
        self.number += 1
        report = ShardReport(REF, self.number, self.capacity, self.capacity.total_pages, **news)  # type: ignore[arg-type]
        return self.handle(Reported(report))

    def end(self, count: int = 1, output: int = 10, **more: Prefilling) -> list[Decision]:
        """The oldest leases start and end."""
        ids, self.running = tuple(self.running[:count]), self.running[count:]
        return self.report(started=ids, ended=ids, produced=tuple(output for _ in ids), **more)

    def asked(self, sla: str = "P1", tenant: str = "t", **wishes: object) -> Submission:
        self.count += 1
        figures = {"prompt_tokens": 40, "max_tokens": 10, "choices": 1, "page_hashes": ()}
        name = f"{sla}-{tenant}-{self.count}"
        return Submission(name, "r", "m", tenant, sla, **(figures | wishes))  # type: ignore[arg-type]

    def submit(self, sla: str = "P1", tenant: str = "t", **wishes: object) -> Decision | None:
        decisions = self.handle(Submitted(self.asked(sla, tenant, **wishes)))
        return decisions[0] if decisions else None


@pytest.fixture
def loaded() -> Iterator[Loaded]:
    loaded = Loaded()
    yield loaded
    loaded.brain.verify()


def kind_of(decision: Decision | None) -> RefusalKind:
    assert isinstance(decision, Refusal)
    return decision.kind


def test_two_classes_under_load_get_tokens_by_weight(loaded: Loaded) -> None:
    for _ in range(100):
        loaded.submit("P0")
        loaded.submit("P1")
    served = Counter(d.request_id[:2] for _ in range(100) for d in loaded.end())
    assert served["P0"] / served["P1"] == pytest.approx(4, rel=0.1)


def test_tenants_of_a_class_share_evenly_however_many_one_sends(loaded: Loaded) -> None:
    for number in range(150):
        loaded.submit(tenant="flood")
        if number % 5 == 0:
            loaded.submit(tenant="modest")
    served = Counter(d.request_id[3:8] for _ in range(50) for d in loaded.end())
    assert served["flood"] == pytest.approx(served["modes"], abs=3)


def test_a_tenant_pays_for_outputs_that_were_longer_than_expected(loaded: Loaded) -> None:
    loaded.brain = Loaded(places=1).brain
    for _ in range(60):
        loaded.submit(tenant="long", max_tokens=1000)
        loaded.submit(tenant="brief", max_tokens=1000)
    served: Counter[str] = Counter()
    for _ in range(60):
        output = 500 if "long" in loaded.running[0] else 20
        served.update(d.request_id[3:8] for d in loaded.end(output=output))
    assert served["brief"] > 3 * served["long-"] > 0


def test_a_class_leaves_the_places_it_may_not_fill_to_the_others(loaded: Loaded) -> None:
    leases = [loaded.submit("P2") for _ in range(4)]
    assert [isinstance(lease, Lease) for lease in leases] == [True, True, False, False]
    assert isinstance(loaded.submit("P0"), Lease), "the flood waits, the higher class does not"
    assert len(loaded.end(3)) == 2, "those that waited go on as soon as there are fewer"


def test_a_large_head_holds_up_higher_classes_only_once_it_has_aged() -> None:
    loaded = Loaded(places=4, pages=20)
    loaded.submit(prompt_tokens=150)
    assert loaded.submit("P1", prompt_tokens=250) is None
    loaded.now += 1  # so long that a shorter one no longer goes first
    for _ in range(20):  # more than the share of P0
        lease = loaded.submit("P0")
        assert isinstance(lease, Lease)
        loaded.report(started=(lease.request_id,), ended=(lease.request_id,))
    assert loaded.submit("P1") is None, "its own class stays behind it"
    loaded.now += 31
    assert loaded.submit("P0") is None


def test_an_aged_head_gets_a_place_that_was_kept_free_for_higher_classes() -> None:
    loaded = Loaded(places=4)
    for _ in range(3):
        assert isinstance(loaded.submit("P0"), Lease)
    assert loaded.submit("P2") is None, "the last place is not for its class"
    loaded.now += 121
    assert any(isinstance(one, Lease) for one in loaded.report())


def test_however_long_a_flood_ages_it_leaves_those_places_free() -> None:
    loaded = Loaded(places=4)
    for _ in range(6):
        loaded.submit("P2")
    loaded.now += 1000
    assert not any(isinstance(one, Lease) for one in loaded.report())
    assert isinstance(loaded.submit("P0"), Lease)


def test_asking_again_does_not_put_a_deadline_off() -> None:
    loaded = Loaded(places=1)
    loaded.submit()
    asked = loaded.asked(deadline_s=50.0)
    loaded.handle(Submitted(asked))
    loaded.now += 40
    loaded.handle(Submitted(asked))
    loaded.now += 11
    [refusal] = loaded.handle(Ticked())
    assert kind_of(refusal) is RefusalKind.DEADLINE


def test_a_deadline_that_cannot_be_met_is_refused_at_once(loaded: Loaded) -> None:
    for _ in range(54):
        loaded.submit()
    for _ in range(20):  # 50 tokens a second
        loaded.now += 1
        loaded.end()
    assert loaded.submit(deadline_s=40.0) is None
    refusal = loaded.submit(deadline_s=20.0)
    assert kind_of(refusal) is RefusalKind.DEADLINE
    assert isinstance(refusal, Refusal)
    assert 25 <= refusal.retry_after_s <= 40


def test_a_request_that_would_wait_longer_than_its_class_may_is_refused_at_once(
    loaded: Loaded,
) -> None:
    refusals = []
    for _ in range(150):
        refusals += [d for d in [loaded.submit()] if isinstance(d, Refusal)]
        if len(loaded.running) == 4 and loaded.count % 10 == 0:
            loaded.now += 2
            loaded.end()
    assert {refusal.kind for refusal in refusals} == {RefusalKind.QUEUE_FULL}
    assert loaded.brain.stats().queued["P1"] < 100


def test_waiting_for_the_first_shard_says_nothing_of_how_fast_it_is() -> None:
    loaded = Loaded(not_ready_timeout_s=1000)
    loaded.handle(ShardGone(REF))
    for _ in range(30):
        loaded.submit()
    loaded.now += 60
    loaded.report(full=True)
    for _ in range(10):
        loaded.now += 1
        loaded.end()
    forecast = loaded.brain.forecast(loaded.asked(), loaded.now)
    assert forecast.wait_s == pytest.approx(16, abs=4)


def test_a_first_request_that_waited_long_turns_nobody_away(loaded: Loaded) -> None:
    for _ in range(5):
        loaded.submit()
    loaded.now += 60
    loaded.end()
    assert all(loaded.submit() is None for _ in range(100))


def test_what_waited_as_long_as_its_class_may_is_refused(loaded: Loaded) -> None:
    for _ in range(5):
        loaded.submit()
    loaded.now += 99
    loaded.report()
    assert loaded.handle(Ticked()) == []
    loaded.now += 1
    assert [kind_of(decision) for decision in loaded.handle(Ticked())] == [
        RefusalKind.QUEUE_TIMEOUT
    ]


def test_a_tenants_concurrency_is_bounded_and_others_pass_it() -> None:
    loaded = Loaded(tenants=(TenantConfig(name="narrow", max_concurrency=1),))
    assert isinstance(loaded.submit(tenant="narrow"), Lease)
    assert loaded.submit(tenant="narrow") is None
    assert isinstance(loaded.submit(tenant="other"), Lease)
    assert [d.request_id for d in loaded.end()] == ["P1-narrow-2"]


def test_a_tenants_pages_are_bounded() -> None:
    loaded = Loaded(tenants=(TenantConfig(name="small", max_pages=5),))
    assert isinstance(loaded.submit(tenant="small"), Lease)
    assert isinstance(loaded.submit(tenant="small"), Lease)
    assert loaded.submit(tenant="small") is None


def test_a_tenant_at_its_limit_may_again_when_a_shard_is_lost_with_its_lease() -> None:
    loaded = Loaded(tenants=(TenantConfig(name="narrow", max_concurrency=1),))
    other = ShardRef("t", "m", "t", "1")
    loaded.submit(tenant="narrow")
    loaded.submit(tenant="narrow")
    loaded.handle(Reported(ShardReport(other, 1, loaded.capacity, 1000, full=True)))
    [lease] = loaded.handle(ShardGone(REF))
    assert isinstance(lease, Lease)
    assert lease.shard == other


def test_an_exhausted_budget_is_refused_until_the_time_it_says() -> None:
    poor = TenantConfig(name="poor", tokens_per_window=120)
    loaded = Loaded(tenants=(poor,), shard_timeout_s=1000)
    for _ in range(2):
        assert isinstance(loaded.submit(tenant="poor"), Lease)
    refusal = loaded.submit(tenant="poor")
    assert kind_of(refusal) is RefusalKind.OVER_BUDGET
    assert isinstance(refusal, Refusal)
    loaded.now += refusal.retry_after_s
    assert isinstance(loaded.submit(tenant="poor"), Lease)


def test_one_that_goes_on_is_turned_away_by_no_budget_and_no_full_queue() -> None:
    poor = TenantConfig(name="poor", tokens_per_window=50)
    loaded = Loaded(places=1, tenants=(poor,), max_queued=0)
    assert isinstance(loaded.submit(tenant="poor"), Lease)
    assert isinstance(loaded.submit(tenant="poor"), Refusal)
    assert loaded.submit(tenant="poor", goes_on=True) is None
    [lease] = loaded.end()
    assert isinstance(lease, Lease)


def test_a_class_without_burst_leaves_it_to_the_others() -> None:
    poor = TenantConfig(name="poor", tokens_per_window=50, burst_tokens=50)
    loaded = Loaded(tenants=(poor,))
    assert isinstance(loaded.submit("P2", tenant="poor"), Lease)
    assert kind_of(loaded.submit("P2", tenant="poor")) is RefusalKind.OVER_BUDGET
    assert isinstance(loaded.submit("P0", tenant="poor"), Lease)


def test_output_that_was_not_produced_is_not_spent() -> None:
    poor = TenantConfig(name="poor", tokens_per_window=120)
    loaded = Loaded(tenants=(poor,))
    for _ in range(2):
        assert isinstance(loaded.submit(tenant="poor", prompt_tokens=10, max_tokens=90), Lease)
        loaded.end(output=2)


def test_a_tenant_stays_at_its_limit_when_the_scheduler_is_a_new_one() -> None:
    narrow = (TenantConfig(name="narrow", max_concurrency=1),)
    held = HeldRequest("old", 40, 40, 1, tenant="narrow", sla="P1")
    loaded = Loaded(tenants=narrow)
    loaded.report(full=True, held=(held,))
    assert loaded.submit(tenant="narrow") is None
    assert len(loaded.report(ended=("old",), produced=(5,))) == 1


def test_requests_that_come_and_go_leave_nothing_behind(loaded: Loaded) -> None:
    for _ in range(4):
        loaded.submit()
    for _ in range(2000):
        asked = loaded.asked()
        loaded.brain.handle(Submitted(asked), loaded.now)
        loaded.brain.handle(Withdrawn(asked.request_id), loaded.now)
    assert len(loaded.brain._dispatch.expiries) < 100


def test_stats_tell_waits_first_tokens_and_rejections_by_class_and_tenant(loaded: Loaded) -> None:
    for _ in range(6):
        loaded.submit("P1", tenant="a")
    loaded.now += 2
    ids = tuple(loaded.running)
    loaded.report(started=ids)
    loaded.now += 3
    loaded.report(ended=ids, produced=(4,) * 4)
    loaded.submit("P0", tenant="b", prompt_tokens=10_000)
    stats = loaded.brain.stats()
    p1 = stats.classes["P1"]
    assert (p1.wait.count, p1.ttft.count, p1.tpot.count) == (6, 4, 4)
    assert p1.ttft.p50 == pytest.approx(2.0, rel=0.051)
    assert p1.tpot.p99 == pytest.approx(1.0, rel=0.051)
    assert p1.wait.p99 == pytest.approx(5.0, rel=0.051)
    a, b = stats.tenants["a"], stats.tenants["b"]
    assert (a.queued, a.running, a.usage.served, a.usage.output_tokens) == (0, 2, 4, 16)
    assert a.usage.page_seconds == 4 * 4 * 5
    assert (b.usage.refused, stats.refusals) == (1, {"never_fits": 1})
    assert (stats.prompt_tokens, stats.cached_tokens) == (6 * 40, 0)


def test_what_starts_and_ends_within_one_report_counts_once_as_each(loaded: Loaded) -> None:
    loaded.submit(tenant="a")
    loaded.end()
    stats = loaded.brain.stats()
    assert (stats.tenants["a"].usage.served, stats.classes["P1"].ttft.count) == (1, 1)


def gathering(gather_min_s: float = 0.0) -> Loaded:
    """So many arrive, while the shard is busy with prompts, that the last of them is held back."""
    loaded = Loaded(places=1000, gather_min_s=gather_min_s)
    loaded.submit(prompt_tokens=1000)
    loaded.now += 1
    loaded.end(prefilling=Prefilling(1000, 1.0))
    loaded.submit(prompt_tokens=500)
    while loaded.submit(prompt_tokens=1) is not None:
        loaded.now += 0.005
    return loaded


def test_what_has_gathered_is_placed_when_its_window_closes() -> None:
    loaded = gathering()
    wake_at = loaded.brain.wake_at()
    assert loaded.now < wake_at <= loaded.now + 0.05
    assert loaded.handle(Ticked()) == []
    loaded.now = wake_at
    assert len(loaded.handle(Ticked())) == 1


def test_what_has_gathered_is_placed_as_soon_as_a_shard_is_idle() -> None:
    loaded = gathering(gather_min_s=0.05)
    assert len(loaded.end(len(loaded.running))) == 1


def test_a_stream_that_goes_on_elsewhere_tells_nothing_of_first_tokens(loaded: Loaded) -> None:
    assert isinstance(loaded.submit("P0", goes_on=True), Lease)
    loaded.now += 60
    loaded.report(started=tuple(loaded.running))
    stats = loaded.brain.stats().classes["P0"]
    assert (stats.wait.count, stats.ttft.count) == (1, 0)


def test_time_alone_brings_nothing_about_on_an_idle_system(loaded: Loaded) -> None:
    loaded.submit()
    assert loaded.brain.wake_at() == math.inf


@pytest.mark.parametrize("computed", [0, 40])
def test_what_a_restart_finds_on_a_shard_tells_nothing_of_its_time_to_the_first_output(
    computed: int,
) -> None:
    loaded = Loaded(gather_max_s=0.05)
    held = HeldRequest("a", 40, computed, choices=1, tenant="t", sla="P0")
    loaded.report(full=True, held=(held,))
    loaded.now += 1
    loaded.report(started=("a",))
    assert loaded.brain.stats().classes["P0"].ttft.count == 0


def test_a_lease_tells_its_shard_the_class_and_what_it_promises() -> None:
    loaded = Loaded()
    for name, promised in (("P0", (0, None, 1)), ("P2", (2, None, None))):
        lease = loaded.submit(name)
        assert isinstance(lease, Lease)
        assert (lease.rank, lease.tpot_s, lease.ttft_s) == promised


def test_prompts_of_lower_classes_do_not_close_a_shards_window_to_higher_ones() -> None:
    loaded = Loaded(places=8, placement=PlacementConfig(prefill_window_tokens=100))
    assert isinstance(loaded.submit("P2", prompt_tokens=120), Lease)
    assert loaded.submit("P2") is None
    assert isinstance(loaded.submit("P0", prompt_tokens=120), Lease)
    assert loaded.submit("P0") is None, "its own class does"
    loaded.brain.verify()
