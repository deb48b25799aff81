"""Bodies that are huge, slow, or not the plain UTF-8 JSON that is asked for."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError, model_validator
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from cluster.config import GatewayConfig
from cluster.errors import InvalidRequest
from deployments import bodies
from deployments.aside import Aside
from deployments.body_limit import BodyLimit
from deployments.openai import ChatRequest, CompletionRequest
from deployments.parameters import Wire
from deployments.routes import create_app
from tests.deployments.scripted import ScriptedTokens, saying
from tests.deployments.world import COMPLETION, MODEL, World, make_gateway

JSON = {"content-type": "application/json"}


@pytest.fixture
async def impatient(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway that gives a body no time at all."""
    source = ScriptedTokens(saying([65, 1]))
    gateway = make_gateway(folder, source, gateway={"body_timeout_s": 1e-9})
    transport = httpx.ASGITransport(create_app(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://shoal") as client:
        yield client


async def never() -> AsyncIterator[bytes]:
    yield b'{"model": '
    await asyncio.Event().wait()


async def test_a_body_that_does_not_come_is_given_up(impatient: httpx.AsyncClient) -> None:
    response = await impatient.post("/v1/completions", content=never(), headers=JSON)
    assert response.status_code == 408
    assert response.json()["error"]["message"].startswith("the body was not complete after 1e-09 s")
    assert response.headers["connection"] == "close"


async def test_the_time_for_a_body_is_none_for_its_answer() -> None:
    messages: list[Message] = [{"type": "http.request", "body": b""}, {"type": "http.disconnect"}]

    async def receive() -> Message:
        if len(messages) == 1:
            await asyncio.sleep(0.001)  # longer than a body may take
        return messages.pop(0)

    async def send(message: Message) -> None:
        raise AssertionError("nothing was to be answered")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"

    limit = BodyLimit(app, GatewayConfig(body_timeout_s=1e-9))
    await limit({"type": "http", "headers": []}, receive, send)
    assert messages == []


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate, gzip"])
async def test_a_compressed_body_is_refused_by_its_coding(world: World, coding: str) -> None:
    content = gzip.compress(json.dumps(COMPLETION).encode())
    headers = {**JSON, "content-encoding": coding}
    response = await world.client.post("/v1/completions", content=content, headers=headers)
    assert response.status_code == 415
    assert f"`Content-Encoding: {coding}`" in response.json()["error"]["message"]


@pytest.mark.parametrize("charset", ["latin-1", "utf-16", "Shift_JIS"])
async def test_another_charset_is_refused_by_name(world: World, charset: str) -> None:
    body = json.dumps({**COMPLETION, "prompt": "é"}, ensure_ascii=False).encode("latin-1")
    headers = {"content-type": f"application/json; charset={charset}"}
    response = await world.client.post("/v1/completions", content=body, headers=headers)
    assert response.status_code == 415
    assert charset.lower() in response.json()["error"]["message"]


@pytest.mark.parametrize("charset", ["UTF-8", '"utf-8"', "us-ascii"])
async def test_the_charset_of_json_may_be_named(world: World, charset: str) -> None:
    headers = {"content-type": f"application/json; charset={charset}"}
    body = json.dumps(COMPLETION)
    response = await world.client.post("/v1/completions", content=body, headers=headers)
    assert response.status_code == 200


async def test_bytes_that_are_no_utf8_are_located(world: World) -> None:
    body = b'{"model": "m", "prompt": "\xe9"}'
    response = await world.client.post("/v1/completions", content=body, headers=JSON)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "the body is not UTF-8, at byte 26"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"model": "m', "Unterminated string starting at 10"),
        (b'{"prompt": "\n"}', "Invalid control character at 12"),
        (b'{"model": ', "Expecting value at 10"),
    ],
)
def test_a_place_in_broken_json_is_said_once(body: bytes, reason: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        bodies.parse(body, ChatRequest)
    assert caught.value.message == f"the body is not valid JSON: {reason}"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (rb'{"model": "\ud800"}', "`model`"),
        (rb'{"stop": ["a", "\udc00"]}', "`stop[1]`"),
        (rb'{"\ud800": "x"}', "the name of a field"),
    ],
)
def test_half_of_a_surrogate_pair_is_refused_in_our_own_words(body: bytes, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        bodies.parse(body, ChatRequest)
    assert caught.value.message.startswith(f"{field} holds half of a surrogate pair")


async def test_a_byte_order_mark_is_no_part_of_the_json(world: World) -> None:
    body = b"\xef\xbb\xbf" + json.dumps(COMPLETION).encode()
    assert (await world.client.post("/v1/completions", content=body, headers=JSON)).is_success


class Noting(Wire):
    """A body that notes which thread has checked it."""

    checked_by: str = ""

    @model_validator(mode="after")
    def _note(self) -> Noting:
        self.checked_by = threading.current_thread().name
        return self


@pytest.mark.parametrize(
    ("size", "thread"), [(2, threading.main_thread().name), (bodies.LARGE_BODY, "parsing")]
)
async def test_a_large_body_is_checked_beside_the_event_loop(size: int, thread: str) -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b"{}".ljust(size)}

    headers = [(b"content-type", b"application/json")]
    request = Request({"type": "http", "headers": headers}, receive)
    checked = await bodies.read_json(request, Noting)
    assert isinstance(checked, Noting)
    assert checked.checked_by.startswith(thread)


async def test_no_more_than_a_few_work_beside_the_loop_at_once() -> None:
    begun, going = threading.Semaphore(0), threading.Event()

    def work() -> None:
        begun.release()
        going.wait()

    aside = Aside("test", threads=2)
    tasks = [asyncio.create_task(aside.run(work)) for _ in range(6)]
    for _ in range(2):
        await asyncio.to_thread(begun.acquire)
    assert not begun.acquire(blocking=False)
    going.set()
    await asyncio.gather(*tasks)


def test_a_refusal_does_not_keep_the_body_that_it_refuses() -> None:
    with pytest.raises(InvalidRequest) as refused:
        bodies.parse(b'{"prompt": [5, "a"], "model": "m"}', CompletionRequest)
    assert refused.value.param == "prompt[1]"
    assert refused.value.__context__ is None


MANY = 100_000
FLOODS: list[tuple[type[ChatRequest | CompletionRequest], dict[str, Any]]] = [
    (ChatRequest, {"messages": [{}] * MANY}),
    (ChatRequest, {"messages": [{"role": "user", "content": [{}] * MANY}]}),
    (ChatRequest, {"modalities": ["fish"] * MANY}),
    (ChatRequest, {"metadata": {str(n): n for n in range(MANY)}}),
    (ChatRequest, {"logit_bias": {str(n): "a" for n in range(MANY)}}),
    (ChatRequest, {"stop": [5] * MANY, "stop_token_ids": ["a"] * MANY}),
    (ChatRequest, {f"x{n}": n for n in range(MANY)}),
    (CompletionRequest, {"prompt": [-1] * MANY}),
    (CompletionRequest, {"prompt": ["a", *[5] * MANY]}),
    (CompletionRequest, {"prompt": [[-1] * MANY] * 2}),
]


@pytest.mark.parametrize(("kind", "fields"), FLOODS)
def test_of_a_hundred_thousand_mistakes_a_few_are_looked_for(
    kind: type[ChatRequest | CompletionRequest], fields: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        kind.model_validate({"model": MODEL, **fields})
    found = refused.value.__context__
    assert isinstance(found, ValidationError)
    assert found.error_count() < 10


def test_the_default_limit_is_one_that_parsing_keeps_short() -> None:
    assert GatewayConfig().max_body_bytes == 2 * 2**20
