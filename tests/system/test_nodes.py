"""Three nodes of Ray: shards spread over them, and a node that goes takes no request with it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import ray
from ray import serve
from ray.cluster_utils import Cluster

from actors.identity import Identity
from actors.naming import SCHEDULER
from benchmarks import mixture
from deployments.app import build
from scripts.ports import free_port
from tests.actors.living import until
from tests.system.application import KEY, MODEL, NAME, Application, arguments

pytestmark = pytest.mark.slow


class Nodes:
    """A Ray cluster on this machine, whose head runs the application's doors."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        port = free_port()
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        self.application = Application(f"http://127.0.0.1:{port}")

    async def home(self, name: str) -> str | None:
        """The node of whoever bears the name now, None where nobody answers to it."""
        try:
            identity: Identity = await self.application.actor(name).identity.remote()
        except (ValueError, ray.exceptions.RayActorError):
            return None
        return identity.node

    async def settle(self, shards: int, *homes: str) -> None:
        """Wait until so many shards are there, known and at rest, and on these nodes only."""

        async def settled() -> bool:
            there = {await self.home(name) for name in self.application.shards()}
            return there == set(homes) and await self.application.is_settled(shards)

        await until(settled, within_s=120)

    async def serve_while(self, strike: Callable[[], Awaitable[None]], seed: int) -> list[str]:
        """How requests of every kind fare while all shards are busy and `strike` is done."""
        wanted = mixture.asks(MODEL, 28, seed=seed)
        async with self.application.http() as http:
            due = await asyncio.gather(*(mixture.answer(http, ask) for ask in wanted))
            asking = asyncio.gather(*(mixture.answer(http, ask) for ask in wanted))
            await until(self.is_busy)
            await strike()
            given = await asking
        return list(map(mixture.verdict, given, due))

    async def is_busy(self) -> bool:
        return all(stats.running for stats in await self.application.shard_stats())


@pytest.fixture(scope="module")
def nodes(tiny_folder: Path) -> Iterator[Nodes]:
    """The application with one shard, on a head that is alone so far."""
    with patch.dict(os.environ, {"SHOAL_API_KEYS": KEY}):
        head = {"num_cpus": 2, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        nodes = Nodes(cluster)
        serve.run(build(arguments(tiny_folder, 1)), name=NAME)
        yield nodes
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.exhaustive
async def test_nodes_are_added_and_one_dies_and_one_is_drained_and_no_request_fails(
    nodes: Nodes,
) -> None:
    application, cluster = nodes.application, nodes.cluster
    head = cluster.head_node.node_id
    await nodes.settle(1, head)
    assert await nodes.home(SCHEDULER) == head

    first, second = (cluster.add_node(num_cpus=2) for _ in range(2))
    fleet = serve.get_deployment_handle("Fleet", NAME)
    await fleet.reconfigure.remote({"shards": {MODEL: 3}})
    await nodes.settle(3, head, first.node_id, second.node_id)

    async def die() -> None:
        cluster.remove_node(second, allow_graceful=False)

    assert set(await nodes.serve_while(die, seed=7)) == {"right"}
    await nodes.settle(3, head, first.node_id)

    async def drain() -> None:
        client = ray._raylet.GcsClient(address=cluster.address)
        preemption, in_an_hour = 2, int(time.time() + 3600) * 1000
        client.drain_node(first.node_id, preemption, "maintenance", in_an_hour)

    assert set(await nodes.serve_while(drain, seed=8)) == {"right"}
    await nodes.settle(3, head)
    cluster.remove_node(first)
    await application.verify()
