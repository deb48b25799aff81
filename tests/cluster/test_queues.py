"""Fair queues: order between classes, tenants and deadlines; bounds, withdrawal, parking."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.lanes import Waiting
from cluster.messages import Submission
from cluster.queues import FairQueues
from cluster.scheduling_config import SlaClass

CLASSES = (SlaClass(name="P0", weight=3), SlaClass(name="P1"))
NUMBERS = count()
TENANTS = {"heavy": 4.0}


def make_queues(max_queued: int = 1000) -> FairQueues:
    return FairQueues(CLASSES, max_queued, lambda tenant: TENANTS.get(tenant, 1.0))


@pytest.fixture
def queues() -> Iterator[FairQueues]:
    queues = make_queues(max_queued=2)
    yield queues
    queues.verify()


def waiting(
    request_id: str,
    sla: str = "P1",
    model: str = "m",
    tenant: str = "t",
    since: float = 0.0,
    due: float = math.inf,
    tokens: int = 10,
) -> Waiting:
    submission = Submission(request_id, "r", model, tenant, sla, 8, 8, 1, ())
    return Waiting(submission, since, due=due, tokens=tokens, number=next(NUMBERS))


def serve(queues: FairQueues, model: str = "m") -> Submission | None:
    """The first head is served, and charged what it was expected to cost."""
    heads = queues.heads(model)
    if not heads:
        return None
    _, head = heads[0]
    queues.charge(head.submission, head.tokens)
    queues.remove(head.submission.request_id)
    return head.submission


def served(queues: FairQueues, model: str = "m") -> list[str]:
    order = []
    while (submission := serve(queues, model)) is not None:
        order.append(submission.request_id)
    return order


def test_of_one_tenant_the_first_to_come_is_the_first_served(queues: FairQueues) -> None:
    for request_id in ("b", "a"):
        queues.add(waiting(request_id))
    assert served(queues) == ["b", "a"]


def test_of_one_tenant_the_earliest_deadline_goes_first(queues: FairQueues) -> None:
    queues.add(waiting("patient", due=90.0))
    queues.add(waiting("urgent", due=5.0))
    assert served(queues) == ["urgent", "patient"]


def test_of_tenants_that_have_had_as_much_the_earliest_deadline_goes_first(
    queues: FairQueues,
) -> None:
    queues.add(waiting("patient", tenant="a", due=90.0))
    queues.add(waiting("urgent", tenant="b", due=5.0))
    assert served(queues) == ["urgent", "patient"]


def test_of_classes_that_have_had_as_much_the_higher_goes_first(queues: FairQueues) -> None:
    queues.add(waiting("batch", "P1"))
    queues.add(waiting("chat", "P0"))
    assert served(queues) == ["chat", "batch"]


def test_classes_get_tokens_by_weight() -> None:
    queues = make_queues()
    for number in range(200):
        queues.add(waiting(f"a{number}", "P0", tokens=10))
        queues.add(waiting(f"b{number}", "P1", tokens=20))
    tokens: Counter[str] = Counter()
    for _ in range(140):
        submission = serve(queues)
        assert submission is not None
        tokens[submission.sla] += 10 if submission.sla == "P0" else 20
    assert tokens["P0"] / tokens["P1"] == pytest.approx(3.0, rel=0.1)


def test_tenants_of_a_class_get_tokens_by_weight_however_many_they_send() -> None:
    queues = make_queues()
    for number in range(300):
        queues.add(waiting(f"f{number}", tenant="flood"))
        if number < 100:
            queues.add(waiting(f"h{number}", tenant="heavy"))
            queues.add(waiting(f"m{number}", tenant="modest"))
    counts = Counter(s.tenant for _ in range(120) if (s := serve(queues)))
    assert counts["heavy"] == pytest.approx(80, abs=3)
    assert counts["flood"] == pytest.approx(counts["modest"], abs=2)


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["P0", "P1"]),
        st.sampled_from(["heavy", "t", "u"]),
        st.sampled_from([1.0, 5.0, math.inf]),
        st.integers(1, 500),
    ),
    max_size=40,
)


@given(requests=REQUESTS)
def test_while_anybody_waits_somebody_has_a_turn_and_all_are_served_once(
    requests: list[tuple[str, str, float, int]],
) -> None:
    queues = make_queues()
    for number, (sla, tenant, due, tokens) in enumerate(requests):
        queues.add(waiting(str(number), sla, tenant=tenant, due=due, tokens=tokens))
        queues.verify()
    assert sorted(served(queues)) == sorted(str(number) for number in range(len(requests)))


@given(requests=REQUESTS, flood=st.integers(1, 60))
def test_nobody_starves_behind_an_endless_flood_of_others(
    requests: list[tuple[str, str, float, int]], flood: int
) -> None:
    queues = make_queues()
    queues.add(waiting("patient", "P1", tenant="patient", tokens=100))
    overtaken = 0.0
    for number in range(10_000):
        sla, tenant, due, tokens = (requests or [("P0", "t", 1.0, flood)])[
            number % 7 % max(len(requests), 1)
        ]
        queues.add(waiting(str(number), sla, tenant=tenant, due=due, tokens=tokens))
        submission = serve(queues)
        assert submission is not None
        if submission.request_id == "patient":
            return
        overtaken += tokens
    pytest.fail(f"overtaken by {overtaken} tokens")


def test_models_wait_apart(queues: FairQueues) -> None:
    queues.add(waiting("a", model="m"))
    queues.add(waiting("b", model="n"))
    assert queues.models() == ("m", "n")
    assert served(queues, "n") == ["b"]
    assert queues.models() == ("m",)
    assert (queues.depth("m"), queues.depth("n")) == (1, 0)


def test_a_full_class_leaves_the_others_their_room(queues: FairQueues) -> None:
    queues.add(waiting("a", model="m"))
    queues.add(waiting("b", model="n"))
    assert queues.is_full("P1")
    assert not queues.is_full("P0")
    assert queues.depths() == {"P0": 0, "P1": 2}


def test_a_class_may_have_a_bound_of_its_own() -> None:
    queues = FairQueues((SlaClass(name="P0", max_queued=0), SlaClass(name="P1")), 5)
    assert (queues.is_full("P0"), queues.is_full("P1")) == (True, False)


def test_adding_again_keeps_the_turn_and_takes_the_new_figures(queues: FairQueues) -> None:
    for request_id in ("a", "b", "a"):
        asked = waiting(request_id, since=5.0)
        queues.add(asked._replace(number=queues.number(asked.submission)))
    assert len(queues) == 2
    assert served(queues) == ["a", "b"]


def test_asking_again_for_another_class_gets_a_new_place_in_line(queues: FairQueues) -> None:
    chat, batch = waiting("a", "P0"), waiting("a", "P1")
    queues.add(chat._replace(number=queues.number(chat.submission)))
    assert queues.number(batch.submission) == queues.number(chat.submission) + 1


def test_adding_again_under_another_class_moves_it_there(queues: FairQueues) -> None:
    queues.add(waiting("a", "P1"))
    queues.add(waiting("a", "P0"))
    assert queues.depths() == {"P0": 1, "P1": 0}


def test_what_is_removed_is_gone_and_removing_twice_is_nothing(queues: FairQueues) -> None:
    for request_id in ("a", "b"):
        queues.add(waiting(request_id))
    removed = queues.remove("a")
    assert removed is not None
    assert removed.submission.request_id == "a"
    assert queues.remove("a") is None
    assert [each.submission.request_id for each in queues] == ["b"]


def test_a_parked_tenant_waits_without_a_turn_until_it_may_again(queues: FairQueues) -> None:
    queues.add(waiting("a", tenant="t"))
    queues.park("t", True)
    queues.add(waiting("b", tenant="t"))
    assert queues.heads("m") == []
    queues.park("t", False)
    assert served(queues) == ["a", "b"]


def test_ahead_counts_by_shares_and_never_more_than_all_that_wait() -> None:
    queues = make_queues()
    for number in range(10):
        queues.add(waiting(f"batch{number}", "P1", tenant="flood", tokens=100))
    chat, batch, other = (
        waiting("x", sla, tenant=tenant).submission
        for sla, tenant in (("P0", "t"), ("P1", "flood"), ("P1", "t"))
    )
    assert (queues.ahead(chat), queues.ahead(batch), queues.ahead(other)) == (0, 1000, 0)
    queues.add(waiting("chat", "P0", tokens=100))
    assert queues.ahead(chat) == pytest.approx(100 * 4 / 3)
    assert queues.ahead(batch) == 1100
