"""The states of a sequence: every move is either in the table or refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from cluster.errors import IllegalTransition
from cluster.messages import Emitted
from cluster.sequences import TRANSITIONS, State, Tracked, track
from tests.cluster.paged_memory import assignment

MOVES = list(product(State, State))


def no_hashes(_tokens: tuple[int, ...]) -> tuple[bytes, ...]:
    return ()


def tracked_in(state: State) -> Tracked:
    leader = track(assignment("a", (1,)), 0, b"", no_hashes).members[0]
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
    family = track(assignment("a", (1,), choices=3), 0, b"", no_hashes)
    states = [member.state for member in family.members.values()]
    assert states == [State.WAITING, State.AWAITING_LEADER, State.AWAITING_LEADER]


def test_only_the_choices_that_go_on_are_computed_from_what_is_out_of_them() -> None:
    begun = assignment("a", (1, 2), choices=3, prompt_logprobs=0)
    going_on = replace(begun, emitted=(Emitted(1, (7,)), Emitted(2, ())))
    family = track(going_on, 0, b"", no_hashes)
    assert {c: one.sequence.tokens for c, one in family.members.items()} == {
        1: [1, 2, 7],
        2: [1, 2],
    }
    assert [one.sequence.output_len for one in family.members.values()] == [1, 0]
    assert (family.leader, family.scores) == (1, None)


def test_scores_are_owed_until_the_first_choice_has_a_token() -> None:
    begun = assignment("a", (1, 2), choices=2, prompt_logprobs=0)
    before = replace(begun, emitted=(Emitted(0, ()), Emitted(1, (7,))))
    after = replace(begun, emitted=(Emitted(0, (7,)), Emitted(1, ())))
    owed = [track(one, 0, b"", no_hashes).scores for one in (begun, before, after)]
    assert owed == [[None], [None], None]
