"""Class queues: order, bounds, withdrawal."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from cluster.messages import Submission
from cluster.queues import ClassQueues, Waiting


@pytest.fixture
def queues() -> Iterator[ClassQueues]:
    queues = ClassQueues(("P0", "P1"), max_queued=2)
    yield queues
    queues.verify()


def waiting(request_id: str, sla: str = "P1", model: str = "m", since: float = 0.0) -> Waiting:
    return Waiting(Submission(request_id, "r", model, "t", sla, 8, 8, 1, ()), since, math.inf)


def served(queues: ClassQueues, model: str = "m") -> list[str]:
    order = []
    while (head := queues.head(model)) is not None:
        order.append(head.submission.request_id)
        queues.remove(order[-1])
    return order


def test_within_a_class_the_first_to_come_is_the_first_served(queues: ClassQueues) -> None:
    for request_id in ("b", "a"):
        queues.add(waiting(request_id))
    assert served(queues) == ["b", "a"]


def test_a_higher_class_goes_first_however_late_it_comes(queues: ClassQueues) -> None:
    queues.add(waiting("batch", "P1"))
    queues.add(waiting("chat", "P0"))
    assert served(queues) == ["chat", "batch"]


def test_models_wait_apart(queues: ClassQueues) -> None:
    queues.add(waiting("a", model="m"))
    queues.add(waiting("b", model="n"))
    assert queues.models() == ("m", "n")
    assert served(queues, "n") == ["b"]
    assert queues.models() == ("m",)


def test_a_full_class_leaves_the_others_their_room(queues: ClassQueues) -> None:
    queues.add(waiting("a", model="m"))
    queues.add(waiting("b", model="n"))
    assert queues.is_full("P1")
    assert not queues.is_full("P0")
    assert queues.depths() == {"P0": 0, "P1": 2}


def test_adding_again_keeps_the_turn_and_takes_the_new_figures(queues: ClassQueues) -> None:
    queues.add(waiting("a"))
    queues.add(waiting("b"))
    queues.add(waiting("a", since=5.0))
    assert len(queues) == 2
    assert queues.head("m") == waiting("a", since=5.0)


def test_adding_again_under_another_class_moves_it_there(queues: ClassQueues) -> None:
    queues.add(waiting("a", "P1"))
    queues.add(waiting("a", "P0"))
    assert queues.depths() == {"P0": 1, "P1": 0}


def test_what_is_removed_is_gone_and_removing_twice_is_nothing(queues: ClassQueues) -> None:
    for request_id in ("a", "b"):
        queues.add(waiting(request_id))
    assert queues.remove("a") == waiting("a")
    assert queues.remove("a") is None
    assert [each.submission.request_id for each in queues] == ["b"]


def test_ahead_counts_its_own_class_and_those_before_it(queues: ClassQueues) -> None:
    queues.add(waiting("a", "P0"))
    queues.add(waiting("b", "P1"))
    assert (queues.ahead("m", "P0"), queues.ahead("m", "P1"), queues.ahead("n", "P1")) == (1, 2, 0)
