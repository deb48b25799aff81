"""POST /v1/chat/completions, spoken to as plain HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cluster.messages import FinishReason, Request, TokenDelta, TokenLogprob
from deployments.handle import GenerateRequest
from tests.deployments.scripted import ScriptedTokens, saying
from tests.deployments.world import MODEL, NOW, World, contents, make_gateway, read_events

PARIS = "The capital of France is Paris."


async def test_an_answer_has_text_reason_and_usage(world: World) -> None:
    answer = (await world.chat()).json()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["created"] == NOW
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": PARIS, "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    assert answer["usage"]["prompt_tokens"] == len(world.asked.prompt)
    assert answer["usage"]["completion_tokens"] == 8, "the end of sequence counts too"
    assert answer["usage"]["total_tokens"] == len(world.asked.prompt) + 8


async def test_the_prompt_is_the_rendered_conversation(world: World) -> None:
    turns = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None},
        {"role": "user", "content": "d", "name": "Ann"},
    ]
    await world.chat(messages=turns)
    written = "".join(world.text.token_name(token) for token in world.asked.prompt)
    assert written == (
        "<|start|>system\nBe brief.<|end|>\n<|start|>user\na\nb<|end|>\n"
        "<|start|>assistant\nc<|end|>\n<|start|>user\nd<|end|>\n<|start|>assistant\n"
    )


async def test_without_a_limit_a_chat_may_fill_the_context(world: World) -> None:
    await world.chat()
    assert world.asked.stopping.max_tokens == 128 - len(world.asked.prompt)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_a_limit_by_either_name_cuts_the_answer(world: World, field: str) -> None:
    answer = (await world.chat(**{field: 2})).json()
    [choice] = answer["choices"]
    assert choice["message"]["content"] == "The capital"
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 2


async def test_a_stream_says_the_same_piece_by_piece(world: World) -> None:
    chunks = read_events(await world.chat(stream=True))
    assert contents(chunks) == ["The", " capital", " of", " France", " is", " Paris", ".", ""]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * 7 + ["stop"]
    assert all("usage" not in chunk for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_a_stream_ends_with_usage_where_asked_for(world: World) -> None:
    response = await world.chat(stream=True, stream_options={"include_usage": True})
    *chunks, last = read_events(response)
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8


async def test_cached_tokens_are_told(world: World) -> None:
    def script(request: Request) -> Iterable[TokenDelta]:
        yield TokenDelta(request.request_id, 0, (1,), finish=FinishReason.STOP, cached_tokens=16)

    world.says(script)
    usage = (await world.chat()).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 16}


async def test_choices_are_numbered_and_their_prompt_counts_once(world: World) -> None:
    answer = (await world.chat(n=3)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in answer["choices"]] == [PARIS] * 3
    assert answer["usage"]["prompt_tokens"] == len(world.asked.prompt)
    assert answer["usage"]["completion_tokens"] == 3 * 8


async def test_choices_share_a_stream(world: World) -> None:
    chunks = read_events(await world.chat(n=2, stream=True))
    assert "".join(contents(chunks, 0)) == "".join(contents(chunks, 1)) == PARIS


def scored(tokens: list[int]) -> Any:
    def script(request: Request) -> Iterable[TokenDelta]:
        for place, token in enumerate(tokens):
            score = TokenLogprob(token, -0.5, ((token, -0.5), (7, float("-inf"))))
            ends = FinishReason.STOP if place + 1 == len(tokens) else None
            yield TokenDelta(request.request_id, 0, (token,), (score,), ends)

    return script


async def test_logprobs_run_along_the_text(world: World) -> None:
    world.says(scored([*(await world.text.encode("é!")), 1]))
    answer = (await world.chat(logprobs=True, top_logprobs=2)).json()
    entries = answer["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == ["bytes:\\xc3", "bytes:\\xa9", "!"]
    assert [entry["bytes"] for entry in entries] == [[0xC3], [0xA9], [0x21]]
    assert entries[0]["logprob"] == -0.5
    assert entries[0]["top_logprobs"][1]["logprob"] == -9999.0
    assert world.asked.sampling.logprobs == 2


async def test_logprobs_of_a_stop_string_are_withheld_with_its_text(world: World) -> None:
    world.says(scored([*(await world.text.encode("One fish, two")), 1]))
    response = await world.chat(logprobs=True, stop=[", "], stream=True)
    chunks = read_events(response)
    assert "".join(contents(chunks)) == "One fish"
    told = [e["token"] for c in chunks for e in c["choices"][0]["logprobs"]["content"]]
    assert "".join(told) == "One fish"


async def test_the_first_token_comes_at_once_with_the_role(world: World) -> None:
    world.says(saying([*(await world.text.encode("Hello there")), 1]))
    chunks = read_events(await world.chat(stream=True, stop=["Hello you"]))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(contents(chunks)) == "Hello there"


async def test_every_parameter_reaches_the_sampler(world: World) -> None:
    await world.chat(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        seed=11,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.1,
        logit_bias={"5": -100, "6": 2.5},
        min_tokens=2,
        stop_token_ids=[9],
        max_tokens=20,
    )
    sampling, stopping = world.asked.sampling, world.asked.stopping
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 40)
    assert (sampling.min_p, sampling.seed, sampling.logprobs) == (0.05, 11, None)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1, -1)
    assert sampling.repetition_penalty == 1.1
    assert sampling.logit_bias == ((5, -100), (6, 2.5))
    assert (stopping.max_tokens, stopping.min_tokens) == (20, 2)
    assert stopping.stop_token_ids == (1, 2, 9), "the model's own ends and the caller's"


async def test_ends_of_sequence_are_ignored_when_asked(world: World) -> None:
    await world.chat(ignore_eos=True, stop_token_ids=[9])
    assert world.asked.stopping.stop_token_ids == (9,)


async def test_an_absent_seed_is_drawn_for_each_request(world: World) -> None:
    await world.chat()
    await world.chat(seed=None)
    seeds = {request.sampling.seed for request in world.source.requests}
    assert len(seeds) == 2
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    ("tier", "sla"),
    [(None, "P1"), ("auto", "P1"), ("priority", "P0"), ("flex", "P2"), ("P2", "P2")],
)
async def test_service_tiers_and_class_names_choose_the_class(
    world: World, tier: str | None, sla: str
) -> None:
    await world.chat(service_tier=tier)
    assert world.asked.sla == sla


async def test_a_request_that_names_no_class_is_in_its_tenants(folder: Path) -> None:
    tenants = [{"name": "batch", "default_class": "P2"}]
    source = ScriptedTokens(saying([65, 1]))
    gateway = make_gateway(folder, source, scheduling={"tenants": tenants})
    for tenant in ("batch", "other"):
        await gateway.generate(GenerateRequest(model=MODEL, prompt="One fish,", tenant=tenant))
    assert [request.sla for request in source.requests] == ["P2", "P1"]


async def test_fields_without_effect_are_accepted(world: World) -> None:
    response = await world.chat(
        user="me",
        metadata={"a": "b"},
        store=False,
        parallel_tool_calls=True,
        tool_choice="none",
        response_format={"type": "text"},
        modalities=["text"],
        tools=None,
    )
    assert response.status_code == 200
