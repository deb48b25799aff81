"""Guessing how a text goes on: what is guessed, how many, of whom, and what of it is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.lookup import LOOK_BACK, PAUSE, Lookup, confirmed, may_guess
from cluster.messages import Sampling, Stopping, TokenLogprob
from cluster.steps import Sequence
from tests.cluster.paged_memory import assignment

TEXT = [1, 2, 3, 4, 9, 1, 2]


def sampled(*tokens: int) -> list[TokenLogprob]:
    return [TokenLogprob(token, 0.0) for token in tokens]


def kept(guesses: tuple[int, ...], *tokens: int) -> list[int]:
    return [one.token for one in confirmed(guesses, sampled(*tokens))]


def grown(most: int) -> Lookup:
    """One whose guesses were always right."""
    lookup = Lookup(most)
    for _ in range(5):
        lookup.learn(1, 1)
    return lookup


def test_what_followed_the_last_two_tokens_before_is_guessed() -> None:
    assert grown(3).guess(TEXT, 9) == (3, 4, 9)


def test_of_several_places_the_latest_is_looked_at() -> None:
    assert Lookup(4).guess([1, 2, 3, 1, 2, 4, 1, 2], 9) == (4,)


def test_a_text_that_repeats_itself_is_taken_to_go_on_so() -> None:
    assert grown(5).guess([7, 8, 5, 8, 5], 9) == (8, 5, 8, 5, 8)


def test_a_pair_that_was_not_there_before_is_no_ground_for_a_guess() -> None:
    assert grown(4).guess([1, 2, 3, 4], 9) == ()
    assert grown(4).guess([1], 9) == ()


def test_of_a_long_prompt_the_end_alone_is_looked_at() -> None:
    ones = [9] * LOOK_BACK
    assert grown(1).guess([1, 2, 3, *ones, 1, 2], 9) == ()
    assert grown(1).guess([*ones, 1, 2, 3, 1, 2], 9) == (3,)


def test_no_more_is_guessed_than_there_is_room_for() -> None:
    assert grown(4).guess(TEXT, 2) == (3, 4)
    assert grown(4).guess(TEXT, 0) == ()


def test_what_is_known_later_is_looked_at_too() -> None:
    lookup = grown(2)
    lookup.guess([1, 2, 3, 4], 9)
    assert lookup.guess([1, 2, 3, 4, 2, 3], 9) == (4, 2)


def test_right_guesses_make_more_and_wrong_ones_fewer() -> None:
    lookup, numbers = Lookup(8), []
    for right in (1, 2, 4, 8, 3, 2, 1):
        numbers.append(len(lookup.guess(TEXT, 99)))
        lookup.learn(numbers[-1], right)
    assert numbers == [1, 2, 4, 8, 8, 4, 4]


def test_after_wrong_guesses_it_pauses_and_then_tries_one() -> None:
    lookup = Lookup(4)
    lookup.guess(TEXT, 9)
    lookup.learn(1, 0)
    assert [len(lookup.guess(TEXT, 9)) for _ in range(PAUSE)] == [0] * (PAUSE - 1) + [1]


def test_kept_is_what_came_after_tokens_that_are_really_there() -> None:
    assert kept((), 5) == [5]
    assert kept((5, 6), 5, 6, 7) == [5, 6, 7]
    assert kept((5, 6), 5, 8, 7) == [5, 8]
    assert kept((5, 6), 4, 6, 7) == [4]


@pytest.mark.parametrize(
    ("sampling", "guessed"),
    [
        (Sampling(temperature=0.7, logprobs=2, logit_bias=((3, 1.0),)), True),
        (Sampling(repetition_penalty=1.1), False),
        (Sampling(presence_penalty=0.5), False),
        (Sampling(frequency_penalty=0.5), False),
    ],
)
def test_who_is_penalised_for_earlier_output_is_not_guessed(
    sampling: Sampling, guessed: bool
) -> None:
    wanted = replace(assignment("a", (1, 2)).request, sampling=sampling)
    assert may_guess(Sequence(wanted, 0, [1, 2, 3])) is guessed


def test_nothing_is_guessed_before_the_first_token_nor_while_ends_are_banned() -> None:
    wanted = assignment("a", (1, 2)).request
    assert not may_guess(Sequence(wanted, 0, [1, 2]))
    wanted = replace(wanted, stopping=Stopping(max_tokens=9, min_tokens=2))
    assert not may_guess(Sequence(wanted, 0, [1, 2, 3]))
    assert may_guess(Sequence(wanted, 0, [1, 2, 3, 4]))
