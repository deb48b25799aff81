"""What is done about what is wanted: who goes, who begins, and who is replaced by whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.lifecycle import Member, State
from actors.naming import SCHEDULER, shard_name
from actors.succession import Action, Create, Stop, Succession, Wanted, left_wanted

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
    return again(Succession(surge), count, *members)


def again(succession: Succession, count: int, *members: Member) -> tuple[Action, ...]:
    """Another look, of one that has looked before."""
    there = {member.name: member for member in members}
    return succession.decide([Wanted("m", count, "new")], there, NOW)


def test_the_missing_are_created_in_the_order_they_are_wanted() -> None:
    wanted = [Wanted(None, 1, "s"), Wanted("m", 2, "new")]
    assert Succession(1).decide(wanted, {}, NOW) == (Create(None, 0, "s"), create(0), create(1))


def test_a_dead_one_is_created_again_once_its_wait_is_over() -> None:
    assert decided(1, shard(state=State.DEAD, retry_at=NOW + 1)) == ()
    assert decided(1, shard(state=State.DEAD, retry_at=NOW)) == (create(0),)


def test_who_is_not_wanted_is_stopped_once() -> None:
    assert decided(0, shard()) == (stop(0),)
    assert decided(0, shard(state=State.STOPPING)) == ()


def test_shards_of_a_model_that_is_gone_are_stopped() -> None:
    there = {"x/shard-0": Member("x/shard-0", "x", 0, State.READY, 0.0, stamp="any")}
    assert Succession(1).decide([Wanted("m", 0, "new")], there, NOW) == (Stop("x/shard-0"),)


def test_those_that_serve_stay_where_fewer_are_wanted() -> None:
    assert decided(1, shard(0, State.DEAD), shard(1)) == (stop(0),)


def test_the_name_of_one_that_stops_is_not_taken() -> None:
    assert decided(1, shard(0, State.STOPPING)) == (create(1),)


def test_a_scheduler_is_replaced_under_its_own_name() -> None:
    wanted = [Wanted(None, 1, "new")]
    assert Succession(1).decide(wanted, {SCHEDULER: scheduler("old")}, NOW) == (Stop(SCHEDULER),)
    assert Succession(1).decide(wanted, {SCHEDULER: scheduler("old", State.STOPPING)}, NOW) == ()


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
    succession = Succession(surge=1)
    waiting = shard(2, State.PENDING, cramped=True)
    assert again(succession, 2, old(0), old(1), waiting) == (stop(0),)
    assert stop(1) not in again(succession, 2, old(1), waiting)
    assert stop(1) not in again(succession, 2, old(1), shard(2, State.LOADING))
    other = shard(0, State.PENDING, cramped=True)
    assert again(succession, 2, old(1), shard(2), other) == (stop(1),)


def test_a_new_one_that_is_outdated_too_is_replaced_once_another_has_taken_the_first_place() -> (
    None
):
    succession = Succession(surge=1)
    waiting = shard(2, State.PENDING, cramped=True)
    assert again(succession, 2, old(0), shard(1), waiting) == (stop(0),)
    assert stop(1) not in again(succession, 2, old(1), waiting)
    other = shard(0, State.PENDING, cramped=True)
    assert again(succession, 2, old(1), shard(2), other) == (stop(1),)


def test_another_new_one_by_the_name_of_one_that_went_has_come_to_stand_since() -> None:
    succession = Succession(surge=1)
    waiting = shard(2, State.PENDING, cramped=True)
    assert again(succession, 2, old(0), shard(1), waiting) == (stop(0),)
    assert again(succession, 2, old(3), waiting) == (create(0),)
    assert again(succession, 2, old(3), shard(1), waiting) == (stop(3),)


def test_a_new_one_that_is_lost_and_comes_back_ends_no_further_old_one() -> None:
    succession = Succession(surge=1)
    waiting = shard(3, State.PENDING, cramped=True)
    assert again(succession, 3, old(0), old(1), shard(2), waiting) == (stop(0),)
    dead = shard(2, State.DEAD, retry_at=NOW + 1)
    for one in (dead, shard(2)):
        assert stop(1) not in again(succession, 3, old(1), one, waiting)


def test_where_two_of_three_have_room_both_are_replaced_in_turn() -> None:
    succession = Succession(surge=1)
    waiting = [shard(index, State.PENDING, cramped=True) for index in (2, 3)]
    assert again(succession, 3, old(0), old(1), *waiting) == (stop(0),)
    assert again(succession, 3, old(1), shard(2), waiting[1]) == (stop(1), create(0))


def test_a_later_change_may_make_room_anew() -> None:
    succession = Succession(surge=1)
    waiting = shard(1, State.PENDING, cramped=True)
    assert again(succession, 1, old(0), waiting) == (stop(0),)
    assert again(succession, 1, waiting) == ()
    assert again(succession, 1, old(0), waiting) == (stop(0),)


def test_without_surge_one_old_goes_first() -> None:
    assert decided(2, old(0), old(1), surge=0) == (stop(0),)
    assert decided(2, old(1), surge=0) == (create(0),)
    assert decided(2, shard(0, State.LOADING), old(1), surge=0) == ()
    assert decided(2, shard(0), old(1), surge=0) == (stop(1),)


def test_new_shards_that_cannot_load_end_no_old_one() -> None:
    assert decided(2, old(0), old(1), shard(2, State.DEAD, retry_at=NOW + 1)) == ()


@pytest.mark.parametrize(
    ("left", "surge", "wanted"),
    [
        ([shard(0), shard(1)], 1, {"m": 2}),
        ([shard(0), shard(1, State.LOADING)], 1, {"m": 2}),
        ([old(0), old(1), shard(2, State.LOADING)], 1, {"m": 2}),
        ([old(0, State.STOPPING), old(1), shard(2)], 1, {"m": 2}),
        ([old(0), shard(1, State.LOADING)], 0, {"m": 2}),
        ([old(0), shard(1), shard(2)], 2, {"m": 3}),
        ([scheduler("new")], 1, {}),
    ],
)
def test_how_many_were_wanted_is_told_by_who_is_left_but_for_those_in_a_change(
    left: list[Member], surge: int, wanted: dict[str, int]
) -> None:
    assert left_wanted(left, surge) == wanted


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
    succession = Succession(surge)
    for _ in range(30):
        serving = sum(member.state is State.READY for member in members.values())
        actions = succession.decide([Wanted("m", count, "new")], members, NOW)
        assert len({a.name for a in actions}) == len(actions)
        enact(members, actions)
        still = sum(member.state is State.READY for member in members.values())
        assert still >= min(serving, count - (surge == 0))
        proceed(members)
    assert settled(members, count)


def crowd(members: dict[str, Member], rooms: int) -> None:
    """As `proceed`, where only so many have room; who finds none says so."""
    for name, member in list(members.items()):
        if member.state is State.STOPPING:
            del members[name]
    for name, member in list(members.items()):
        if member.state is State.PENDING:
            taken = sum(one.state is not State.PENDING for one in members.values())
            fits = taken < rooms
            state = State.READY if fits else State.PENDING
            members[name] = replace(member, state=state, cramped=not fits)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 3))
def test_where_fewer_fit_than_are_wanted_as_many_are_replaced_one_at_a_time(
    count: int, rooms: int, surge: int
) -> None:
    fit = min(count, rooms)
    members = {one.name: one for one in map(old, range(fit))}
    succession = Succession(surge)
    for _ in range(60):
        enact(members, succession.decide([Wanted("m", count, "new")], members, NOW))
        assert sum(member.state is State.READY for member in members.values()) >= fit - 1
        crowd(members, rooms)
    assert sum(one.state is State.READY for one in members.values()) == fit
    assert {member.stamp for member in members.values()} == {"new"}


@given(st.integers(1, 5), st.integers(0, 3))
def test_what_fits_nowhere_ends_one_old_one_and_no_more(count: int, surge: int) -> None:
    members = {one.name: one for one in map(old, range(count))}
    succession = Succession(surge)
    for _ in range(30):
        enact(members, succession.decide([Wanted("m", count, "new")], members, NOW))
        crowd(members, rooms=0)
    assert sum(member.stamp == "old" for member in members.values()) == count - 1
