"""POST /v1/completions, spoken to as plain HTTP."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from cluster.messages import FinishReason, Request, TokenDelta, TokenLogprob
from tests.deployments.world import World, read_events

PARIS = "The capital of France is Paris."


async def test_a_text_is_continued(world: World) -> None:
    answer = (await world.complete()).json()
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": PARIS, "logprobs": None, "finish_reason": "stop"}
    ]
    assert world.asked.stopping.max_tokens == 16


async def test_token_ids_are_a_prompt_as_they_are(world: World) -> None:
    await world.complete(prompt=[5, 6, 7])
    assert world.asked.prompt == (5, 6, 7)


@pytest.mark.parametrize("prompts", [["One", "two"], [[5, 6], [7]]])
async def test_several_prompts_are_answered_in_their_order(
    world: World, prompts: list[str] | list[list[int]]
) -> None:
    answer = (await world.complete(prompt=prompts, n=2)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert len(world.source.requests) == 2
    asked = sum(len(request.prompt) for request in world.source.requests)
    assert answer["usage"]["prompt_tokens"] == asked
    assert answer["usage"]["completion_tokens"] == 4 * 8


async def test_several_prompts_share_a_stream(world: World) -> None:
    chunks = read_events(await world.complete(prompt=["a", "b", "c"], stream=True))
    texts = ["", "", ""]
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == [PARIS] * 3


async def test_equal_prompts_get_seeds_of_their_own(world: World) -> None:
    await world.complete(prompt=["a", "a"])
    assert len({request.sampling.seed for request in world.source.requests}) == 2


async def test_echo_gives_the_prompt_back_first(world: World) -> None:
    answer = (await world.complete(prompt="One fish, ", echo=True)).json()
    assert answer["choices"][0]["text"] == "One fish, " + PARIS


async def test_echo_gives_back_what_token_ids_spell(world: World) -> None:
    ids = await world.text.encode("two fish ")
    answer = (await world.complete(prompt=ids, echo=True)).json()
    assert answer["choices"][0]["text"] == "two fish " + PARIS


def score_all(request: Request) -> Iterable[TokenDelta]:
    """Two choices of which the second is heard of first."""
    scores = [TokenLogprob(token, -1.0, ((9, -0.5),)) for token in request.prompt[1:]]
    said = (TokenLogprob(8, -2.0, ((8, -2.0),)),)
    ends = FinishReason.LENGTH
    yield TokenDelta(request.request_id, 1, (8,), said, ends)
    yield TokenDelta(request.request_id, 0, (8,), said, ends, prompt_logprobs=(None, *scores))


async def test_echo_with_logprobs_scores_the_prompt_of_each_choice(world: World) -> None:
    world.says(score_all)
    prompt = [*(await world.text.encode("One")), 9]
    response = await world.complete(prompt=prompt, echo=True, logprobs=1, n=2, max_tokens=1)
    names = [world.text.token_name(token) for token in (*prompt, 8)]
    for choice in response.json()["choices"]:
        assert choice["text"] == "".join(names)
        scores = choice["logprobs"]
        assert scores["tokens"] == names
        assert scores["token_logprobs"] == [None, *[-1.0] * (len(prompt) - 1), -2.0]
        assert scores["top_logprobs"][0] is None
        assert scores["top_logprobs"][-1] == {names[-1]: -2.0}
        assert scores["text_offset"] == [
            0,
            *(len("".join(names[:i])) for i in range(1, len(names))),
        ]
    assert world.asked.sampling.prompt_logprobs == 1


async def test_logprobs_zero_scores_only_the_chosen_token(world: World) -> None:
    def script(request: Request) -> Iterable[TokenDelta]:
        score = TokenLogprob(8, -2.0)
        yield TokenDelta(request.request_id, 0, (8,), (score,), FinishReason.LENGTH)

    world.says(script)
    choice = (await world.complete(logprobs=0, max_tokens=1)).json()["choices"][0]
    assert list(choice["logprobs"]["top_logprobs"][0].values()) == [-2.0]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_can_be_scored_without_generating_anything(
    world: World, stream: bool
) -> None:
    def script(request: Request) -> Iterable[TokenDelta]:
        scores = (None, *[TokenLogprob(token, -1.0) for token in request.prompt[1:]])
        ends = FinishReason.LENGTH
        yield TokenDelta(request.request_id, 0, (), finish=ends, prompt_logprobs=scores)

    world.says(script)
    ids = await world.text.encode("One fish,")
    response = await world.complete(
        prompt="One fish,", echo=True, logprobs=0, max_tokens=0, stream=stream
    )
    answer = read_events(response)[0] if stream else response.json()
    assert answer["choices"][0]["text"] == "One fish,"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [None, *[-1.0] * (len(ids) - 1)]
    assert world.asked.stopping.max_tokens == 0
    if not stream:
        assert answer["usage"]["completion_tokens"] == 0


async def test_a_prompt_that_fills_the_context_can_be_scored(world: World) -> None:
    await world.complete(prompt=[5] * 128, echo=True, max_tokens=0)
    assert len(world.asked.prompt) == 128
    response = await world.complete(prompt=[5] * 129, echo=True, max_tokens=0)
    assert response.json()["error"]["code"] == "context_length_exceeded"
