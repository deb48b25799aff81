"""The official client, unchanged, over a real socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import uvicorn

from cluster.errors import QueueFull
from cluster.messages import TokenDelta
from deployments.auth import ApiKeys
from deployments.routes import create_app
from deployments.text import ModelText
from tests.deployments.scripted import ScriptedTokens, saying
from tests.deployments.world import MODEL, make_gateway

PARIS = "The capital of France is Paris."
QUESTION: list[openai.types.chat.ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France?"}
]


@pytest.fixture(scope="module")
def source(text: ModelText) -> ScriptedTokens:
    return ScriptedTokens(saying([*text.encode_now(PARIS), 1]))


@pytest.fixture(scope="module")
def address(folder: Path, source: ScriptedTokens) -> Iterator[str]:
    app = create_app(make_gateway(folder, source, ApiKeys({"key": "acme"})))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        server.should_exit = True
        thread.join()


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=address, api_key="key", max_retries=0) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
    assert answer.choices[0].message.content == PARIS
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_an_answer_can_be_sent_back_as_a_turn(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION)
    turn = answer.choices[0].message.model_dump()
    again = client.chat.completions.create(model=MODEL, messages=[*QUESTION, turn, *QUESTION])  # type: ignore[list-item]
    assert again.choices[0].message.content == PARIS


def test_chat_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, stream=True, stream_options={"include_usage": True}, n=2
    )
    said, usage = ["", ""], None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            said[choice.index] += choice.delta.content or ""
    assert said == [PARIS, PARIS]
    assert usage is not None
    assert usage.completion_tokens == 16


def test_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=2, echo=True)
    assert [choice.text for choice in answer.choices] == ["aThe capital", "bThe capital"]


def test_completion_stream(client: openai.OpenAI) -> None:
    stream = client.completions.create(model=MODEL, prompt="a", stop=" Paris", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "The capital of France is"


def test_fields_beyond_openai_go_in_the_extra_body(
    client: openai.OpenAI, source: ScriptedTokens
) -> None:
    client.chat.completions.create(
        model=MODEL, messages=QUESTION, extra_body={"top_k": 5, "min_p": 0.1, "ignore_eos": True}
    )
    assert source.requests[-1].sampling.top_k == 5
    assert source.requests[-1].tenant == "acme"


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "shoal"
    with pytest.raises(openai.NotFoundError, match="nemo"):
        client.models.retrieve("nemo")


async def test_async_client(address: str) -> None:
    async with openai.AsyncOpenAI(base_url=address, api_key="key") as client:
        answer = await client.chat.completions.create(model=MODEL, messages=QUESTION)
        stream = await client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert answer.choices[0].message.content == "".join(parts) == PARIS


def test_errors_arrive_as_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nemo", messages=QUESTION)
    with pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=9)
    assert refusal.value.param == "temperature"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="nemo").models.list()


def test_overload_and_broken_streams_arrive_as_the_clients_own(
    client: openai.OpenAI, source: ScriptedTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = QueueFull("the queue is full", 2.0)
    monkeypatch.setattr(source, "script", lambda request: [full])
    with pytest.raises(openai.RateLimitError) as refusal:
        client.chat.completions.create(model=MODEL, messages=QUESTION)
    assert refusal.value.response.headers["retry-after"] == "2"

    broken = [TokenDelta("r", 0, (65,)), full]
    monkeypatch.setattr(source, "script", lambda request: broken)
    stream = client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
    with pytest.raises(openai.APIError, match="the queue is full"):
        list(stream)
