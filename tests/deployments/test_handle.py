"""The Python side of the gateway: the same parameters and errors as over HTTP."""

from __future__ import annotations

import pickle
from contextlib import aclosing

import pytest

from cluster.errors import InvalidRequest, ModelNotFound, ShardLost, UnsupportedField
from cluster.messages import FinishReason, TokenDelta
from deployments.generation import Usage
from deployments.handle import GenerateRequest
from deployments.openai import ChatMessage
from tests.deployments.world import MODEL, World

PARIS = "The capital of France is Paris."


async def test_a_prompt_is_answered_whole(world: World) -> None:
    answer = await world.gateway.generate(GenerateRequest(prompt="Where?", tenant="acme"))
    assert (answer.text, answer.finish_reason) == (PARIS, FinishReason.STOP)
    assert answer.token_ids == (*world.text.encode_now(PARIS), 1), "with the end of sequence"
    assert answer.logprobs is None
    assert answer.model == MODEL
    assert answer.usage == Usage(len(world.asked.prompt), 8, 0)
    assert world.asked.tenant == "acme"


async def test_messages_are_rendered_as_over_http(world: World) -> None:
    await world.chat()
    turn = ChatMessage(role="user", content="Where?")
    await world.gateway.generate(GenerateRequest(model=MODEL, messages=[turn]))
    over_http, by_handle = world.source.requests
    assert by_handle.prompt == over_http.prompt
    assert by_handle.stopping == over_http.stopping


async def test_messages_may_be_plain_dicts() -> None:
    request = GenerateRequest.model_validate({"messages": [{"role": "user", "content": "a"}]})
    assert request.messages == [ChatMessage(role="user", content="a")]


async def test_a_stream_joins_to_the_whole_and_ends_with_usage(world: World) -> None:
    request = GenerateRequest(prompt=[5, 6], n=2)
    whole = await world.gateway.generate(request)
    deltas = [delta async for delta in world.gateway.stream(request)]
    for index, choice in enumerate(whole.choices):
        own = [delta for delta in deltas if delta.choice == index]
        assert "".join(delta.text for delta in own) == choice.text
        assert own[-1].finish_reason is FinishReason.STOP
    assert [delta.usage for delta in deltas] == [None] * (len(deltas) - 1) + [whole.usage]


async def test_leaving_a_stream_cancels_it(world: World) -> None:
    async with aclosing(world.gateway.stream(GenerateRequest(prompt="a"))) as stream:
        await anext(stream)
    assert world.source.cancelled == [world.asked.request_id]


def test_a_wrong_parameter_is_refused_where_the_request_is_made() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        GenerateRequest(prompt="a", temperature=9)
    assert refusal.value.param == "temperature"
    with pytest.raises(UnsupportedField, match="fishes"):
        GenerateRequest.model_validate({"prompt": "a", "fishes": 1})
    with pytest.raises(InvalidRequest, match="either"):
        GenerateRequest()
    with pytest.raises(InvalidRequest, match="either"):
        GenerateRequest(prompt="a", messages=[ChatMessage(role="user", content="a")])
    with pytest.raises(InvalidRequest, match="echo"):
        GenerateRequest(messages=[ChatMessage(role="user", content="a")], echo=True)


async def test_the_gateways_own_refusals_are_raised(world: World) -> None:
    with pytest.raises(ModelNotFound):
        await world.gateway.generate(GenerateRequest(prompt="a", model="nemo"))
    with pytest.raises(InvalidRequest):
        await anext(world.gateway.stream(GenerateRequest(prompt="")))


async def test_tokens_that_end_too_early_are_a_fault(world: World) -> None:
    world.says(lambda request: [TokenDelta(request.request_id, 0, (65,))])
    with pytest.raises(ShardLost):
        await world.gateway.generate(GenerateRequest(prompt="a"))


async def test_requests_and_answers_cross_processes(world: World) -> None:
    request = pickle.loads(pickle.dumps(GenerateRequest(prompt="a", stop=["b"])))
    answer = await world.gateway.generate(request)
    assert pickle.loads(pickle.dumps(answer)) == answer
