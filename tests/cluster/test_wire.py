"""Messages arrive as they were sent, and stay what they were."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from cluster.messages import Candidate, Lease, Reason, ShardRef, TokenDelta
from cluster.wire import message

LEASE = Lease(
    "q", 3, ShardRef("s", "m", "a", "1"), 16, Reason(0.5, (Candidate("s", 1.5, 16, 9, 7),)), rank=2
)


@message
class OneField:
    """What is told is one value."""

    value: int


@message
class NoField:
    """The least that a message can be: that it came is all it tells."""


@pytest.mark.parametrize("sent", [LEASE, TokenDelta("q", 0, (5,)), OneField(7), NoField()])
def test_a_message_is_equal_to_what_it_is_pickled_to_and_copied_to(sent: object) -> None:
    assert pickle.loads(pickle.dumps(sent)) == sent
    assert copy.deepcopy(sent) == sent


def test_a_message_is_not_written_to_but_replaced() -> None:
    with pytest.raises(FrozenInstanceError):
        LEASE.rank = 1  # type: ignore[misc]
    assert replace(LEASE, rank=1).rank == 1


def test_a_message_is_pickled_without_the_names_of_its_fields() -> None:
    assert b"cached_tokens" not in pickle.dumps(LEASE)
