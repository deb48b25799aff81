"""Many clients at once over two shards: right tokens, shared pages, nothing left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.actors.living import until
from tests.system.application import MODEL, Application

pytestmark = pytest.mark.slow

PROMPTS = [f"{'One fish, two fish. ' * (1 + number % 7)}{number}" for number in range(64)]


async def stream_text(client: AsyncOpenAI, prompt: str, **options: Any) -> str:
    stream = await client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=24, stream=True, **options
    )
    return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])


async def test_64_streams_over_2_shards_equal_those_that_run_alone(
    application: Application,
) -> None:
    async with application.client() as client:
        alone = [await stream_text(client, prompt, temperature=0) for prompt in PROMPTS[:16]]
        before = await application.shard_stats()
        crowd = await asyncio.gather(*(stream_text(client, p, temperature=0) for p in PROMPTS))
        after = await application.shard_stats()
    assert crowd[:16] == alone
    assert len(set(crowd)) > 32
    assert all(b.tokens_sampled < a.tokens_sampled for b, a in zip(before, after, strict=True))
    await until(application.is_idle)
    await application.verify()


async def test_the_same_seed_gives_the_same_tokens_alone_and_in_a_crowd(
    application: Application,
) -> None:
    options: dict[str, Any] = {"temperature": 1.0, "seed": 1234}
    async with application.client() as client:
        alone = await stream_text(client, PROMPTS[0], **options)
        crowd = [stream_text(client, prompt, temperature=1.0) for prompt in PROMPTS[1:32]]
        among, *_ = await asyncio.gather(stream_text(client, PROMPTS[0], **options), *crowd)
        other = await stream_text(client, PROMPTS[0], temperature=1.0, seed=4321)
    assert among == alone
    assert other != alone


async def test_a_client_that_leaves_frees_its_pages(application: Application) -> None:
    body = {"model": MODEL, "prompt": PROMPTS[0], "max_tokens": 900, "ignore_eos": True}
    before = sum([stats.tokens_sampled for stats in await application.shard_stats()])
    async with application.http() as http:
        async with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
            await anext(stream.aiter_lines())
            assert not await application.is_idle()
        await until(application.is_idle)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(http.post("/v1/completions", json=body | {"n": 4}), 0.3)
        await until(application.is_idle)
    sampled = sum([stats.tokens_sampled for stats in await application.shard_stats()]) - before
    assert sampled < 5 * 900 // 2  # nobody computed on for the departed
    await application.verify()


async def test_a_prefix_that_one_client_paid_for_is_cached_for_the_next(
    application: Application,
) -> None:
    prompt = "A shoal swims as one. " * 20
    async with application.client() as client:
        request: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": 4}
        first = await client.completions.create(**request)
        await until(application.is_idle)
        again = await client.completions.create(**request)
    assert first.usage is not None
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    cached = again.usage.prompt_tokens_details.cached_tokens or 0
    assert cached > again.usage.prompt_tokens - 16


async def test_the_audit_had_nothing_to_mend(application: Application) -> None:
    before = await application.audits()

    async def looked_twice() -> bool:
        return await application.audits() >= before + 2

    await until(looked_twice)
    assert await application.mended() == {}
    async with application.http() as http:
        books = (await http.get("/admin/stats")).json()
    assert [one["mended"] for one in (books["scheduler"], *books["shards"])] == [{}] * 3
