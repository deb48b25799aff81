"""The client stamps what a server streams, on a small server that streams what it is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.client import Endpoint, drive
from benchmarks.workloads import Prompt, Workload

Chunks = list[dict[str, Any]]


class ToyServer:
    """Streams `chunks` to every request, and keeps what it was asked and how many at once.

    It answers `together` requests at a time, and none before so many have come.
    """

    def __init__(self, chunks: Chunks, status: int = 200, together: int = 1) -> None:
        self._chunks = chunks
        self._status = status
        self._together = asyncio.Barrier(together)
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[str | None] = []
        self.paths: list[str] = []
        self._now = 0
        self.most_at_once = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.headers.append(request.headers.get("Authorization"))
        self.paths.append(request.path)
        if self._status != 200:
            return web.Response(status=self._status, text="no room")
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        await self._together.wait()
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in self._chunks:
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        self._now -= 1
        return response


Serve = Callable[..., Any]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts toy servers and ends them; gives the server and an endpoint to it."""
    running: list[TestServer] = []

    async def start(
        chunks: Chunks, status: int = 200, together: int = 1, **how: Any
    ) -> tuple[ToyServer, Endpoint]:
        toy, app = ToyServer(chunks, status, together), web.Application()
        app.router.add_post("/v1/{kind:.*}", toy.answer)
        server = TestServer(app)
        running.append(server)
        await server.start_server()
        return toy, Endpoint(str(server.make_url("")).rstrip("/"), "toy", **how)

    yield start
    for server in running:
        await server.close()


def workload(count: int = 1, concurrency: int = 1) -> Workload:
    prompts = tuple(Prompt((7, number), f" a b{number}", 2) for number in range(count))
    return Workload("toy", 1, concurrency, prompts)


def text(*pieces: str) -> Chunks:
    return [{"choices": [{"text": piece}]} for piece in pieces]


USAGE = {"choices": [], "usage": {"completion_tokens": 5}}


async def test_each_chunk_with_text_is_an_arrival_after_the_request_was_sent(serve: Serve) -> None:
    _, endpoint = await serve([*text("a", "", "b"), USAGE])
    (timeline,), wall = await drive(endpoint, workload())
    assert len(timeline.arrivals) == 2
    assert timeline.sent < timeline.arrivals[0] <= timeline.arrivals[1] <= timeline.sent + wall
    assert timeline.error is None


async def test_tokens_are_what_the_server_counted(serve: Serve) -> None:
    _, endpoint = await serve([*text("a"), USAGE])
    (timeline,), _ = await drive(endpoint, workload())
    assert (timeline.tokens, timeline.asked) == (5, 2)


async def test_tokens_are_chunks_where_the_server_counts_nothing(serve: Serve) -> None:
    _, endpoint = await serve(text("a", "b", "c"))
    (timeline,), _ = await drive(endpoint, workload())
    assert timeline.tokens == 3


async def test_a_prompt_goes_out_as_token_ids_greedy_and_to_its_full_length(serve: Serve) -> None:
    toy, endpoint = await serve(text("a"), key="secret")
    await drive(endpoint, workload())
    (body,) = toy.bodies
    assert (body["prompt"], body["max_tokens"], body["temperature"]) == ([7, 0], 2, 0)
    assert body["ignore_eos"] is True
    assert toy.headers == ["Bearer secret"]
    assert toy.paths == ["/v1/completions"]


async def test_a_prompt_goes_out_as_text_to_a_server_that_takes_only_that(serve: Serve) -> None:
    toy, endpoint = await serve(text("a"), asks="text", extra={})
    await drive(endpoint, workload())
    assert toy.bodies[0]["prompt"] == " a b0"
    assert "ignore_eos" not in toy.bodies[0]


async def test_a_chat_is_asked_and_read_as_one(serve: Serve) -> None:
    toy, endpoint = await serve([{"choices": [{"delta": {"content": "a"}}]}], asks="chat")
    (timeline,), _ = await drive(endpoint, workload())
    assert toy.paths == ["/v1/chat/completions"]
    assert toy.bodies[0]["messages"][0]["content"] == " a b0"
    assert timeline.tokens == 1


async def test_as_many_requests_are_in_flight_as_the_workload_has_clients(serve: Serve) -> None:
    toy, endpoint = await serve(text("a"), together=3)
    timelines, _ = await drive(endpoint, workload(count=12, concurrency=3))
    assert len(timelines) == len(toy.bodies) == 12
    assert toy.most_at_once == 3


async def test_a_refused_request_is_an_error_with_the_servers_words(serve: Serve) -> None:
    _, endpoint = await serve([], status=503)
    (timeline,), _ = await drive(endpoint, workload())
    assert timeline.error == "503 no room"


async def test_an_error_in_the_stream_is_an_error(serve: Serve) -> None:
    _, endpoint = await serve([*text("a"), {"error": {"message": "lost"}}])
    (timeline,), _ = await drive(endpoint, workload())
    assert timeline.error is not None
    assert "lost" in timeline.error


async def test_an_answer_without_text_is_an_error(serve: Serve) -> None:
    _, endpoint = await serve([USAGE])
    (timeline,), _ = await drive(endpoint, workload())
    assert timeline.error == "an answer without text"


async def test_a_server_that_is_not_there_is_an_error() -> None:
    (timeline,), _ = await drive(Endpoint("http://127.0.0.1:1", "toy"), workload())
    assert timeline.error is not None
