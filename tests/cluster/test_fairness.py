"""Virtual time and estimates of outputs: shares converge, nobody starves, nothing is saved up."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.fairness import FORGET_ABOVE, FairClock, OutputEstimate

FLOWS = st.lists(
    st.tuples(st.floats(0.1, 20), st.lists(st.integers(1, 2000), min_size=1, max_size=5)),
    min_size=2,
    max_size=5,
)


def serve(clock: FairClock, weights: dict[str, float], costs: dict[str, int]) -> str:
    """The flow whose turn it is has its request served."""
    start, flow = min((clock.start(flow), flow) for flow in weights)
    clock.charge(flow, start, costs[flow], weights[flow])
    return flow


@given(flows=FLOWS, rounds=st.integers(50, 300))
def test_what_two_waiting_flows_get_per_weight_differs_by_one_request_of_each_at_most(
    flows: list[tuple[float, list[int]]], rounds: int
) -> None:
    weights = {str(n): weight for n, (weight, _) in enumerate(flows)}
    costs = {str(n): costs for n, (_, costs) in enumerate(flows)}
    largest = {flow: max(costs[flow]) / weights[flow] for flow in weights}
    had = dict.fromkeys(weights, 0.0)
    clock = FairClock()
    for turn in range(rounds):
        cost = {flow: sizes[turn % len(sizes)] for flow, sizes in costs.items()}
        flow = serve(clock, weights, cost)
        had[flow] += cost[flow] / weights[flow]
        for one in weights:
            for other in weights:
                assert had[one] - had[other] <= largest[one] + largest[other] + 1e-6


def test_whoever_was_idle_has_saved_nothing_up() -> None:
    clock, weights = FairClock(), {"a": 1.0, "b": 1.0}
    for _ in range(100):
        clock.charge("a", clock.start("a"), 10, 1.0)
    served = Counter(serve(clock, weights, {"a": 10, "b": 10}) for _ in range(20))
    assert abs(served["a"] - served["b"]) <= 1


def test_who_used_an_idle_system_alone_owes_nothing_for_it() -> None:
    clock = FairClock()
    for _ in range(100):
        clock.charge("a", clock.start("a"), 10, 1.0)
    assert clock.start("a") - clock.start("b") <= 10


def test_a_correction_moves_the_flow_back_or_forth() -> None:
    clock = FairClock()
    clock.charge("a", 0.0, 100, 2.0)
    clock.correct("a", 50, 2.0)
    assert clock.start("a") == 75.0
    clock.correct("a", -100, 2.0)
    assert clock.start("a") == 25.0


def test_flows_that_owe_nothing_are_forgotten() -> None:
    clock = FairClock()
    for number in range(100 * FORGET_ABOVE):
        clock.charge(f"f{number}", clock.now + 1.0, 1, 1.0)
    assert len(clock._finish) <= FORGET_ABOVE + 1


def test_an_even_tenant_is_charged_its_mean_and_an_uneven_one_more() -> None:
    even, uneven = (OutputEstimate(prior=128, penalty=1.0) for _ in range(2))
    for turn in range(400):
        even.observe(100)
        uneven.observe(10 if turn % 2 else 190)
    assert even.expect(at_most=1000) == 100
    assert uneven.expect(at_most=1000) == pytest.approx(190, abs=25)


def test_nobody_is_charged_more_than_was_asked_for() -> None:
    estimate = OutputEstimate(prior=128, penalty=1.0)
    assert (estimate.expect(at_most=1000), estimate.expect(at_most=50)) == (128, 50)
    estimate.observe(500)
    assert estimate.expect(at_most=60) == 60


@given(
    served=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 500)), max_size=30),
)
def test_who_did_not_wait_is_charged_from_where_it_would_have_begun(
    served: list[tuple[str, int]],
) -> None:
    at_once, started = FairClock(), FairClock()
    for flow, tokens in served:
        at_once.serve(flow, tokens, weight=2.0)
        started.charge(flow, started.start(flow), tokens, weight=2.0)
        assert (at_once.now, at_once.start(flow)) == (started.now, started.start(flow))
