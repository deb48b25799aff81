"""What a request carries from shard to shard, and when it is tried again."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import (
    DeadlineExceeded,
    Displaced,
    InvalidRequest,
    NotFinite,
    NotReady,
    PoisonRequest,
    QueueFull,
    SchedulerLost,
    ShardLost,
    ShoalError,
    StepFailed,
)
from cluster.failover import FAILED_STEPS, SILENT_DEATHS, Recovery, Transcript
from cluster.fleet_config import FailoverConfig
from cluster.messages import Emitted, FinishReason, TokenDelta

CONFIG = FailoverConfig(
    patience_s=10.0, first_delay_s=0.1, longest_delay_s=1.0, max_deaths=5, watch_s=2.0
)
PASSING: list[ShoalError] = [Displaced("drained"), SchedulerLost("away")]
BUSY: list[ShoalError] = [NotReady("no shard", 1.0), QueueFull("full", 1.0)]


def recovery(deadline_at: float = math.inf, uniform: float = 0.0) -> Recovery:
    """Of a request that has a lease."""
    made = Recovery("r", CONFIG, lambda: uniform, deadline_at)
    made.leased()
    return made


def lose(made: Recovery, error: ShoalError, now: float = 0.0) -> float:
    pause_s = made.pause_s(error, now)
    made.leased()
    return pause_s


def test_a_transcript_holds_what_is_out_of_each_choice_that_goes_on() -> None:
    transcript = Transcript(3)
    transcript.enter(TokenDelta("r", 0, (5,)))
    transcript.enter(TokenDelta("r", 0, (6, 7)))
    transcript.enter(TokenDelta("r", 1, (8,), finish=FinishReason.STOP))
    assert transcript.emitted() == (Emitted(0, (5, 6, 7)), Emitted(2, ()))
    assert (len(transcript), transcript.longest()) == (2, (5, 6, 7))


def test_a_transcript_is_over_with_its_last_choice_and_hears_no_more() -> None:
    transcript = Transcript(1)
    assert transcript.enter(TokenDelta("r", 0, (5,)))
    transcript.close(0)
    assert not transcript
    assert not transcript.enter(TokenDelta("r", 0, (6,)))


@pytest.mark.parametrize("error", PASSING + BUSY, ids=repr)
def test_an_accepted_request_is_tried_again(error: ShoalError) -> None:
    assert recovery().pause_s(error, 0.0) == pytest.approx(0.05)


@pytest.mark.parametrize(
    "error",
    [InvalidRequest("wrong"), DeadlineExceeded("late", 1.0), NotFinite("overflows")],
    ids=repr,
)
def test_what_another_shard_would_do_no_better_is_not_tried_again(error: ShoalError) -> None:
    with pytest.raises(type(error)):
        recovery().pause_s(error, 0.0)


@pytest.mark.parametrize("error", BUSY, ids=repr)
def test_a_request_that_was_never_accepted_is_refused(error: ShoalError) -> None:
    with pytest.raises(type(error)):
        Recovery("r", CONFIG, lambda: 0.0).pause_s(error, 0.0)


@given(uniform=st.floats(0, 1, exclude_max=True), tries=st.integers(1, 60))
def test_pauses_double_up_to_a_bound_and_jitter_takes_half_at_most(
    uniform: float, tries: int
) -> None:
    made = recovery(uniform=uniform)
    pauses = [made.pause_s(Displaced("drained"), 0.0) for _ in range(tries)]
    for number, pause_s in enumerate(pauses):
        whole = min(0.1 * 2.0**number, 1.0)
        assert whole / 2 <= pause_s <= whole


def test_patience_counts_from_the_first_failure_since_the_last_token() -> None:
    made = recovery()
    lose(made, Displaced("drained"), now=100.0)
    lose(made, Displaced("drained"), now=109.0)
    made.progressed()
    lose(made, Displaced("drained"), now=111.0)
    with pytest.raises(Displaced):
        lose(made, Displaced("drained"), now=121.0)


def test_a_pause_that_would_outlast_the_deadline_is_not_begun() -> None:
    made = recovery(deadline_at=5.0)
    assert lose(made, Displaced("drained"), now=4.0) > 0
    with pytest.raises(DeadlineExceeded):
        made.pause_s(Displaced("drained"), now=4.95)


@pytest.mark.parametrize(
    ("kind", "limit"), [(StepFailed, FAILED_STEPS), (ShardLost, SILENT_DEATHS)]
)
def test_deaths_in_a_row_refuse_a_request_by_name(kind: type[ShardLost], limit: int) -> None:
    made = recovery()
    for _ in range(limit - 1):
        lose(made, kind("it died"))
        assert made.is_suspect
    with pytest.raises(PoisonRequest, match=f"request r .*{limit} shards died.*it died"):
        made.pause_s(kind("it died"), 0.0)


def test_the_more_shards_went_silent_under_it_the_longer_the_next_is_watched() -> None:
    made = recovery()
    watched = [made.watch_s(0.0)]
    for kind in (ShardLost, Displaced, ShardLost, Displaced):
        lose(made, kind("it died"))
        watched.append(made.watch_s(0.0))
    assert watched == [0.0, 2.0, 2.0, 4.0, 4.0]
    made.progressed()
    assert made.watch_s(0.0) == 0.0


def test_after_a_step_that_said_what_it_failed_at_no_shard_is_watched() -> None:
    made = recovery()
    lose(made, StepFailed("it died"))
    assert made.watch_s(0.0) == 0.0


def test_who_has_no_time_for_a_watch_is_sent_at_once() -> None:
    made = recovery(deadline_at=5.0)
    lose(made, ShardLost("it died"), now=1.0)
    assert [made.watch_s(2.9), made.watch_s(3.1)] == [2.0, 0.0]


@given(
    st.lists(st.sampled_from([ShardLost, StepFailed, Displaced, None]), max_size=40),
    st.integers(1, 8),
)
def test_a_request_is_refused_for_deaths_in_a_row_and_in_silence_only_under_watch(
    fates: list[type[ShoalError] | None], max_deaths: int
) -> None:
    """`None` is a token. Only a lease without one since counts where the shard goes in silence."""
    config = CONFIG.model_copy(update={"max_deaths": max_deaths})
    made = Recovery("r", config, lambda: 0.0)
    in_a_row: list[type[ShoalError]] = []
    deaths, proven = 0, False
    made.leased()
    for fate in fates:
        if fate is None:
            made.progressed()
            in_a_row, proven = [], True
            continue
        deaths += fate is not Displaced
        if fate is StepFailed or (fate is ShardLost and not proven):
            in_a_row.append(fate)
        steps = in_a_row.count(StepFailed)
        enough = steps == FAILED_STEPS or len(in_a_row) == SILENT_DEATHS
        watched = made.watch_s(0.0) > 0
        if fate is not Displaced and (enough or deaths >= max_deaths):
            with pytest.raises(PoisonRequest):
                made.pause_s(fate("it died"), 0.0)
            assert watched or steps == FAILED_STEPS or deaths >= max_deaths
            return
        made.pause_s(fate("it died"), 0.0)
        made.leased()
        proven = False


def test_the_deadline_is_that_of_the_first_token() -> None:
    made = recovery(deadline_at=5.0)
    assert made.deadline_s(now=2.0) == 3.0
    made.progressed()
    assert made.deadline_s(now=2.0) is None
    assert lose(made, Displaced("drained"), now=6.0) > 0


def test_a_token_from_the_next_shard_clears_a_suspect() -> None:
    made = recovery()
    lose(made, StepFailed("it died"))
    assert made.progressed()
    assert not made.progressed()
    assert not made.is_suspect
    lose(made, ShardLost("it died"))
    assert not made.is_suspect


def test_a_step_that_fails_tells_against_whoever_was_in_it_whatever_came_before() -> None:
    made = recovery()
    made.progressed()
    lose(made, StepFailed("it died"))
    assert made.is_suspect


def test_being_let_go_tells_against_nobody() -> None:
    made = recovery()
    for _ in range(100):
        lose(made, Displaced("drained"))
    assert not made.is_suspect


def test_deaths_are_bounded_however_well_it_went_in_between() -> None:
    made = recovery()
    for _ in range(CONFIG.max_deaths - 1):
        lose(made, ShardLost("it died"))
        made.progressed()
    with pytest.raises(PoisonRequest):
        made.pause_s(ShardLost("it died"), 0.0)
