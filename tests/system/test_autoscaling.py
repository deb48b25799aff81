"""Load makes the real fleet grow, rest makes it shrink, and every request is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.actors.living import until
from tests.system.application import MODEL, Application, arguments, running

pytestmark = pytest.mark.slow

ASK: dict[str, Any] = {"model": MODEL, "prompt": "One fish, two", "temperature": 0}
LONG: dict[str, Any] = {"max_tokens": 300, "extra_body": {"ignore_eos": True}}
BOUNDS = {"min_shards": 1, "max_shards": 2, "settle_s": 1.0, "down_after_s": 3.0}


@pytest.fixture(scope="module")
def scaled(tiny_folder: Path) -> Iterator[Application]:
    """One shard with places for four, which may become two."""
    [model] = arguments(tiny_folder, shards=1)["models"]
    small = {"batching": {"max_num_seqs": 4, "max_batch_tokens": 64}, "autoscaling": BOUNDS}
    with running(tiny_folder, 1, models=[model | small]) as application:
        yield application


@pytest.mark.exhaustive
async def test_the_fleet_grows_under_load_and_shrinks_at_rest_and_nobody_notices(
    scaled: Application,
) -> None:
    async with scaled.client() as client:
        due = await answer(client, **LONG)

        async def grown() -> bool:
            return len((await scaled.scheduler_stats()).shards) == 2

        assert set(await ask_until(grown, client, at_once=16, **LONG)) == {due}

        async def shrunk() -> bool:
            return await scaled.is_settled(1) and not await scaled.serves(f"{MODEL}/shard-1")

        few = await answer(client, max_tokens=8)
        assert set(await ask_until(shrunk, client, at_once=1, max_tokens=8)) == {few}
    await scaled.verify()


async def answer(client: AsyncOpenAI, **how: Any) -> str:
    completion = await client.completions.create(**ASK, **how)
    return str(completion.choices[0].text)


async def ask_until(fact: Any, client: AsyncOpenAI, at_once: int, **how: Any) -> list[str]:
    """All answers that so many clients got, one request after the other, until it was so."""
    answers: list[str] = []
    over = asyncio.Event()

    async def ask() -> None:
        while not over.is_set():
            answers.append(await answer(client, **how))

    asking = [asyncio.create_task(ask()) for _ in range(at_once)]
    await until(fact)
    over.set()
    await asyncio.gather(*asking)
    return answers
