"""Three nodes of Ray: shards spread over them, and one that dies takes no request with it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import ray
from ray import serve
from ray.cluster_utils import Cluster

from actors.naming import SCHEDULER, shard_name
from benchmarks import mixture
from deployments.app import build
from tests.actors.living import until
from tests.system.application import KEY, MODEL, NAME, Application, arguments, free_port

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
            actor = self.application.actor(name)
            # A lambda, as a named function would have the actor import this file.
            where = lambda _: ray.get_runtime_context().get_node_id()  # noqa: E731
            home: str = await actor.__ray_call__.remote(where)
        except (ValueError, ray.exceptions.RayActorError):
            return None
        return home

    async def is_home(self, name: str, node: str | None) -> bool:
        return await self.home(name) == node

    async def homes(self, shards: int) -> set[str | None]:
        return {await self.home(shard_name(MODEL, index)) for index in range(shards)}


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


async def test_added_nodes_get_shards_and_the_death_of_one_is_no_more_than_a_pause(
    nodes: Nodes,
) -> None:
    application, cluster = nodes.application, nodes.cluster
    await until(lambda: application.is_settled(1), within_s=120)
    head = await nodes.home(shard_name(MODEL, 0))
    await until(lambda: nodes.is_home(SCHEDULER, head))

    added = [cluster.add_node(num_cpus=2) for _ in range(2)]
    fleet = serve.get_deployment_handle("Fleet", NAME)
    await fleet.reconfigure.remote({"shards": {MODEL: 3}})
    await until(lambda: application.is_settled(3), within_s=120)
    assert await nodes.homes(3) == {head, *(node.node_id for node in added)}

    async def struck() -> bool:
        stats = await application.shard_stats(3)
        return all(one.running for one in stats)

    wanted = mixture.asks(MODEL, 28, seed=7)
    async with application.http() as http:
        due = await asyncio.gather(*(mixture.answer(http, ask) for ask in wanted))
        asking = asyncio.gather(*(mixture.answer(http, ask) for ask in wanted))
        await until(struck)
        cluster.remove_node(added[1], allow_graceful=False)
        given = await asking
    assert list(map(mixture.verdict, given, due)) == ["right"] * len(wanted)

    await until(lambda: application.is_settled(3), within_s=120)
    assert await nodes.homes(3) == {head, added[0].node_id}
    await application.verify(3)
