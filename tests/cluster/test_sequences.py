"""The states of a sequence: every move is either in the table or refused."""

from __future__ import annotations

from itertools import product

import pytest

from cluster.errors import IllegalTransition
from cluster.sequences import TRANSITIONS, State, Tracked, track
from tests.cluster.paged_memory import assignment

MOVES = list(product(State, State))


def tracked_in(state: State) -> Tracked:
    leader = track(assignment("a", (1,)).request, 0, b"", ()).members[0]
    leader.state = state
    return leader


@pytest.mark.parametrize(
    ("start", "to"), [move for move in MOVES if move[1] in TRANSITIONS[move[0]]]
)
def test_a_move_in_the_table_is_made(start: State, to: State) -> None:
    tracked = tracked_in(start)
    tracked.move(to)
    assert tracked.state is to


@pytest.mark.parametrize(
    ("start", "to"), [move for move in MOVES if move[1] not in TRANSITIONS[move[0]]]
)
def test_any_other_move_is_refused_and_changes_nothing(start: State, to: State) -> None:
    tracked = tracked_in(start)
    with pytest.raises(IllegalTransition, match=f"from {start} to {to}"):
        tracked.move(to)
    assert tracked.state is start


def test_the_first_choice_leads_and_the_others_await_it() -> None:
    family = track(assignment("a", (1,), choices=3).request, 0, b"", ())
    states = [member.state for member in family.members.values()]
    assert states == [State.WAITING, State.AWAITING_LEADER, State.AWAITING_LEADER]
