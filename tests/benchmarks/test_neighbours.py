"""What the measure of bad neighbours counts, and what it does not let pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import pytest

from benchmarks.neighbours.__main__ import NEIGHBOURS, Finding, Neighbour, with_compared
from benchmarks.neighbours.probe import CLIENTS, Waits, probe
from benchmarks.neighbours.server import Server

USUAL = Waits([0.1] * 100)


@dataclass(frozen=True)
class Answering(Server):
    """A server that is only its answers."""

    answer: Callable[[httpx.Request], httpx.Response]

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, transport=httpx.MockTransport(self.answer))


async def test_only_what_was_served_counts_as_a_wait() -> None:
    statuses, over = [200, 429, 200, 503], asyncio.Event()

    def answer(_: httpx.Request) -> httpx.Response:
        status = statuses.pop()
        if len(statuses) < CLIENTS:  # each client asks no more when this is answered
            over.set()
        return httpx.Response(status)

    waits = await probe(Answering(0, 0, "", answer), over)
    asked = 4 - len(statuses)
    assert (len(waits.seconds), waits.failed) == (asked // 2, asked - asked // 2)


@pytest.mark.parametrize(
    ("fells", "failed", "kept"),
    [(False, 0, True), (False, 1, False), (True, CLIENTS, True), (True, CLIENTS + 1, False)],
)
def test_no_request_may_fail_but_those_at_a_gateway_that_is_killed(
    fells: bool, failed: int, kept: bool
) -> None:
    stated = Neighbour("n", factor=3, freed_s=2, fells=fells)
    assert Finding(Waits([0.1] * 100, failed), freed_s=1).keeps(stated, USUAL) == kept


@pytest.mark.parametrize(
    ("waits", "freed_s"),
    [
        (Waits([0.4] * 100), 1.0),
        (Waits([0.1] * 100), 2.5),
        (Waits(), 1.0),
        (Waits([0.1] * 100, stalled_s=5.0), 1.0),
    ],
)
def test_a_wait_or_a_time_beyond_what_is_stated_or_that_cannot_be_told_is_not_kept(
    waits: Waits, freed_s: float
) -> None:
    stated = Neighbour("n", factor=3, freed_s=2)
    assert not Finding(waits, freed_s).keeps(stated, USUAL)


def test_what_is_compared_with_a_measure_that_was_held_up_is_not_kept() -> None:
    stated = Neighbour("n", factor=3, freed_s=2)
    assert not Finding(USUAL, freed_s=1).keeps(stated, Waits([0.1] * 100, stalled_s=5.0))


def test_who_is_compared_with_another_is_measured_after_it() -> None:
    assert [one.name for one in with_compared(["slow_readers"])] == ["good_readers", "slow_readers"]
    assert with_compared([one.name for one in NEIGHBOURS]) == list(NEIGHBOURS)
