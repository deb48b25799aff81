"""The whole application on a local Ray that the test owns, and how tests look into it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import psutil
import ray
from openai import AsyncOpenAI
from ray import serve

from actors.naming import SCHEDULER, shard_index, shard_name
from cluster.stats import SchedulerStats, ShardStats
from deployments.app import build
from scripts.ports import free_port
from tests.actors.living import pid_of, until

NAME = "shoal"
MODEL = "tiny"
KEY = "sk-test"
SCHEDULING = {"shard_timeout_s": 5.0, "audit_s": 2.0}


@dataclass(frozen=True)
class Application:
    """A running application at `url`."""

    url: str

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncOpenAI]:
        async with AsyncOpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0) as client:
            yield client

    def http(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {KEY}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=60)

    def actor(self, name: str) -> Any:
        return ray.get_actor(name, NAME)

    def shard(self, index: int) -> Any:
        return self.actor(shard_name(MODEL, index))

    def shards(self) -> list[str]:
        """The names of the shards that there are, in order."""
        actors = ray.util.list_named_actors(all_namespaces=True)
        names = [one["name"] for one in actors if one["namespace"] == NAME]
        return sorted(name for name in names if shard_index(name) is not None)

    async def shard_stats(self) -> list[ShardStats]:
        return [await self.actor(name).stats.remote() for name in self.shards()]

    async def scheduler_stats(self) -> SchedulerStats:
        stats: SchedulerStats = await self.actor(SCHEDULER).stats.remote()
        return stats

    async def is_idle(self) -> bool:
        """Whether no shard holds a page for a living sequence."""
        return all(stats.used_pages == 0 for stats in await self.shard_stats())

    async def is_busy(self) -> bool:
        """Whether every shard computes something."""
        return all(stats.running for stats in await self.shard_stats())

    async def is_settled(self, shards: int = 2) -> bool:
        """Whether all wanted shards are there and known, hold no page, and no lease is out."""
        try:
            leased = (await self.scheduler_stats()).leased
            return await self.is_known(shards) and leased == 0 and await self.is_idle()
        except (ValueError, ray.exceptions.RayError):
            return False

    async def is_known(self, shards: int) -> bool:
        """Whether there are so many shards, and the scheduler knows them all."""
        try:
            known = (await self.scheduler_stats()).shards
        except (ValueError, ray.exceptions.RayError):
            return False
        return len(known) == len(self.shards()) == shards

    async def serves(self, name: str) -> bool:
        """Whether the scheduler knows a shard by that name."""
        try:
            known = (await self.scheduler_stats()).shards
        except (ValueError, ray.exceptions.RayError):
            return False
        return any(ref.shard == name for ref in known)

    async def pid(self, name: str) -> int | None:
        """The process of whoever bears the name now; None where nobody answers to it."""
        try:
            return await pid_of(self.actor(name))
        except (ValueError, ray.exceptions.RayActorError):
            return None

    async def kill(self, name: str) -> None:
        """SIGKILL the process of an actor, and return once Ray has another under its name."""
        before = await pid_of(self.actor(name))
        os.kill(before, signal.SIGKILL)

        async def replaced() -> bool:
            return await self.pid(name) not in (None, before)

        await until(replaced)

    def replicas(self, deployment: str) -> list[int]:
        """The processes of a deployment's replicas."""
        family = psutil.Process().children(recursive=True)
        return [one.pid for one in family if f"ServeReplica:{NAME}:{deployment}" in _title(one)]

    async def mended(self) -> Counter[str]:
        """What the audits of scheduler and shards had to put right, by what was wrong."""
        mended = Counter((await self.scheduler_stats()).mended)
        for stats in await self.shard_stats():
            mended.update(stats.mended)
        return mended

    async def audits(self) -> int:
        """How often every shard has looked through its books."""
        looks = [self.actor(name).__ray_call__.remote(_looks) for name in self.shards()]
        fewest: int = min(await asyncio.gather(*looks))
        return fewest

    async def verify(self) -> None:
        """The books of the scheduler add up; each shard checks its own as it answers."""
        for name in (SCHEDULER, *self.shards()):
            await self.actor(name).verify.remote()


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _looks(shard: Any) -> int:
    return int(shard._books.looks)


def arguments(folder: Path, shards: int, guesses: int = 0, **parts: Any) -> dict[str, Any]:
    """What would stand under `args` in ray-config.yaml, with further `parts` of it.

    A tiny model soon repeats itself: without `guesses` streams last as long as tests need of what
    happens meanwhile.
    """
    model = {
        "name": MODEL,
        "source": str(folder),
        "dtype": "float32",
        "shards": shards,
        "cache": {"block_size": 8, "num_blocks": 1024},
        "batching": {
            "max_num_seqs": 64,
            "max_batch_tokens": 256,
            "prompt_lookup_tokens": guesses,
        },
        "resources": {"cpus": 0, "threads": 1},
    }
    return {"models": [model], "scheduling": SCHEDULING, **parts}


@contextmanager
def session(**options: Any) -> Iterator[None]:
    """A local Ray whose processes know the key; `options` of `ray.init` beside the usual."""
    usual = {"include_dashboard": False, "log_to_driver": False, "num_cpus": 2}
    with patch.dict(os.environ, {"SHOAL_API_KEYS": KEY}):
        ray.init(address="local", **usual | options)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def deployed(arguments: dict[str, Any]) -> Iterator[Application]:
    """The application on the Ray there is, with its doors on the head."""
    port = free_port()
    try:
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        serve.run(build(arguments), name=NAME)
        yield Application(f"http://127.0.0.1:{port}")
    finally:
        serve.shutdown()


@contextmanager
def running(folder: Path, shards: int, **parts: Any) -> Iterator[Application]:
    """Everything up and answering, and everything down again; `parts` as in `arguments`."""
    with session(), deployed(arguments(folder, shards, **parts)) as application:
        asyncio.run(ready(application, shards))
        yield application


async def ready(application: Application, shards: int) -> None:
    """Wait until so many shards serve."""

    async def settled() -> bool:
        async with application.http() as http:
            answer = await http.get("/admin/stats")
        return answer.status_code == 200 and len(answer.json()["shards"]) == shards

    await until(settled, within_s=120)
