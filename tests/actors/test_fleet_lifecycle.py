"""The fleet on paper: every legal move and no other, and what is done about what is wanted."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.lifecycle import (
    TRANSITIONS,
    Backoff,
    Create,
    Event,
    Member,
    State,
    Stop,
    advance,
    decide,
)
from cluster.errors import IllegalTransition

BACKOFF = Backoff(first_s=1.0, longest_s=8.0, steady_s=60.0)
SHARD = Create("m/shard-0", "m", 0)


def member(state: State, since: float = 0.0, **fields: object) -> Member:
    return Member(SHARD.name, "m", 0, state, since, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_a_move_is_in_the_table_or_refused(state: State, event: Event) -> None:
    before = member(state)
    if (state, event) in TRANSITIONS:
        assert advance(before, event, 1.0, "", BACKOFF).state is TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransition, match=state):
            advance(before, event, 1.0, "", BACKOFF)


def test_each_loss_in_a_row_doubles_the_wait_for_the_next_life() -> None:
    waits, shard = [], member(State.DEAD)
    for _ in range(6):
        shard = advance(
            advance(shard, Event.CREATED, 0.0, "", BACKOFF), Event.LOST, 0.0, "", BACKOFF
        )
        waits.append(shard.retry_at)
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 8.0]


def test_a_steady_life_forgives_earlier_losses() -> None:
    steady = member(State.READY, losses=5)
    assert advance(steady, Event.LOST, 60.0, "", BACKOFF).losses == 1
    assert advance(steady, Event.LOST, 59.0, "", BACKOFF).losses == 6


def test_what_went_wrong_is_remembered_until_ready() -> None:
    shard = advance(member(State.LOADING), Event.LOST, 0.0, "no weights", BACKOFF)
    for event in (Event.CREATED, Event.PLACED):
        shard = advance(shard, event, 0.0, "", BACKOFF)
        assert shard.message == "no weights"
    assert advance(shard, Event.LOADED, 0.0, "", BACKOFF).message == ""


def test_the_missing_are_created_in_the_order_they_are_wanted() -> None:
    wishes = [Create("scheduler", None, 0), SHARD]
    assert decide(wishes, {}, 0.0) == tuple(wishes)


def test_a_dead_one_is_created_again_once_its_wait_is_over() -> None:
    dead = {SHARD.name: member(State.DEAD, retry_at=5.0)}
    assert decide([SHARD], dead, 4.9) == ()
    assert decide([SHARD], dead, 5.0) == (SHARD,)


def test_who_is_not_wanted_is_stopped_once() -> None:
    assert decide([], {SHARD.name: member(State.READY)}, 0.0) == (Stop(SHARD.name),)
    assert decide([], {SHARD.name: member(State.STOPPING)}, 0.0) == ()


def test_a_name_that_is_still_stopping_is_waited_for() -> None:
    assert decide([SHARD], {SHARD.name: member(State.STOPPING)}, 0.0) == ()


@given(
    st.sets(st.integers(0, 5)),
    st.dictionaries(st.integers(0, 5), st.sampled_from(State)),
)
def test_what_is_decided_leads_to_what_is_wanted(wanted: set[int], there: dict[int, State]) -> None:
    wishes = [Create(f"m/shard-{i}", "m", i) for i in sorted(wanted)]
    members = {f"m/shard-{i}": Member(f"m/shard-{i}", "m", i, s, 0.0) for i, s in there.items()}
    names = {name for name, one in members.items() if one.state not in (State.DEAD, State.STOPPING)}
    for action in decide(wishes, members, now=1.0):
        match action:
            case Create(name=name):
                assert name not in names
                names.add(name)
            case Stop(name):
                names.discard(name)
    stopping = {name for name, one in members.items() if one.state is State.STOPPING}
    assert names | stopping >= {wish.name for wish in wishes}
    assert names <= {wish.name for wish in wishes}
