"""A gateway that ends begins nothing new, lets answers finish, and tells those it cuts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from cluster.errors import ShuttingDown
from deployments.ending import Ending
from deployments.handle import GenerateRequest
from tests.deployments.world import World, read_events

AGES = 600.0


async def test_a_stream_that_is_not_done_in_time_ends_with_an_error(world: World) -> None:
    world.source.before_hold = 2
    answer = asyncio.create_task(world.chat(stream=True))
    await world.source.holding.wait()
    await world.gateway.leave(0.01)
    response = await answer
    assert response.status_code == 200
    assert "The" in response.text
    *_, last, nothing = response.text.split("\n\n")
    assert last.startswith('event: error\ndata: {"error":{"message":"the server is ending, and')
    assert '"type":"server_error","param":null,"code":"shutting_down"}' in last
    assert nothing == ""
    assert world.source.cancelled == [world.asked.request_id]


async def test_an_answer_without_a_stream_gets_a_status_and_when_to_come_back(world: World) -> None:
    world.source.before_hold = 2
    answer = asyncio.create_task(world.complete(prompt=["one", "two"]))
    await world.source.holding.wait()
    await world.gateway.leave(0)
    response = await answer
    assert (response.status_code, response.json()["error"]["code"]) == (503, "shutting_down")
    assert response.headers["retry-after"] == "10"
    assert len(world.source.cancelled) == 2


async def test_a_stream_that_is_done_in_time_is_whole(world: World) -> None:
    world.source.before_hold = 2
    answer = asyncio.create_task(world.chat(stream=True))
    await world.source.holding.wait()
    leaving = asyncio.create_task(world.gateway.leave(AGES))
    await asyncio.sleep(0)
    world.source.goes_on.set()
    await leaving
    assert read_events(await answer)[-1]["choices"][0]["finish_reason"] == "stop"


async def test_what_comes_after_the_end_has_begun_is_refused_and_reaches_no_shard(
    world: World,
) -> None:
    assert (await world.client.get("/ready")).status_code == 200
    await world.gateway.leave(AGES)
    for stream in (False, True):
        response = await world.chat(stream=stream)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "shutting_down")
    with pytest.raises(ShuttingDown):
        await world.gateway.generate(GenerateRequest(prompt="Where?"))
    assert world.source.requests == []
    assert (await world.client.get("/ready")).status_code == 503


async def test_where_nothing_runs_the_end_is_there_at_once(world: World) -> None:
    await world.chat()
    leaving = asyncio.create_task(world.gateway.leave(AGES))
    await asyncio.sleep(0)
    assert leaving.done()


async def test_who_does_not_take_what_is_there_is_not_waited_for_beyond_the_time() -> None:
    async def numbers() -> AsyncGenerator[int, None]:
        for number in range(9):
            yield number

    ending = Ending()
    taken = ending.through(numbers())
    assert await anext(taken) == 0
    await ending.begin(0.01)
    with pytest.raises(ShuttingDown, match="not complete"):
        await anext(taken)


async def test_a_timeout_of_something_else_is_not_taken_for_the_end() -> None:
    async def failing() -> AsyncGenerator[int, None]:
        raise TimeoutError("a socket's")
        yield 1

    with pytest.raises(TimeoutError, match="a socket's"):
        await anext(Ending().through(failing()))
