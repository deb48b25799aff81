"""An answer by a certain time, or an error that says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from cluster.errors import DeadlineExceeded
from deployments.deadlines import within
from deployments.handle import GenerateRequest
from tests.deployments.world import World

SOON = 0.01


async def test_a_call_that_overruns_its_deadline_is_cancelled_and_told(world: World) -> None:
    world.source.before_hold = 1
    response = await world.chat(deadline_s=SOON)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (503, "deadline_exceeded")
    assert error["message"] == "the answer was not complete within its deadline of 0.01 s"
    assert response.headers["retry-after"] == "1"
    assert world.source.cancelled == [world.asked.request_id]


async def test_a_stream_that_overruns_its_deadline_ends_with_an_error(world: World) -> None:
    world.source.before_hold = 1
    response = await world.complete(deadline_s=SOON, stream=True)
    assert response.status_code == 200
    assert 'event: error\ndata: {"error":{"message":"the answer was not' in response.text
    assert "[DONE]" not in response.text
    assert world.source.cancelled == [world.asked.request_id]


async def test_the_scheduler_is_told_of_the_deadline(world: World) -> None:
    assert (await world.chat(deadline_s=60)).status_code == 200
    assert world.asked.deadline_s == 60
    assert (await world.chat()).status_code == 200
    assert world.asked.deadline_s is None


async def test_a_python_caller_may_set_a_deadline(world: World) -> None:
    world.source.before_hold = 0
    with pytest.raises(DeadlineExceeded):
        await world.gateway.generate(GenerateRequest(prompt="One fish", deadline_s=SOON))


async def test_a_timeout_of_something_else_is_not_taken_for_the_deadline() -> None:
    async def failing() -> AsyncGenerator[int, None]:
        raise TimeoutError("a socket's")
        yield 1

    with pytest.raises(TimeoutError, match="a socket's"):
        await anext(within(60, failing()))


async def test_what_comes_in_time_comes_through_and_the_source_is_closed() -> None:
    closed = asyncio.Event()

    async def counting() -> AsyncGenerator[int, None]:
        try:
            for number in range(1, 4):
                yield number
        finally:
            closed.set()

    assert [number async for number in within(60, counting())] == [1, 2, 3]
    assert closed.is_set()
