"""Doors: who hears what, and what becomes of those that stop listening."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from actors.doors import Doors
from cluster.errors import ShardLost
from cluster.messages import RequestFailed, TokenDelta

NOTHING: frozenset[str] = frozenset()


@pytest.fixture
def doors() -> Iterator[Doors]:
    doors = Doors(timeout_s=10.0, max_backlog=3)
    yield doors
    doors.verify()


def delta(request_id: str, token: int = 0) -> TokenDelta:
    return TokenDelta(request_id, 0, (token,))


async def test_each_door_hears_only_of_its_requests(doors: Doors) -> None:
    doors.enter("a", "of a", now=0.0)
    doors.enter("b", "of b", now=0.0)
    doors.deliver([delta("of a"), delta("of b")])
    assert (await doors.poll("a", 0, wait_s=0)).deltas == (delta("of a"),)
    assert (await doors.poll("b", 0, wait_s=0)).deltas == (delta("of b"),)


def test_a_repeated_request_is_known_while_it_lives_and_after(doors: Doors) -> None:
    assert doors.enter("a", "r", now=0.0)
    assert not doors.enter("a", "r", now=0.0)
    doors.leave(["r"])
    assert not doors.enter("a", "r", now=0.0)


async def test_a_waiting_poll_ends_with_the_first_delta(doors: Doors) -> None:
    doors.enter("a", "r", now=0.0)
    poll = asyncio.ensure_future(doors.poll("a", 0, wait_s=30.0))
    await asyncio.sleep(0)
    doors.deliver([delta("r")])
    assert (await poll).deltas == (delta("r"),)


async def test_a_poll_without_news_ends_empty(doors: Doors) -> None:
    assert (await doors.poll("a", 0, wait_s=0.0)).deltas == ()


async def test_what_comes_after_the_end_of_a_request_is_dropped(doors: Doors) -> None:
    doors.enter("a", "r", now=0.0)
    doors.leave(["r"])
    doors.deliver([delta("r")])
    assert (await doors.poll("a", 0, wait_s=0)).deltas == ()


def test_the_requests_of_a_silent_door_are_given_up(doors: Doors) -> None:
    doors.enter("silent", "lost", now=0.0)
    doors.enter("heard", "kept", now=9.0)
    assert doors.sweep(now=11.0) == ("lost",)
    assert len(doors) == 1


async def test_a_door_that_polls_is_not_silent_however_long(doors: Doors) -> None:
    doors.enter("a", "r", now=0.0)
    poll = asyncio.ensure_future(doors.poll("a", 0, wait_s=30.0))
    await asyncio.sleep(0)
    assert doors.sweep(now=1e9) == ()
    doors.deliver([delta("r")])
    await poll


def test_a_door_that_lets_its_tokens_lie_is_given_up(doors: Doors) -> None:
    doors.enter("a", "r", now=0.0)
    doors.deliver([delta("r", token) for token in range(4)])
    assert doors.sweep(now=0.0) == ("r",)


async def test_a_door_that_was_given_up_is_told_when_it_comes_back(doors: Doors) -> None:
    doors.enter("a", "r", now=0.0)
    doors.deliver([delta("r")])
    number = (await doors.poll("a", 0, wait_s=0)).number
    doors.sweep(now=1e9)
    with pytest.raises(ShardLost):
        await doors.poll("a", number, wait_s=0)


async def test_a_failure_reaches_all_and_ends_their_requests(doors: Doors) -> None:
    doors.enter("a", "r", now=0.0)
    doors.enter("b", "s", now=0.0)
    doors.fail_all("ShardLost", "gone")
    assert (await doors.poll("a", 0, wait_s=0)).deltas == (RequestFailed("r", "ShardLost", "gone"),)
    assert not doors.owns("b", "s")


async def test_all_is_heard_once_every_door_has_acknowledged_what_there_was(doors: Doors) -> None:
    for name in ("a", "b"):
        doors.enter(name, f"of {name}", now=0.0)
    doors.fail_all("Displaced", "drained")
    hearing = asyncio.ensure_future(doors.heard())
    for name in ("a", "b"):
        batch = await doors.poll(name, 0, wait_s=0)
        await doors.poll(name, 0, wait_s=0)
        await asyncio.sleep(0)
        assert not hearing.done()
        await doors.poll(name, batch.number, wait_s=0)
    await hearing


async def test_nobody_waits_for_a_door_that_is_gone_to_hear_anything() -> None:
    doors = Doors(timeout_s=10.0, max_backlog=3)
    doors.enter("a", "r", now=0.0)
    doors.fail_all("Displaced", "drained")
    hearing = asyncio.ensure_future(doors.heard())
    await asyncio.sleep(0)
    assert not hearing.done()
    doors.sweep(now=11.0)
    await hearing


async def test_only_the_requests_named_fail(doors: Doors) -> None:
    doors.enter("a", "guilty", now=0.0)
    doors.enter("a", "innocent", now=0.0)
    doors.fail(["guilty", "unknown"], "StepFailed", "it burns")
    failure = RequestFailed("guilty", "StepFailed", "it burns")
    assert (await doors.poll("a", 0, wait_s=0)).deltas == (failure,)
    assert doors.owns("a", "innocent")


async def test_a_door_that_is_gone_is_told_so_even_if_it_never_had_a_batch() -> None:
    doors = Doors(timeout_s=10.0, max_backlog=3)
    doors.enter("a", "r", now=0.0)
    assert doors.sweep(now=11.0) == ("r",)
    with pytest.raises(ShardLost):
        await doors.poll("a", 0, wait_s=0.0)
    doors.verify()


async def test_idle_is_when_no_door_has_a_request(doors: Doors) -> None:
    doors.enter("a", "r", now=0.0)
    waiting = asyncio.ensure_future(doors.idle(within_s=3600.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    doors.leave(["r"])
    await waiting
    doors.enter("a", "another", now=0.0)
    await doors.idle(within_s=0.0)


def test_what_a_door_twice_says_not_to_want_or_to_miss_is_found(doors: Doors) -> None:
    doors.enter("a", "kept", now=0.0)
    doors.enter("a", "dropped", now=0.0)
    said = frozenset({"kept", "lost"})
    assert doors.compare("a", said) == (NOTHING, NOTHING)
    assert doors.compare("a", said) == (frozenset({"dropped"}), frozenset({"lost"}))


async def test_what_a_door_has_not_heard_the_end_of_is_not_missing(doors: Doors) -> None:
    doors.enter("a", "r", now=0.0)
    doors.deliver([delta("r")])
    doors.leave(["r"])
    missing = frozenset({"r"})
    for _ in range(2):
        assert doors.compare("a", missing) == (NOTHING, NOTHING)
    await doors.poll("a", (await doors.poll("a", 0, wait_s=0)).number, wait_s=0)
    doors.compare("a", missing)
    assert doors.compare("a", missing) == (NOTHING, missing)
