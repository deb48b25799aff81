"""The fleet on paper: every legal move and no other, and what is done about what is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.lifecycle import (
    TRANSITIONS,
    Action,
    Backoff,
    Create,
    Event,
    Member,
    State,
    Stop,
    Wanted,
    advance,
    decide,
)
from actors.naming import SCHEDULER, shard_name
from cluster.errors import IllegalTransition

BACKOFF = Backoff(first_s=1.0, longest_s=8.0, steady_s=60.0)
NOW = 100.0


def shard(index: int = 0, state: State = State.READY, stamp: str = "new", **more: object) -> Member:
    name = shard_name("m", index)
    return Member(name, "m", index, state, 0.0, stamp=stamp, **more)  # type: ignore[arg-type]


def old(index: int, state: State = State.READY) -> Member:
    return shard(index, state, "old")


def scheduler(stamp: str, state: State = State.READY) -> Member:
    return Member(SCHEDULER, None, 0, state, 0.0, stamp=stamp)


def create(index: int) -> Create:
    return Create("m", index, "new")


def stop(index: int) -> Stop:
    return Stop(shard_name("m", index))


def decided(count: int, *members: Member, surge: int = 1) -> tuple[Action, ...]:
    """For so many new shards of one model."""
    there = {member.name: member for member in members}
    return decide([Wanted("m", count, "new")], there, NOW, surge)


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


def test_the_missing_are_created_in_the_order_they_are_wanted() -> None:
    wanted = [Wanted(None, 1, "s"), Wanted("m", 2, "new")]
    assert decide(wanted, {}, NOW, 1) == (Create(None, 0, "s"), create(0), create(1))


def test_a_dead_one_is_created_again_once_its_wait_is_over() -> None:
    assert decided(1, shard(state=State.DEAD, retry_at=NOW + 1)) == ()
    assert decided(1, shard(state=State.DEAD, retry_at=NOW)) == (create(0),)


def test_who_is_not_wanted_is_stopped_once() -> None:
    assert decided(0, shard()) == (stop(0),)
    assert decided(0, shard(state=State.STOPPING)) == ()


def test_shards_of_a_model_that_is_gone_are_stopped() -> None:
    there = {"x/shard-0": Member("x/shard-0", "x", 0, State.READY, 0.0, stamp="any")}
    assert decide([Wanted("m", 0, "new")], there, NOW, 1) == (Stop("x/shard-0"),)


def test_those_that_serve_stay_where_fewer_are_wanted() -> None:
    assert decided(1, shard(0, State.DEAD), shard(1)) == (stop(0),)


def test_the_name_of_one_that_stops_is_not_taken() -> None:
    assert decided(1, shard(0, State.STOPPING)) == (create(1),)


def test_a_scheduler_is_replaced_under_its_own_name() -> None:
    wanted = [Wanted(None, 1, "new")]
    assert decide(wanted, {SCHEDULER: scheduler("old")}, NOW, 1) == (Stop(SCHEDULER),)
    assert decide(wanted, {SCHEDULER: scheduler("old", State.STOPPING)}, NOW, 1) == ()


def test_a_new_shard_begins_beside_the_old_ones() -> None:
    assert decided(2, old(0), old(1)) == (create(2),)
    assert decided(2, old(0), old(1), shard(2, State.LOADING)) == ()


def test_one_old_goes_for_each_new_one_that_is_ready() -> None:
    assert decided(2, old(0), old(1), shard(2)) == (stop(0),)
    assert decided(2, old(0, State.STOPPING), old(1), shard(2)) == ()
    assert decided(2, old(1), shard(2)) == (create(0),)
    assert decided(2, shard(0), old(1), shard(2)) == (stop(1),)


def test_an_old_one_that_serves_nobody_goes_at_once() -> None:
    assert stop(0) in decided(1, old(0, State.LOADING))


def test_where_there_is_no_room_beside_them_one_old_goes_first() -> None:
    cramped = shard(2, State.PENDING, cramped=True)
    assert decided(2, old(0), old(1), cramped) == (stop(0),)
    assert decided(2, old(0, State.STOPPING), old(1), cramped) == ()


def test_another_old_one_goes_only_once_the_place_of_the_last_was_taken() -> None:
    cramped = shard(2, State.PENDING, cramped=True)
    assert stop(1) not in decided(2, old(1), cramped)
    assert decided(2, old(1), shard(2), shard(0, State.PENDING, cramped=True)) == (stop(1),)


def test_without_surge_one_old_goes_first() -> None:
    assert decided(2, old(0), old(1), surge=0) == (stop(0),)
    assert decided(2, old(1), surge=0) == (create(0),)
    assert decided(2, shard(0, State.LOADING), old(1), surge=0) == ()
    assert decided(2, shard(0), old(1), surge=0) == (stop(1),)


def test_new_shards_that_cannot_load_end_no_old_one() -> None:
    assert decided(2, old(0), old(1), shard(2, State.DEAD, retry_at=NOW + 1)) == ()


def settled(members: dict[str, Member], count: int) -> bool:
    states = [(member.state, member.stamp) for member in members.values()]
    return states == [(State.READY, "new")] * count


def enact(members: dict[str, Member], actions: Sequence[Action]) -> None:
    """Stops and creations begin."""
    for action in actions:
        match action:
            case Stop(name):
                if members[name].state is State.DEAD:
                    del members[name]
                else:
                    members[name] = replace(members[name], state=State.STOPPING)
            case Create(index=index):
                members[action.name] = shard(index, State.PENDING)


def proceed(members: dict[str, Member]) -> None:
    """Who stops is gone, who begins is ready."""
    for name, member in list(members.items()):
        if member.state is State.STOPPING:
            del members[name]
        elif member.state in (State.PENDING, State.LOADING):
            members[name] = replace(member, state=State.READY)


@given(
    st.integers(0, 5),
    st.dictionaries(st.integers(0, 5), st.tuples(st.sampled_from(State), st.booleans())),
    st.integers(0, 3),
)
def test_what_is_decided_leads_to_what_is_wanted_and_never_far_below_it(
    count: int, there: dict[int, tuple[State, bool]], surge: int
) -> None:
    each = [shard(i, state, "new" if new else "old") for i, (state, new) in there.items()]
    members = {member.name: member for member in each}
    for _ in range(30):
        serving = sum(member.state is State.READY for member in members.values())
        actions = decide([Wanted("m", count, "new")], members, NOW, surge)
        assert len({a.name for a in actions}) == len(actions)
        enact(members, actions)
        still = sum(member.state is State.READY for member in members.values())
        assert still >= min(serving, count - (surge == 0))
        proceed(members)
    assert settled(members, count)
