"""An outbox delivers each delta once and in order, whichever replies are lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.outbox import Outbox
from cluster.errors import ShardLost
from cluster.messages import DeltaBatch, TokenDelta


def delta(token: int) -> TokenDelta:
    return TokenDelta("r", 0, (token,))


def tokens(batch: DeltaBatch) -> list[int]:
    return [token for one in batch.deltas if isinstance(one, TokenDelta) for token in one.tokens]


@given(st.lists(st.one_of(st.integers(0, 3), st.booleans()), max_size=60))
def test_every_delta_arrives_once_and_in_order(history: list[int | bool]) -> None:
    """A number puts so many deltas, True is a reply that arrives, False one that is lost."""
    outbox, put, got, acknowledged = Outbox(), 0, [], 0
    for event in [*history, True, True]:
        if not isinstance(event, bool):
            outbox.put(delta(put + i) for i in range(event))
            put += event
            continue
        batch = outbox.take(acknowledged)
        if event and batch.number > acknowledged:
            acknowledged = batch.number
            got += tokens(batch)
    assert got == list(range(put))


def test_an_unacknowledged_batch_is_sent_again_unchanged() -> None:
    outbox = Outbox()
    outbox.put([delta(1)])
    first = outbox.take(0)
    outbox.put([delta(2)])
    assert outbox.take(0) == first


def test_without_news_the_batch_is_empty_and_repeats_the_number() -> None:
    outbox = Outbox()
    outbox.put([delta(1)])
    number = outbox.take(0).number
    assert outbox.take(number).number == number
    assert outbox.take(number).deltas == ()


def test_a_door_that_outlived_its_outbox_is_told() -> None:
    with pytest.raises(ShardLost, match="unknown"):
        Outbox().take(7)
