"""A shard leaves once, however often it is told to."""

from __future__ import annotations

import asyncio

import pytest

from actors.departure import Departure
from actors.doors import Doors
from actors.engine_thread import EngineThread
from actors.hand_over import Intake
from actors.shard import KVShard
from actors.shard_spec import ShardSpec
from cluster.config import ModelConfig
from cluster.messages import ShardRef
from tests.engine.driving import engine_of

NEVER_S = 3600.0
SPEC = ShardSpec(ShardRef("m/shard-0", "m", "m/shard-0", "life"), ModelConfig(), "tests", 1)


@pytest.fixture
def doors() -> Doors:
    """One request is here."""
    doors = Doors(timeout_s=10.0, max_backlog=3)
    doors.enter("door", "r", now=0.0)
    return doors


@pytest.fixture
def departure(doors: Doors) -> Departure:
    """Of a shard whose engine answers nobody, and is not asked by who waits for a request."""
    engine = EngineThread(lambda: engine_of("llama"), lambda _: None, lambda _: None)
    return Departure(SPEC, doors, Intake(SPEC.model, SPEC.namespace, engine))


async def test_who_tells_a_shard_again_to_leave_waits_for_the_leave_that_it_takes(
    doors: Doors, departure: Departure
) -> None:
    first = asyncio.create_task(departure.leave(None, NEVER_S, NEVER_S))
    await asyncio.sleep(0)
    again = asyncio.create_task(departure.leave(None, 0.0, 0.0))
    for _ in range(10):
        await asyncio.sleep(0)
    assert departure.begun
    assert not again.done()
    assert doors.requests() == {"r"}
    doors.leave(["r"])
    await asyncio.gather(first, again)


async def test_the_leave_goes_on_when_who_asked_for_it_has_gone(
    doors: Doors, departure: Departure
) -> None:
    first = asyncio.create_task(departure.leave(None, NEVER_S, NEVER_S))
    await asyncio.sleep(0)
    first.cancel()
    again = asyncio.create_task(departure.leave(None, 0.0, 0.0))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not again.done()
    doors.leave(["r"])
    await again


async def test_what_is_said_to_the_life_before_ends_no_farewell() -> None:
    shard, left = KVShard(SPEC), asyncio.get_running_loop().create_future()
    left.set_result(frozenset({"r"}))
    over = asyncio.create_task(shard._departure.farewell.over(left, NEVER_S))
    await shard.handed_over("the life before", ("r",))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not over.done()
    await shard.handed_over(SPEC.ref.incarnation, ("r",))
    await over
