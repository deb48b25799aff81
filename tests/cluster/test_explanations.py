"""Why a request went where it went, and where one would go: told without changing anything."""

from __future__ import annotations

import pickle
from dataclasses import replace

from cluster.events import Submitted
from cluster.explanations import DecisionLog
from cluster.failover import attempt_id
from cluster.messages import Lease, Refusal, RefusalKind
from cluster.scheduling_config import TenantConfig
from tests.cluster.test_classes import Loaded, kind_of


def refusal(request_id: str) -> Refusal:
    return Refusal(request_id, RefusalKind.QUEUE_FULL, "full", 1.0)


def test_the_log_keeps_the_last_decisions_and_the_latest_of_each_request() -> None:
    log = DecisionLog(max_decisions=2)
    for number, request_id in enumerate(("a", "b", "a", "c")):
        log.record(refusal(request_id), now=float(number))
    assert log.explain("b", now=5.0) is None
    explanation = log.explain("a", now=5.0)
    assert explanation is not None
    assert (explanation.decision, explanation.ago_s) == (refusal("a"), 3.0)
    assert len(log) == 2


def test_a_lease_is_explained_by_its_candidates_wait_and_charge() -> None:
    loaded = Loaded(places=1, pages=64)
    loaded.submit()
    loaded.submit()
    loaded.now += 3
    [lease] = loaded.end()
    assert isinstance(lease, Lease)
    explanation = loaded.brain.explain(lease.request_id, loaded.now + 2)
    assert explanation is not None
    assert (explanation.decision, explanation.ago_s) == (lease, 2.0)
    assert (lease.reason.waited_s, lease.reason.charged_tokens) == (3.0, 40 + 10)
    assert [candidate.shard for candidate in lease.reason.candidates] == ["s"]


def test_what_was_never_decided_is_not_explained() -> None:
    assert Loaded().brain.explain("nobody", 0.0) is None


def test_a_forecast_tells_the_shards_it_would_choose_from() -> None:
    loaded = Loaded()
    forecast = loaded.brain.forecast(loaded.asked(), loaded.now)
    assert (forecast.refusal, forecast.wait_s, forecast.ahead_tokens) == (None, 0.0, 0.0)
    assert [candidate.shard for candidate in forecast.candidates] == ["s"]


def test_a_forecast_tells_how_long_it_would_wait() -> None:
    loaded = Loaded(places=1)
    for _ in range(12):
        loaded.submit()
    for _ in range(8):
        loaded.now += 1
        loaded.end()
    forecast = loaded.brain.forecast(loaded.asked(), loaded.now)
    assert (forecast.ahead_tokens, forecast.wait_s) == (150, 3.0)
    assert forecast.candidates == ()


def test_a_forecast_tells_of_a_refusal() -> None:
    loaded = Loaded()
    forecast = loaded.brain.forecast(loaded.asked(prompt_tokens=10_000), loaded.now)
    assert forecast.refusal is not None
    assert forecast.refusal.kind is RefusalKind.NEVER_FITS


def test_asking_for_a_forecast_changes_nothing() -> None:
    loaded = Loaded(places=2)
    for sla in ("P0", "P1", "P2", "P2"):
        loaded.submit(sla)

    def ask() -> None:
        for sla in ("P0", "P1", "P2"):
            for tenant in ("t", "unknown"):
                asked = loaded.asked(sla, tenant, page_hashes=(b"x" * 16,))
                loaded.brain.forecast(asked, loaded.now)

    ask()  # whatever is worked out when it is first asked for is there from now on
    before = pickle.dumps(loaded.brain)
    ask()
    assert pickle.dumps(loaded.brain) == before


def test_a_forecast_tells_that_the_queue_is_full() -> None:
    loaded = Loaded(places=1, max_queued=1)
    for _ in range(2):
        loaded.submit()
    forecast = loaded.brain.forecast(loaded.asked(), loaded.now)
    assert kind_of(loaded.submit()) is kind_of(forecast.refusal)
    assert kind_of(forecast.refusal) is RefusalKind.QUEUE_FULL


def test_a_forecast_tells_that_nobody_may_wait_where_no_shard_has_room() -> None:
    loaded = Loaded(places=1, max_queued=0)
    assert loaded.brain.forecast(loaded.asked(), loaded.now).refusal is None
    loaded.submit()
    refusal = loaded.brain.forecast(loaded.asked(), loaded.now).refusal
    assert kind_of(refusal) is RefusalKind.QUEUE_FULL


def test_a_forecast_tells_that_the_budget_is_spent() -> None:
    loaded = Loaded(default_tenant=TenantConfig(tokens_per_window=60))
    loaded.submit()
    refusal = loaded.brain.forecast(loaded.asked(), loaded.now).refusal
    assert kind_of(refusal) is RefusalKind.OVER_BUDGET


def test_a_request_that_goes_on_elsewhere_is_explained_by_its_latest_attempt() -> None:
    loaded = Loaded()
    first = loaded.asked()
    loaded.handle(Submitted(first))
    again = attempt_id(first.request_id, 1)
    loaded.handle(Submitted(replace(first, request_id=again)))
    for name in (first.request_id, again):
        explanation = loaded.brain.explain(name, loaded.now)
        assert explanation is not None
        assert explanation.decision.request_id == again
