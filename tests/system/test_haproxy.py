"""`make serve` from its greeting on, and clients and Gateways that leave: through HAProxy."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from scripts.ports import free_port
from tests.actors.living import until
from tests.system.application import KEY, MODEL, arguments

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Server:
    url: str
    pid: int

    def http(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {KEY}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=60)

    def gateways(self) -> list[psutil.Process]:
        family = psutil.Process(self.pid).children(recursive=True)
        return [one for one in family if "Gateway" in " ".join(one.cmdline())]


@pytest.fixture(scope="module")
def server(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The tiny model, which may sleep but begins awake, behind what `make serve` runs."""
    application = {"name": "shoal", "route_prefix": "/", "import_path": "deployments.app:build"}
    args = arguments(tiny_folder, shards=1, gateway={"replicas": 2})
    args["models"][0]["autoscaling"] = {"min_shards": 0, "max_shards": 1}
    config = {
        "http_options": {"host": "127.0.0.1"},
        "applications": [application | {"args": args}],
    }
    path = tmp_path_factory.mktemp("serve") / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    port = free_port()
    command = [sys.executable, "-m", "scripts.serve", "--config", str(path), "--port", str(port)]
    keys = os.environ | {"SHOAL_API_KEYS": KEY}
    with subprocess.Popen(
        command, cwd=ROOT, env=keys, stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        while not launcher.stdout.readline().startswith("Ctrl-C"):
            assert launcher.poll() is None, "it did not come up"
        yield Server(f"http://127.0.0.1:{port}", launcher.pid)
        launcher.send_signal(signal.SIGINT)
        launcher.stdout.read()


async def test_it_greets_once_a_model_that_may_sleep_but_begins_awake_is_served(
    server: Server,
) -> None:
    async with server.http() as http:
        ready = (await http.get("/ready")).json()
    assert ready == {"status": "ready", "asleep": [], "loading": []}


@pytest.mark.parametrize("stream", [False, True])
async def test_whoever_leaves_frees_the_pages(server: Server, stream: bool) -> None:
    body = {"model": MODEL, "prompt": "One fish", "max_tokens": 900, "ignore_eos": True}
    async with server.http() as http:

        async def books() -> Any:
            return (await http.get("/admin/stats")).json()

        async def busy() -> bool:
            used: int = (await books())["shards"][0]["used_pages"]
            return used > 0

        async def idle() -> bool:
            now = await books()
            held: int = now["shards"][0]["used_pages"] + now["scheduler"]["leased"]
            return held == 0

        async def sampled() -> int:
            count: int = (await books())["shards"][0]["tokens_sampled"]
            return count

        before = await sampled()

        calls = [
            asyncio.create_task(http.post("/v1/completions", json=body | {"stream": stream}))
            for _ in range(12)
        ]
        await until(busy)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert all(call.cancelled() for call in calls)
        await until(idle)
        assert await sampled() - before < 12 * 900 // 2  # nobody computed on for the departed


async def test_what_a_gateway_had_not_begun_to_answer_another_answers(server: Server) -> None:
    body = {"model": MODEL, "prompt": "One fish", "max_tokens": 400, "ignore_eos": True, "seed": 1}
    async with server.http() as http:

        async def shard() -> dict[str, int]:
            told: dict[str, int] = (await http.get("/admin/stats")).json()["shards"][0]
            return told

        async def busy() -> bool:
            return (await shard())["running"] == 12

        due = (await http.post("/v1/completions", json=body)).json()["choices"]
        before = (await shard())["tokens_sampled"]
        asked = [asyncio.create_task(http.post("/v1/completions", json=body)) for _ in range(12)]
        await until(busy)
        server.gateways()[0].kill()
        assert not any(one.done() for one in asked)
        for answer in await asyncio.gather(*asked):
            assert (answer.status_code, answer.json()["choices"]) == (200, due)
        sampled = (await shard())["tokens_sampled"] - before
        assert sampled > 12 * 400  # some were begun twice
