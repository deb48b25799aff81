"""A client that leaves takes its request along, whether it streams or not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import Message

from deployments.routes import create_app
from tests.deployments.scripted import saying
from tests.deployments.world import CHAT, COMPLETION, World


class Connection:
    """One HTTP request, as a server speaks it to the application."""

    def __init__(self, world: World, path: str, body: bytes, *, spec: str = "2.3") -> None:
        self.broken = False
        self.left = asyncio.Event()
        self._incoming = [{"type": "http.request", "body": body, "more_body": False}]
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": spec},
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }
        app = create_app(world.gateway)
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        if self._incoming:
            return self._incoming.pop()
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self.broken:
            raise OSError("the client is gone")


def leave(connection: Connection) -> None:
    connection.left.set()


def cancel(connection: Connection) -> None:
    connection.task.cancel()


def body(fields: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({**fields, **more}).encode()


@pytest.mark.parametrize("go", [leave, cancel])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("played", [0, 2])
@pytest.mark.parametrize("prompt", ["one", ["one", "two", "three"]])
async def test_leaving_cancels_the_request(
    world: World, go: Callable[[Connection], None], stream: bool, played: int, prompt: Any
) -> None:
    world.source.before_hold = played
    sent = body(COMPLETION, prompt=prompt, stream=stream)
    connection = Connection(world, "/v1/completions", sent)
    await world.source.holding.wait()
    go(connection)
    await asyncio.wait([connection.task])
    asked = [request.request_id for request in world.source.requests]
    assert sorted(world.source.cancelled) == sorted(asked)


async def test_a_server_that_fails_to_send_cancels_the_request(world: World) -> None:
    connection = Connection(world, "/v1/chat/completions", body(CHAT, stream=True), spec="2.4")
    connection.broken = True
    await asyncio.wait([connection.task])
    assert connection.task.exception() is not None
    assert len(world.source.cancelled) == 1


async def test_a_finished_request_is_not_cancelled(world: World) -> None:
    await world.chat()
    await world.chat(stream=True)
    assert world.source.cancelled == []


async def test_a_choice_that_met_a_stop_string_is_stopped_and_others_go_on(world: World) -> None:
    words = await world.text.encode("One fish, two")
    world.says(saying([*words, 1]))
    answer = await world.complete(prompt=["a", "b"], stop=",")
    assert [choice["text"] for choice in answer.json()["choices"]] == ["One fish"] * 2
    asked = [(request.request_id, 0) for request in world.source.requests]
    assert sorted(world.source.stopped) == sorted(asked)


async def test_the_first_failure_of_several_prompts_cancels_the_rest(world: World) -> None:
    world.source.before_hold = 1
    paris = world.source.script

    def script(request: Any) -> Any:
        return [RuntimeError("a bug")] if request.request_id.endswith("-1") else paris(request)

    world.says(script)
    with pytest.raises(RuntimeError):
        await world.complete(prompt=["a", "b", "c"])
    assert len(world.source.cancelled) == 3
