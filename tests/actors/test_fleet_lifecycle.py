"""The fleet on paper: every legal move and no other."""

from __future__ import annotations

from itertools import product

import pytest

from actors.lifecycle import TRANSITIONS, Backoff, Event, Member, State, advance
from actors.naming import shard_name
from cluster.errors import IllegalTransition

BACKOFF = Backoff(first_s=1.0, longest_s=8.0, steady_s=60.0)


def shard(index: int = 0, state: State = State.READY, stamp: str = "new", **more: object) -> Member:
    name = shard_name("m", index)
    return Member(name, "m", index, state, 0.0, stamp=stamp, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_a_move_is_in_the_table_or_refused(state: State, event: Event) -> None:
    before = shard(state=state)
    if (state, event) in TRANSITIONS:
        assert advance(before, event, 1.0, "", BACKOFF).state is TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransition, match=state):
            advance(before, event, 1.0, "", BACKOFF)


def test_each_loss_in_a_row_doubles_the_wait_for_the_next_life() -> None:
    waits, member = [], shard(state=State.DEAD)
    for _ in range(6):
        member = advance(
            advance(member, Event.CREATED, 0.0, "", BACKOFF), Event.LOST, 0.0, "", BACKOFF
        )
        waits.append(member.retry_at)
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 8.0]


def test_one_that_had_loaded_is_not_put_off_for_long() -> None:
    backoff = Backoff(first_s=1.0, longest_s=8.0, ready_s=3.0)
    assert [backoff.delay(losses, was_ready=True) for losses in range(1, 6)] == [0, 1, 2, 3, 3]
    lost = advance(shard(losses=9), Event.LOST, 5.0, "", backoff)
    assert lost.retry_at == 8.0


def test_a_steady_life_forgives_earlier_losses() -> None:
    steady = shard(losses=5)
    assert advance(steady, Event.LOST, 60.0, "", BACKOFF).losses == 1
    assert advance(steady, Event.LOST, 59.0, "", BACKOFF).losses == 6


def test_what_went_wrong_is_remembered_until_ready() -> None:
    member = advance(shard(state=State.LOADING), Event.LOST, 0.0, "no weights", BACKOFF)
    for event in (Event.CREATED, Event.PLACED):
        member = advance(member, event, 0.0, "", BACKOFF)
        assert member.message == "no weights"
    assert advance(member, Event.LOADED, 0.0, "", BACKOFF).message == ""


def test_the_lack_of_room_is_remembered_until_there_is_some() -> None:
    cramped = advance(shard(state=State.PENDING), Event.CRAMPED, 9.0, "no GPU", BACKOFF)
    assert (cramped.cramped, cramped.since, cramped.message) == (True, 0.0, "no GPU")
    assert not advance(cramped, Event.PLACED, 10.0, "", BACKOFF).cramped
