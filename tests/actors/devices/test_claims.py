"""CPUs are claimed: all or nothing, never twice, and free again when their process ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.devices.claims import CpuClaims

ROOT = Path(__file__).parents[3]
ORDERS = ((0, 1, 2, 3), (4, 5, 6, 7), tuple(range(8)))
Claimant = Callable[[], CpuClaims]


@pytest.fixture
def scope() -> str:
    return f"test-{uuid4().hex}"


@pytest.fixture
def claimant(scope: str) -> Iterator[Claimant]:
    """Somebody who claims; at the end all books are checked."""
    made: list[CpuClaims] = []

    def make() -> CpuClaims:
        made.append(CpuClaims(scope))
        return made[-1]

    yield make
    for claims in made:
        claims.verify()
        claims.release()


def test_the_first_order_with_enough_left_is_taken(claimant: Claimant) -> None:
    assert claimant().resize(3, ORDERS) == (0, 1, 2)
    assert claimant().resize(2, ORDERS) == (4, 5)
    assert claimant().resize(3, ORDERS) == (3, 6, 7)


def test_who_finds_too_little_left_gets_nothing(claimant: Claimant) -> None:
    claimant().resize(6, ORDERS)
    assert claimant().resize(3, ORDERS) == ()
    assert claimant().resize(2, ORDERS) == (6, 7)


def test_a_larger_claim_keeps_what_was_held(claimant: Claimant) -> None:
    claims = claimant()
    claims.resize(2, ORDERS)
    assert claims.resize(4, ORDERS) == (0, 1, 2, 3)


def test_a_claim_that_cannot_grow_stays(claimant: Claimant) -> None:
    first, second = claimant(), claimant()
    first.resize(4, ORDERS)
    second.resize(4, ORDERS)
    assert first.resize(5, ORDERS) == (0, 1, 2, 3)


def test_a_smaller_claim_makes_room(claimant: Claimant) -> None:
    first, second = claimant(), claimant()
    first.resize(8, ORDERS)
    assert second.resize(4, ORDERS) == ()
    assert first.resize(4, ORDERS) == (0, 1, 2, 3)
    assert second.resize(4, ORDERS) == (4, 5, 6, 7)


def test_books_of_different_scopes_are_different(claimant: Claimant) -> None:
    claimant().resize(8, ORDERS)
    other = CpuClaims(f"test-{uuid4().hex}")
    assert other.resize(8, ORDERS) == tuple(range(8))
    other.release()


def test_the_claims_of_a_process_end_with_it(claimant: Claimant, scope: str) -> None:
    code = (
        "import sys; from actors.devices.claims import CpuClaims;"
        f"claims = CpuClaims({scope!r}); print(claims.resize(8, (range(8),)), flush=True);"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "(0, 1, 2, 3, 4, 5, 6, 7)\n"
        assert claimant().resize(1, ORDERS) == ()
        process.kill()
        process.wait()
        assert claimant().resize(1, ORDERS) == (0,)


def test_who_waits_too_long_for_a_turn_gets_nothing(scope: str) -> None:
    slept: list[float] = []
    holder, waiter = CpuClaims(scope), CpuClaims(scope, slept.append)
    with holder._turn():
        assert waiter.resize(1, ORDERS) == ()
    assert 0.1 < sum(slept) < 1.0
    assert waiter.resize(1, ORDERS) == (0,)
    waiter.release()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=20))
def test_no_cpu_is_held_twice_whatever_happens(history: list[tuple[int, int]]) -> None:
    scope = f"test-{uuid4().hex}"
    claimants = [CpuClaims(scope) for _ in range(4)]
    try:
        for who, count in history:
            before = claimants[who].cpus
            after = claimants[who].resize(count, ORDERS)
            assert len(after) == count or after == before
            held = [cpu for claims in claimants for cpu in claims.cpus]
            assert len(held) == len(set(held))
            claimants[who].verify()
    finally:
        for claims in claimants:
            claims.release()
