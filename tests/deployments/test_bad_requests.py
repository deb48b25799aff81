"""Each bad input gets its own error, in OpenAI's body, before anything reaches a shard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster.errors import (
    ConfigError,
    InvalidRequest,
    NotReady,
    QueueFull,
    ShardLost,
    ShoalError,
    Unschedulable,
)
from cluster.messages import TokenDelta
from deployments.faults import VERDICTS, fault_body, verdict
from deployments.routes import create_app
from tests.deployments.scripted import ScriptedTokens, saying
from tests.deployments.world import CHAT, MODEL, World, make_gateway


@pytest.fixture(autouse=True)
async def _nothing_reaches_a_shard(request: Any, world: World) -> AsyncIterator[None]:
    yield
    if "failure" not in request.fixturenames:
        assert world.source.requests == []


def refused(response: httpx.Response, status: int, param: str | None, *words: str) -> None:
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param), error
    assert set(error) == {"message", "type", "param", "code"}
    for word in words:
        assert word in error["message"]
    for raw in ("Input should", "Field required", "Value error", "should have"):
        assert raw not in error["message"]


WRONG_IN_ANY: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"seed": 2**63}, "seed"),
    ({"seed": 0.5}, "seed"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": 1e-300}, "repetition_penalty"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 4, "min_tokens": 5}, "min_tokens"),
    ({"stop": ""}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop_token_ids": [1, 2, 3, 4, 5]}, "stop_token_ids"),
    ({"stop_token_ids": [100_000]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"logit_bias": {"100000": 1}}, "logit_bias"),
    ({"logit_bias": {"fish": 1}}, "logit_bias.fish"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"service_tier": "gold"}, "service_tier"),
    ({"deadline_s": 0}, "deadline_s"),
    ({"deadline_s": "soon"}, "deadline_s"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"speed": 1}}, "stream_options.speed"),
    ({"model": 5}, "model"),
    ({"fishes": 1}, "fishes"),
]
WRONG_IN_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "fish", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
    ),
    ({"messages": [{"role": "system", "content": "a"}] * 2}, "messages"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "a", "name": "n" * 257}]}, "messages[0].name"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
    ({"store": True}, "store"),
    ({"response_format": {"type": "json_object"}}, "response_format.type"),
    ({"modalities": ["audio"]}, "modalities[0]"),
    ({"tool_choice": "auto"}, "tool_choice"),
]
SENTENCES = [
    ({"temperature": 2.1}, "`temperature` must be 2 or less (got 2.1)"),
    ({"stream": "yes"}, '`stream` must be true or false (got "yes")'),
    ({"store": True}, "`store` must be false (got true)"),
    ({"messages": []}, "`messages` must have a length of 1 or more"),
    ({"messages": [{"role": "user"}]}, "`messages[0].content` is missing"),
    (
        {"messages": [{"role": "user", "content": 5}]},
        "`messages[0].content` must be a string or a list of text parts (got 5)",
    ),
]
UNSUPPORTED = [
    "tools",
    "functions",
    "function_call",
    "audio",
    "prediction",
    "reasoning_effort",
    "web_search_options",
    "verbosity",
]
WRONG_IN_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": [5, "a"]}, "prompt[1]"),
    ({"prompt": [100_000]}, "prompt"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"best_of": 2}, "best_of"),
    ({"suffix": "end"}, "suffix"),
    ({"messages": []}, "messages"),
]


@pytest.mark.parametrize(("fields", "param"), [*WRONG_IN_ANY, *WRONG_IN_CHAT])
async def test_a_wrong_field_of_a_chat_is_named(
    world: World, fields: dict[str, Any], param: str
) -> None:
    refused(await world.chat(**fields), 400, param)


@pytest.mark.parametrize(("fields", "param"), [*WRONG_IN_ANY, *WRONG_IN_COMPLETIONS])
async def test_a_wrong_field_of_a_completion_is_named(
    world: World, fields: dict[str, Any], param: str
) -> None:
    refused(await world.complete(**fields), 400, param)


@pytest.mark.parametrize(("fields", "sentence"), SENTENCES)
async def test_a_refusal_is_a_sentence_about_the_field(
    world: World, fields: dict[str, Any], sentence: str
) -> None:
    assert (await world.chat(**fields)).json()["error"]["message"] == sentence


@pytest.mark.parametrize("field", UNSUPPORTED)
async def test_an_unsupported_field_is_refused_by_name(world: World, field: str) -> None:
    response = await world.chat(**{field: {"type": "something"}})
    refused(response, 400, field, field, "not supported")
    assert response.json()["error"]["code"] == "unsupported_parameter"


@pytest.mark.parametrize("name", ["nemo", ""])
async def test_an_unknown_model_is_not_found(world: World, name: str) -> None:
    response = await world.chat(model=name or "x")
    refused(response, 404, "model", MODEL)
    assert response.json()["error"]["code"] == "model_not_found"


async def test_a_prompt_beyond_the_context_hears_both_lengths(world: World) -> None:
    response = await world.complete(prompt=[5] * 130, max_tokens=1)
    refused(response, 400, "prompt", "130", "128")
    assert response.json()["error"]["code"] == "context_length_exceeded"


async def test_a_prompt_that_fills_the_context_leaves_no_room_for_an_answer(world: World) -> None:
    refused(await world.complete(prompt=[5] * 128, max_tokens=1), 400, "prompt", "128")


async def test_a_prompt_and_its_limit_have_to_fit_together(world: World) -> None:
    refused(await world.complete(prompt=[5] * 100, max_tokens=29), 400, "max_tokens", "100", "29")
    refused(await world.complete(prompt=[5] * 120), 400, "max_tokens", "120", "16")
    refused(await world.chat(max_tokens=1000), 400, "max_tokens", "1000", "128")


async def test_the_limit_that_does_not_fit_is_named_as_it_was_given(world: World) -> None:
    response = await world.chat(max_completion_tokens=1000)
    refused(response, 400, "max_completion_tokens", "1000", "128")


async def test_messages_that_leave_no_room_are_named_whatever_the_limit(world: World) -> None:
    long = [{"role": "user", "content": "é" * 60}]
    refused(await world.chat(messages=long, max_tokens=1000), 400, "messages", "1000", "128")


@pytest.mark.parametrize("body", [b"{", b"", b"[1]", b'"text"', b"\xff\xfe", b"[" * 100_000])
async def test_a_body_that_is_no_json_object_is_refused(world: World, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    response = await world.client.post("/v1/completions", content=body, headers=headers)
    refused(response, 400, None)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "1" * 5000])
async def test_numbers_that_are_none_are_refused(world: World, number: str) -> None:
    body = f'{{"model": "{MODEL}", "prompt": "a", "temperature": {number}}}'
    headers = {"content-type": "application/json"}
    response = await world.client.post("/v1/completions", content=body, headers=headers)
    assert response.status_code == 400


async def test_another_content_type_is_refused(world: World) -> None:
    response = await world.client.post("/v1/completions", data={"prompt": "a"})
    refused(response, 400, None, "application/json")


async def test_an_unknown_route_and_a_wrong_method_get_openai_bodies(world: World) -> None:
    refused(await world.client.get("/v2/fish"), 404, None, "/v2/fish")
    wrong = await world.client.get("/v1/completions")
    refused(wrong, 405, None, "GET")
    assert wrong.headers["allow"] == "POST"


async def test_a_body_beyond_the_limit_is_too_large(folder: Path) -> None:
    gateway = make_gateway(folder, ScriptedTokens(saying([1])), gateway={"max_body_bytes": 2048})

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b" " * 1024

    transport = httpx.ASGITransport(create_app(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://shoal") as client:
        headers = {"content-type": "application/json"}
        told = await client.post("/v1/completions", content=b" " * 4096, headers=headers)
        untold = await client.post("/v1/completions", content=chunks(), headers=headers)
    refused(told, 413, None, "2048 bytes")
    refused(untold, 413, None, "2048 bytes")


FAILURES = [
    (QueueFull("full", 2.4), 429, "3"),
    (NotReady("no shard yet", 0.1), 503, "1"),
    (ShardLost("gone"), 500, None),
    (Unschedulable("no GPU at 10.0.0.7"), 500, None),
]


@pytest.mark.parametrize(("failure", "status", "retry_after"), FAILURES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_token_has_its_status(
    world: World, failure: ShoalError, status: int, retry_after: str | None, stream: bool
) -> None:
    world.says(lambda request: [failure])
    response = await world.chat(stream=stream)
    refused(response, status, None)
    assert response.headers.get("retry-after") == retry_after
    assert "10.0.0.7" not in response.text, "what is wrong inside is for the operator"


@pytest.mark.parametrize("failure", [ShardLost("the shard is gone"), RuntimeError("a bug")])
async def test_a_failure_amid_a_stream_is_an_event_and_ends_it(
    world: World, failure: Exception
) -> None:
    world.says(lambda request: [TokenDelta(request.request_id, 0, (65,)), failure])
    response = await world.chat(stream=True)
    assert response.status_code == 200
    first, last, rest = response.text.split("\n\n")
    assert first.startswith("data: ")
    assert last.startswith('event: error\ndata: {"error":{"message":"the s')
    assert rest == ""


async def test_a_bug_is_an_internal_error_without_its_details(folder: Path, failure: None) -> None:
    gateway = make_gateway(folder, ScriptedTokens(lambda request: [RuntimeError("secret")]))
    transport = httpx.ASGITransport(create_app(gateway), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shoal") as client:
        response = await client.post("/v1/chat/completions", json=CHAT)
    refused(response, 500, None)
    assert "secret" not in response.text


@pytest.fixture
def failure() -> None:
    """Marks a test that lets its request through."""


def test_every_error_of_the_tree_has_a_verdict() -> None:
    def below(kind: type[ShoalError]) -> list[type[ShoalError]]:
        return [kind, *(leaf for child in kind.__subclasses__() for leaf in below(child))]

    for kind in below(ShoalError):
        assert any(ancestor in VERDICTS for ancestor in kind.__mro__)
    assert verdict(InvalidRequest("no")).status == 400
    assert "args" not in str(fault_body(ConfigError("args.x is wrong", "args.x")))
