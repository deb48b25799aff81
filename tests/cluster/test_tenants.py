"""Budgets over a sliding window: what is refused, until when, and that the books balance."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import LedgerBroken
from cluster.messages import Submission
from cluster.scheduling_config import SchedulingConfig, TenantConfig
from cluster.stats import Usage
from cluster.tenants import PARTS, SlidingWindow, Tenants

CONFIG = SchedulingConfig(
    tenants=(
        TenantConfig(name="poor", tokens_per_window=100, burst_tokens=50),
        *(TenantConfig(name=f"p{n}", tokens_per_window=100) for n in range(4)),
    ),
    budget_window_s=60,
    max_tenants=2,
)


@pytest.fixture
def tenants() -> Iterator[Tenants]:
    tenants = Tenants(CONFIG)
    yield tenants
    tenants.verify()


def asking(request_id: str, tokens: int = 40, tenant: str = "poor", choices: int = 1) -> Submission:
    return Submission(request_id, "r", "m", tenant, "P1", tokens - 10, 10 // choices, choices, ())


def test_a_budget_is_the_base_and_the_part_of_the_burst_that_the_class_may_use(
    tenants: Tenants,
) -> None:
    tenants.reserve(asking("a", 80), now=0.0)
    assert tenants.objection(asking("b", 40), burst=0.0, now=0.0)
    assert tenants.objection(asking("b", 40), burst=0.4, now=0.0) is None
    assert tenants.objection(asking("b", 40), burst=0.3, now=0.0)


def test_an_exhausted_budget_is_named_with_its_limit(tenants: Tenants) -> None:
    tenants.reserve(asking("a", 80), now=0.0)
    exhausted = tenants.objection(asking("b", 40), burst=0.0, now=0.0)
    assert exhausted is not None
    assert "tenant 'poor' may use 100 tokens of class P1 in 60 s" in exhausted.message


def test_tenants_without_a_budget_are_never_exhausted(tenants: Tenants) -> None:
    tenants.reserve(asking("a", 10**9, tenant="rich"), now=0.0)
    assert tenants.objection(asking("b", 10**9, tenant="rich"), burst=0.0, now=0.0) is None


def test_what_was_not_needed_is_given_back(tenants: Tenants) -> None:
    tenants.reserve(asking("a", 80), now=0.0)
    tenants.settle("a", needed=30, now=5.0)
    assert tenants.spent("poor", now=5.0) == 30
    tenants.reserve(asking("b", 70), now=5.0)
    tenants.settle("b", needed=0, now=6.0)
    assert tenants.spent("poor", now=6.0) == 30


def test_asking_again_reserves_nothing_more(tenants: Tenants) -> None:
    tenants.reserve(asking("a", 80), now=0.0)
    assert tenants.objection(asking("a", 80), burst=0.0, now=0.0) is None
    tenants.reserve(asking("a", 80), now=0.0)
    assert tenants.spent("poor", now=0.0) == 80


def test_what_alone_exceeds_the_budget_passes_when_nothing_else_counts(tenants: Tenants) -> None:
    assert tenants.objection(asking("a", 500), burst=0.0, now=0.0) is None
    tenants.reserve(asking("a", 500), now=0.0)
    assert tenants.objection(asking("b", 500), burst=0.0, now=59.0)
    assert tenants.objection(asking("b", 500), burst=0.0, now=61.1) is None


SPENDINGS = st.lists(st.tuples(st.floats(0, 30), st.integers(1, 150)), max_size=20)


@given(spendings=SPENDINGS, wanted=st.integers(1, 200), begun=st.floats(0, 1e6))
def test_waiting_as_long_as_was_said_is_enough(
    spendings: list[tuple[float, int]], wanted: int, begun: float
) -> None:
    window, now = SlidingWindow(60.0), begun
    for pause, tokens in spendings:
        now += pause
        window.spend(tokens, now)
        window.verify("t")
    wait_s = window.wait_for(wanted, limit=200, now=now)
    assert wait_s <= 60.0 * (1 + 1 / PARTS) + 0.01
    assert window.wait_for(wanted, limit=200, now=now + wait_s) == 0.0


@given(spendings=SPENDINGS)
def test_a_window_counts_all_of_its_span_and_nothing_much_older(
    spendings: list[tuple[float, int]],
) -> None:
    window, now, spent = SlidingWindow(60.0), 0.0, []
    for pause, tokens in spendings:
        now += pause
        spent.append((now, tokens))
        window.spend(tokens, now)
    within = sum(tokens for at, tokens in spent if at > now - 60.0)
    nearly = sum(tokens for at, tokens in spent if at > now - 61.0)
    assert within <= window.spent(now) <= nearly


MOVES = st.lists(
    st.tuples(st.sampled_from(["reserve", "settle"]), st.integers(0, 5), st.floats(0, 20)),
    max_size=60,
)


@given(moves=MOVES)
def test_the_books_balance_after_any_history(moves: list[tuple[str, int, float]]) -> None:
    tenants, now = Tenants(CONFIG), 0.0
    for move, number, pause in moves:
        now += pause
        if move == "reserve":
            tenants.reserve(asking(f"q{number}", 40 + number, tenant=f"p{number % 4}"), now)
        else:
            tenants.settle(f"q{number}", needed=number * 10, now=now)
        tenants.verify()
    for number in range(6):
        tenants.settle(f"q{number}", needed=0, now=now)
    tenants.verify()
    assert not tenants.reservations


@pytest.mark.parametrize("busy", ["poor", "without a budget"])
def test_idle_tenants_beyond_the_bound_are_forgotten(tenants: Tenants, busy: str) -> None:
    tenants.reserve(asking("a", tenant=busy), now=0.0)
    for number in range(5):
        tenants.refused(f"t{number}")
    assert tenants.usage().keys() == {busy, "t4"}


def test_of_idle_tenants_the_one_not_heard_of_for_longest_is_forgotten(tenants: Tenants) -> None:
    for name in ("regular", "once", "regular", "new"):
        tenants.refused(name)
    assert tenants.usage().keys() == {"regular", "new"}


def test_a_tenant_with_the_last_of_its_requests_over_may_be_forgotten(tenants: Tenants) -> None:
    for number in range(4):
        tenants.reserve(asking(f"q{number}", tenant=f"p{number}"), now=0.0)
    assert len(tenants.usage()) == 4
    for number in (2, 0, 1):
        tenants.settle(f"q{number}", needed=0, now=1.0)
    assert tenants.usage().keys() == {"p3", "p1"}


def test_usage_adds_up(tenants: Tenants) -> None:
    tenants.served("t", prompt=5, cached=2, output=3, page_s=1.5)
    tenants.served("t", prompt=5, cached=0, output=1, page_s=1.0)
    tenants.refused("t")
    assert tenants.usage()["t"] == Usage(10, 2, 4, 2.5, served=2, refused=1)


def test_the_output_expected_is_that_of_the_tenants_earlier_ones(tenants: Tenants) -> None:
    assert tenants.expected_output(Submission("a", "r", "m", "t", "P1", 5, 1000, 2, ())) == 256
    for _ in range(50):
        tenants.observe("t", 30)
    assert tenants.expected_output(Submission("a", "r", "m", "t", "P1", 5, 1000, 2, ())) == 60


def test_a_window_that_does_not_add_up_is_found() -> None:
    tenants = Tenants(CONFIG)
    tenants.reserve(asking("a", 80), now=0.0)
    tenants._of("poor").window._spent += 1
    with pytest.raises(LedgerBroken, match="kept 81, counted 80"):
        tenants.verify()
