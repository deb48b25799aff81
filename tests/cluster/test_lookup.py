"""Guessing how a text goes on: what is guessed, how many, of whom, and what of it is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.lookup import LOOK_BACK, Lookup, confirmed, may_guess
from cluster.messages import Sampling, Stopping, TokenLogprob
from cluster.steps import Sequence
from tests.cluster.paged_memory import assignment

TEXT = [1, 2, 3, 4, 9, 1, 2, 3]


def sampled(*tokens: int) -> list[TokenLogprob]:
    return [TokenLogprob(token, 0.0) for token in tokens]


def kept(guesses: tuple[int, ...], *tokens: int) -> list[int]:
    return [one.token for one in confirmed(guesses, sampled(*tokens))]


def trusted(most: int) -> Lookup:
    """One that has foretold `most` tokens and more in a row."""
    lookup, text = Lookup(most), [5, 6, 7, 5, 6, 7]
    for _ in range(most):
        lookup.guess(text, 0)
        text.append(text[-3])
        lookup.learn(text[-1:])
    return lookup


def test_what_followed_the_last_three_tokens_before_is_guessed() -> None:
    assert trusted(3).guess([5, 6, 7, 5, 6, 7, 5, 6, 7, *TEXT], 9) == (4, 9, 1)


def test_of_several_places_the_latest_is_looked_at() -> None:
    text = [5, 6, 7, 5, 6, 7, 5, 1, 2, 3, 4, 1, 2, 3, 8, 1, 2, 3]
    assert trusted(1).guess(text, 9) == (8,)


def test_a_text_that_repeats_itself_is_taken_to_go_on_so() -> None:
    assert trusted(5).guess([*[5, 6, 7] * 4, 8, 5, 8, 5, 8], 9) == (5, 8, 5, 8, 5)


def test_what_was_not_there_before_is_no_ground_for_a_guess() -> None:
    lookup = trusted(4)
    assert lookup.guess([*[5, 6, 7] * 4, 1, 2, 3], 9) == ()
    assert Lookup(4).guess([1], 9) == ()


def test_no_more_is_guessed_than_there_is_room_for() -> None:
    text = [5, 6, 7] * 4
    assert trusted(4).guess(text, 2) == (5, 6)
    assert trusted(4).guess(text, 0) == ()
    assert trusted(4).guess(text, -1) == ()


def test_of_a_long_prompt_the_end_alone_is_looked_at() -> None:
    fresh = list(range(10, 10 + LOOK_BACK))
    assert foretells([1, 2, 3, 4, *fresh, 1, 2, 3], 4) == 0
    assert foretells([*fresh, 1, 2, 3, 4, 1, 2, 3], 4) == 1


def foretells(text: list[int], came: int) -> int:
    """How many are guessed of the next tokens once `came` came after `text`, and the same again."""
    lookup = Lookup(4)
    lookup.guess(text, 0)
    lookup.learn([came])
    return len(lookup.guess([*text, came, *text[-3:]], 1))


def test_it_guesses_as_many_as_it_has_foretold_in_a_row() -> None:
    lookup, text, numbers = Lookup(3), [1, 2, 3, 1, 2, 3], []
    for came in (1, 2, 3, 1, 2, 9, 1, 2, 3, 1, 2):
        numbers.append(len(lookup.guess(text, 9)))
        lookup.learn([came])
        text.append(came)
    assert numbers == [0, 1, 2, 3, 3, 3, 0, 0, 0, 0, 1]


def test_tokens_that_came_with_guesses_count_as_foretold() -> None:
    lookup, text = Lookup(4), [1, 2, 3, 1, 2, 3]
    lookup.guess(text, 9)
    lookup.learn([1, 2, 3])
    assert lookup.guess([*text, 1, 2, 3], 9) == (1, 2, 3)


def test_a_step_in_which_it_was_not_asked_changes_nothing() -> None:
    lookup = trusted(2)
    lookup.learn([8])
    assert lookup.guess([5, 6, 7] * 4, 9) == (5, 6)


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
