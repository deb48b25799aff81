"""Processes die, and the application answers again by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from actors.naming import SCHEDULER, shard_name
from tests.actors.living import until
from tests.system.application import MODEL, Application

pytestmark = pytest.mark.slow

REQUEST: dict[str, Any] = {"model": MODEL, "prompt": "One fish, two", "max_tokens": 8}
LONG: dict[str, Any] = REQUEST | {"max_tokens": 900, "extra_body": {"ignore_eos": True}}


async def answers(application: Application) -> str:
    async with application.client() as client:
        answer = await client.completions.create(**REQUEST, temperature=0)
    return str(answer.choices[0].text)


async def test_streams_go_on_while_the_scheduler_dies_and_new_requests_wait(
    application: Application,
) -> None:
    before = await answers(application)
    async with application.client() as client:
        stream = await client.completions.create(**LONG, stream=True)
        chunks = aiter(stream)
        await anext(chunks)
        death = asyncio.create_task(application.kill(SCHEDULER))
        rest = [chunk async for chunk in chunks]
        await death
    assert rest[-1].choices[0].finish_reason == "length"
    assert await answers(application) == before


async def test_a_dead_shard_ends_its_streams_cleanly_and_is_replaced(
    application: Application,
) -> None:
    before = await answers(application)
    async with application.client() as client:
        streams = [await client.completions.create(**LONG, stream=True) for _ in range(2)]
        readers = [aiter(stream) for stream in streams]
        for reader in readers:
            await anext(reader)
        await asyncio.gather(*(application.kill(shard_name(MODEL, index)) for index in range(2)))
        for reader in readers:
            with pytest.raises(openai.APIError, match="shard"):
                async for _ in reader:
                    pass
    assert await answers(application) == before


async def test_requests_amid_deaths_are_answered_as_ever_or_fail_cleanly(
    application: Application,
) -> None:
    before = await answers(application)
    kills = [application.kill(shard_name(MODEL, index)) for index in range(2)]
    requests = [answers(application) for _ in range(16)]
    outcomes = await asyncio.gather(*requests, *kills, return_exceptions=True)
    texts = [outcome for outcome in outcomes if isinstance(outcome, str)]
    failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert set(texts) <= {before}
    assert all(isinstance(failure, openai.InternalServerError) for failure in failures)
    assert await answers(application) == before
    await application.verify()


async def test_ready_tells_the_truth_while_shards_are_away(application: Application) -> None:
    kills = [asyncio.create_task(application.kill(shard_name(MODEL, index))) for index in range(2)]
    async with application.http() as http:
        seen: list[httpx.Response] = []
        while not seen or seen[-1].status_code == 200:
            seen.append(await http.get("/ready"))
        assert seen[-1].status_code == 503
        assert MODEL in seen[-1].json()["error"]["message"]
        await asyncio.gather(*kills)

        async def ready() -> bool:
            return (await http.get("/ready")).status_code == 200

        await until(ready)
        assert (await http.get("/health")).status_code == 200
