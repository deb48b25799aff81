"""A call that the idle cluster would not take is the caller's to make smaller, not to repeat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from deployments.auth import ANONYMOUS
from deployments.routes import create_app
from tests.deployments.scripted import ScriptedTokens, saying
from tests.deployments.world import COMPLETION, MODEL, make_gateway


async def complete(
    folder: Path, prompts: int, n: int, living: int = 0, **model: Any
) -> httpx.Response:
    """With 4 places in a shard and 2 requests that may wait."""
    shared = {"name": MODEL, "batching": {"max_num_seqs": 4}, **model}
    return await complete_on(folder, [shared], prompts, n, living)


async def complete_on(
    folder: Path, models: list[dict[str, Any]], prompts: int, n: int = 1, living: int = 0
) -> httpx.Response:
    """With 2 requests that may wait."""
    config: dict[str, Any] = {"models": models, "scheduling": {"max_queued": 2}}
    gateway = make_gateway(folder, ScriptedTokens(saying([65, 1])), living=living, **config)
    app = create_app(gateway)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shoal") as client:
        body = {**COMPLETION, "prompt": ["a"] * prompts, "n": n}
        return await client.post("/v1/completions", json=body)


@pytest.mark.parametrize(
    ("prompts", "n", "shards"), [(6, 1, 1), (4, 2, 1), (3, 5, 1), (10, 1, 2), (6, 1, 0)]
)
async def test_as_many_prompts_as_run_and_wait_are_taken(
    folder: Path, prompts: int, n: int, shards: int
) -> None:
    assert (await complete(folder, prompts, n, shards=shards)).status_code == 200
    refused = await complete(folder, prompts + 1, n, shards=shards)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == "prompt"
    running = prompts - 2
    assert error["message"] == (
        f"`prompt`: {prompts + 1} prompts, of n = {n} choices each, are more"
        f" than the {running} that run and the 2 that wait here at most"
    )


async def test_shards_that_joined_since_the_start_take_more(folder: Path) -> None:
    assert (await complete(folder, 14, 1, living=3, shards=1)).status_code == 200
    refused = await complete(folder, 15, 1, living=3, shards=1)
    assert refused.status_code == 400
    assert "more than the 12 that run" in refused.json()["error"]["message"]


async def test_what_a_tenants_own_shards_would_take_is_what_counts_for_it(folder: Path) -> None:
    shared = {"name": MODEL, "batching": {"max_num_seqs": 4}}
    own = {"name": "own", "tenant": ANONYMOUS, "instead_of": MODEL}
    larger = [shared, {**own, "batching": {"max_num_seqs": 8}}]
    smaller = [shared, {**own, "batching": {"max_num_seqs": 2}}]
    assert (await complete_on(folder, larger, 10)).status_code == 200
    assert (await complete_on(folder, smaller, 4)).status_code == 200
    refused = await complete_on(folder, smaller, 5)
    assert refused.status_code == 400
    assert "more than the 2 that run" in refused.json()["error"]["message"]
