"""An outbox delivers each delta once and in order, whichever replies are lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.outbox import Outbox
from cluster.errors import ShardLost
from cluster.messages import (
    DeltaBatch,
    FinishReason,
    RequestFailed,
    TokenDelta,
    TokenLogprob,
)

EVENTS = st.one_of(st.integers(0, 1), st.booleans())
SCORE = TokenLogprob(7, -0.5, ())


def delta(token: int, choice: int = 0) -> TokenDelta:
    return TokenDelta("r", choice, (token,))


def tokens(batch: DeltaBatch, choice: int = 0) -> list[int]:
    deltas = [one for one in batch.deltas if isinstance(one, TokenDelta) and one.choice == choice]
    return [token for one in deltas for token in one.tokens]


@given(st.lists(EVENTS, max_size=60))
def test_every_token_arrives_once_and_in_order(history: list[int | bool]) -> None:
    """A number puts a token of that choice, True is an answer that arrives, False one lost."""
    outbox, acknowledged = Outbox(), 0
    put: dict[int, list[int]] = {0: [], 1: []}
    got: dict[int, list[int]] = {0: [], 1: []}
    for number, event in enumerate([*history, True, True]):
        if not isinstance(event, bool):
            outbox.put(delta(number, event))
            put[event].append(number)
            continue
        batch = outbox.take(acknowledged)
        if event and batch.number > acknowledged:
            acknowledged = batch.number
            for choice, known in got.items():
                known += tokens(batch, choice)
    assert got == put


def test_what_a_door_has_not_fetched_of_a_choice_is_one_delta() -> None:
    outbox = Outbox()
    outbox.put(TokenDelta("r", 0, (1,), (SCORE,), cached_tokens=16, prompt_logprobs=(None, SCORE)))
    outbox.put(TokenDelta("r", 1, (5,)))
    outbox.put(TokenDelta("r", 0, (2,), (SCORE,)))
    outbox.put(TokenDelta("r", 0, (3,), (SCORE,), FinishReason.LENGTH))
    whole = TokenDelta("r", 0, (1, 2, 3), (SCORE,) * 3, FinishReason.LENGTH, 16, (None, SCORE))
    assert outbox.backlog == 4
    assert outbox.take(0).deltas == (whole, TokenDelta("r", 1, (5,)))
    assert outbox.backlog == 0


def test_the_news_that_a_request_failed_comes_after_its_tokens() -> None:
    outbox, failure = Outbox(), RequestFailed("r", "StepFailed", "it burns")
    outbox.put(delta(1))
    outbox.put(failure)
    assert outbox.take(0).deltas == (delta(1), failure)


def test_an_unacknowledged_batch_is_sent_again_unchanged() -> None:
    outbox = Outbox()
    outbox.put(delta(1))
    first = outbox.take(0)
    outbox.put(delta(2))
    assert outbox.take(0) == first


def test_without_news_the_batch_is_empty_and_repeats_the_number() -> None:
    outbox = Outbox()
    outbox.put(delta(1))
    number = outbox.take(0).number
    assert outbox.take(number).number == number
    assert outbox.take(number).deltas == ()


def test_a_door_that_outlived_its_outbox_is_told() -> None:
    with pytest.raises(ShardLost, match="unknown"):
        Outbox().take(7)
