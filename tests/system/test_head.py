"""The head dies with all that runs on it, and comes back: streams go on, new requests wait."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from benchmarks import mixture
from tests.actors.living import until
from tests.system import network
from tests.system.application import KEY, MODEL, arguments
from tests.system.network import Machine, Network

pytestmark = [pytest.mark.exhaustive, pytest.mark.slow]

START_S = 120.0
"""Longest time that a machine, or the application, may take to come up."""

WAITING = 8
"""Requests that come while the head is away."""


class Cluster:
    """What docs/operations.md says of a head that may be lost: its records on disk, and the doors
    on the two other machines, beside the shards."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.head, *self.workers = network.machines
        self._folder = folder
        self._env = {
            "SHOAL_API_KEYS": KEY,
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_DISABLE_MEMORY_MONITOR": "1",
        }

    async def start_head(self) -> None:
        records = str(self._folder / "records")
        kept = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": records}
        where = f"--dashboard-host={self.head.address}"
        await self._start(self.head, "start-head.sh", where, **kept)

    async def start_workers(self) -> None:
        for worker in self.workers:
            await self._start(worker, "start-worker.sh", self.head.address, "--num-cpus=2")

    def deploy(self, config: dict[str, Any]) -> None:
        written = self._folder / "config.yaml"
        written.write_text(yaml.safe_dump(config))
        deploy = f"serve deploy {written} -a http://{self.head.address}:8265"
        subprocess.run(
            ["bash", "-c", f"source cluster/launch/environment.sh; {deploy}"],
            env={**os.environ, **self._env},
            cwd=network.ROOT,
            check=True,
            capture_output=True,
        )

    @asynccontextmanager
    async def doors(self) -> AsyncIterator[list[httpx.AsyncClient]]:
        """A client of each worker's door."""
        headers = {"Authorization": f"Bearer {KEY}"}
        urls = [f"http://{worker.address}:8000" for worker in self.workers]
        async with AsyncExitStack() as stack:
            clients = (httpx.AsyncClient(base_url=u, headers=headers, timeout=120) for u in urls)
            yield [await stack.enter_async_context(client) for client in clients]

    async def _start(self, machine: Machine, script: str, *arguments: str, **env: str) -> None:
        command = (f"cluster/launch/{script}", *arguments, f"--node-ip-address={machine.address}")
        machine.boot(*command, env=self._env | env, folder=self._folder)

        async def is_up() -> bool:
            return machine.up.exists()

        await until(is_up, within_s=START_S)
        assert machine.up.read_text().strip() == "0", machine.log.read_text()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    if not network.is_possible():
        pytest.skip("needs network namespaces")
    folder = Path(tempfile.mkdtemp(prefix="shoal-"))
    machines = Network(machines=3)
    try:
        yield Cluster(machines, folder)
    finally:
        machines.remove()
        shutil.rmtree(folder)


def config(folder: Path) -> dict[str, Any]:
    """A shard and a door for each of two machines, none for the head."""
    args = arguments(folder, shards=2, gateway={"replicas": 2})
    args["models"][0]["resources"] = {"cpus": 1, "threads": 1}
    off_the_head = {"num_cpus": 0, "label_selector": {"shoal.io/head": "!true"}}
    gateway = {"name": "Gateway", "max_replicas_per_node": 1, "ray_actor_options": off_the_head}
    application = {"name": "shoal", "route_prefix": "/", "import_path": "deployments.app:build"}
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": "0.0.0.0", "port": 8000},
        "applications": [application | {"args": args, "deployments": [gateway]}],
    }


async def stats(door: httpx.AsyncClient) -> dict[str, Any]:
    told: dict[str, Any] = (await door.get("/admin/stats")).json()
    return told


async def test_streams_outlive_the_head_and_new_requests_wait_until_it_is_back(
    cluster: Cluster, tiny_folder: Path
) -> None:
    await cluster.start_head()
    await cluster.start_workers()
    cluster.deploy(config(tiny_folder))
    wanted = mixture.asks(MODEL, 28, seed=11)
    async with cluster.doors() as doors:

        async def ready() -> bool:
            try:
                answers = [await door.get("/ready") for door in doors]
            except httpx.HTTPError:
                return False
            return all(answer.status_code == httpx.codes.OK for answer in answers)

        async def busy() -> bool:
            return all(shard["running"] for shard in (await stats(doors[0]))["shards"])

        async def ask(asks: list[mixture.Ask]) -> list[mixture.Answer]:
            answers = (mixture.answer(doors[turn % 2], one) for turn, one in enumerate(asks))
            return await asyncio.gather(*answers)

        await until(ready, within_s=START_S)
        due = await ask(wanted)
        before = (await stats(doors[0]))["scheduler"]
        given = asyncio.create_task(ask(wanted))
        await until(busy)
        with cluster.head.unplugged():  # so that nobody is told that it is gone
            cluster.head.power_off()
            assert not given.done()
            later = asyncio.create_task(ask(wanted[:WAITING]))
            assert set(map(mixture.verdict, await given, due)) == {"right"}
            assert not later.done()
        await cluster.start_head()
        assert set(map(mixture.verdict, await later, due[:WAITING])) == {"right"}
        after = (await stats(doors[0]))["scheduler"]
        assert after["epoch"] > before["epoch"]
        known = [{shard["incarnation"] for shard in one["shards"]} for one in (before, after)]
        assert known[0] == known[1]  # the same shards, which loaded nothing anew
