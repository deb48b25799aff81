"""The scheduler and a model that sleeps: who asks for it waits for as long as he may."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.events import ShardGone, Ticked
from cluster.messages import Decision, Refusal, RefusalKind
from tests.cluster.test_scheduling import Bench, names, ref, submission

P0_TIMEOUT_S, P1_TIMEOUT_S = 60, 300


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.brain.verify()


def refusals(decisions: list[Decision]) -> list[Refusal]:
    return [decision for decision in decisions if isinstance(decision, Refusal)]


def test_a_request_that_wakes_its_model_outwaits_the_time_of_one_that_does_not(
    bench: Bench,
) -> None:
    assert bench.submit("waking", wakes=True) is None
    assert bench.submit("other") is None
    bench.now += 30
    assert [one.request_id for one in refusals(bench.happens(Ticked()))] == ["other"]
    assert bench.brain.demand(bench.now)["m"].queued == 1
    bench.now += 200
    assert bench.happens(Ticked()) == []
    assert names(bench.join("s")) == ["waking"]


def test_who_comes_later_waits_too(bench: Bench) -> None:
    bench.submit("first", wakes=True)
    bench.now += 100
    assert bench.submit("second", wakes=True) is None
    assert names(bench.join("s")) == ["first"]
    assert names(bench.report("s", 2, ended=("first",))) == ["second"]


def test_each_class_has_its_own_patience_and_the_words_say_what_was_waited_for(
    bench: Bench,
) -> None:
    bench.submit("urgent", sla="P0", wakes=True)
    bench.submit("normal", sla="P1", wakes=True)
    bench.now += P0_TIMEOUT_S
    [urgent] = refusals(bench.happens(Ticked()))
    bench.now += P1_TIMEOUT_S - P0_TIMEOUT_S
    [normal] = refusals(bench.happens(Ticked()))

    assert (urgent.request_id, urgent.kind) == ("urgent", RefusalKind.QUEUE_TIMEOUT)
    assert (normal.request_id, normal.kind) == ("normal", RefusalKind.QUEUE_TIMEOUT)
    assert normal.message.endswith("; m has no shard yet, and is being woken")


def test_its_own_deadline_goes_before_and_counts_as_asked_in_vain(bench: Bench) -> None:
    bench.submit("a", deadline_s=5.0, wakes=True)
    bench.now += 5
    [refusal] = refusals(bench.happens(Ticked()))

    assert refusal.kind is RefusalKind.DEADLINE
    assert refusal.message == (
        "its deadline of 5.0 s cannot be met; m has no shard yet, and is being woken"
    )
    assert bench.brain.demand(bench.now)["m"].asked_in_vain == 1


def test_retry_after_is_as_long_as_waking_took_before(bench: Bench) -> None:
    bench.submit("a", wakes=True)
    bench.now += 12
    bench.join("s")
    bench.report("s", 2, ended=("a",))
    bench.happens(ShardGone(ref("s")))
    bench.now += 1000
    refusal = bench.submit("b", deadline_s=0.0, wakes=True)

    assert isinstance(refusal, Refusal)
    assert refusal.retry_after_s == 12.0


def test_until_it_was_woken_once_nobody_knows_how_long_that_takes(bench: Bench) -> None:
    refusal = bench.submit("a", deadline_s=0.0, wakes=True)

    assert isinstance(refusal, Refusal)
    assert refusal.retry_after_s == 60.0


def test_a_forecast_for_a_model_that_sleeps_is_as_long_as_waking_took_before(
    bench: Bench,
) -> None:
    asked = submission("b", wakes=True)
    assert bench.brain.forecast(asked, bench.now).wait_s is None
    bench.submit("a", wakes=True)
    bench.now += 12
    bench.join("s")
    bench.report("s", 2, ended=("a",))
    assert bench.brain.forecast(asked, bench.now).wait_s == 0.0
    bench.happens(ShardGone(ref("s")))
    bench.now += 1000
    assert bench.brain.forecast(asked, bench.now).wait_s == 12.0


def test_a_forecast_counts_how_long_waking_has_taken_already_and_owns_up_beyond_that(
    bench: Bench,
) -> None:
    bench.submit("a", wakes=True)
    bench.now += 12
    bench.join("s")
    bench.report("s", 2, ended=("a",))
    bench.happens(ShardGone(ref("s")))
    bench.submit("b", deadline_s=6.0, wakes=True)
    bench.now += 6
    bench.happens(Ticked())
    asked = submission("c", wakes=True)
    assert bench.brain.forecast(asked, bench.now).wait_s == 6.0
    bench.now += 6
    assert bench.brain.forecast(asked, bench.now).wait_s is None


def test_a_full_queue_is_full_also_while_it_wakes(bench: Bench) -> None:
    for request_id in ("a", "b"):
        bench.submit(request_id, wakes=True)
    refusal = bench.submit("c", wakes=True)

    assert isinstance(refusal, Refusal)
    assert refusal.kind is RefusalKind.QUEUE_FULL
    assert "is being woken" in refusal.message


def test_what_no_shard_could_hold_is_told_once_one_is_there(bench: Bench) -> None:
    assert bench.submit("huge", prompt_tokens=5000, wakes=True) is None
    [refusal] = refusals(bench.join("s"))

    assert refusal.kind is RefusalKind.NEVER_FITS
    assert "woken" not in refusal.message


def test_who_has_begun_on_the_last_shard_as_it_went_waits_for_the_next(bench: Bench) -> None:
    bench.join("s")
    bench.submit("a", wakes=True)
    bench.report("s", 2, leaving=True)
    bench.happens(ShardGone(ref("s")))
    assert bench.submit("a", goes_on=True, wakes=True) is None
    bench.now += 100
    assert bench.happens(Ticked()) == []
    assert names(bench.join("t")) == ["a"]


def test_a_scheduler_that_begins_anew_needs_to_be_told_nothing_else() -> None:
    """All it has to know comes with the request, which its router submits again."""
    before, after = Bench(), Bench()
    before.submit("a", wakes=True)
    assert after.submit("a", wakes=True) is None
    after.now += 100
    assert after.happens(Ticked()) == []
    assert names(after.join("s")) == ["a"]
