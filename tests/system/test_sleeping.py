"""The whole application while its only model sleeps: it is ready, knows the model, and wakes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError

from tests.actors.living import until
from tests.system.application import MODEL, SCHEDULING, Application, arguments, running

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

ASK: dict[str, Any] = {
    "model": MODEL,
    "prompt": "One fish, two",
    "temperature": 0,
    "max_tokens": 8,
    "extra_body": {"ignore_eos": True},
}
BOUNDS = {"min_shards": 0, "max_shards": 1, "idle_s": 5.0}
IMPATIENT = SCHEDULING | {"not_ready_timeout_s": 0.1}
"""Whoever were refused as other models' requests are would not see the shard come."""


@pytest.fixture(scope="module")
def sleeping(tiny_folder: Path) -> Iterator[Application]:
    """No shard to begin with."""
    [model] = arguments(tiny_folder, shards=0)["models"]
    sleeper = model | {"autoscaling": BOUNDS}
    with running(tiny_folder, 0, models=[sleeper], scheduling=IMPATIENT) as application:
        yield application


async def test_a_model_that_sleeps_is_there_to_everybody_and_wakes_for_a_request(
    sleeping: Application,
) -> None:
    assert await readiness(sleeping) == ready(asleep=[MODEL])
    async with sleeping.client() as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        with pytest.raises(BadRequestError, match="context"):
            await client.completions.create(**(ASK | {"prompt": "One fish, two. " * 20_000}))
        assert sleeping.shards() == []

        answers = [await answer(client) for _ in range(2)]
        assert await readiness(sleeping) == ready(asleep=[])
        await until(lambda: sleeping.is_known(0))
        assert await readiness(sleeping) == ready(asleep=[MODEL])
        assert {*answers, await answer(client)} == {answers[0]}
    await sleeping.verify()


async def answer(client: AsyncOpenAI) -> str:
    completion = await client.completions.create(**ASK)
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 8
    return str(completion.choices[0].text)


def ready(asleep: list[str]) -> tuple[int, Any]:
    return 200, {"status": "ready", "asleep": asleep, "loading": []}


async def readiness(application: Application) -> tuple[int, Any]:
    async with application.http() as http:
        answer = await http.get("/ready")
    return answer.status_code, answer.json()
