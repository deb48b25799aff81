"""Nodes that Ray is to let go of: their shards begin elsewhere, and then leave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.exceptions import RayError

from actors.identity import Identity
from actors.lives import Life
from actors.placing import Places

LOOK_S = 2.0
"""Between two looks at which nodes are drained, and the longest wait for a shard's word."""

logger = logging.getLogger(__name__)


def draining_nodes() -> frozenset[str]:
    """The ids of nodes that Ray drains (`ray drain-node`, or an autoscaler); blocks."""
    # What Serve asks too, to move its replicas; there is no public way.
    client = ray._raylet.GcsClient(address=ray.get_runtime_context().gcs_address)
    return frozenset(client.get_draining_nodes(timeout=LOOK_S))


class Evacuation:
    """Keeps new shards off nodes that are drained, and has those that are there replaced.

    `outdate` is called with the name of a shard that is to be replaced. `look` may block.
    """

    def __init__(
        self,
        lives: Mapping[str, Life],
        places: Places,
        outdate: Callable[[str], None],
        look: Callable[[], frozenset[str]] = draining_nodes,
    ) -> None:
        self._lives = lives
        self._places = places
        self._outdate = outdate
        self._look = look

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:  # the loop outlives what it finds: the next look may do better
                logger.exception("it is not known which nodes are drained")
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """One look at the nodes, and, where any is drained, at who is there."""
        drained = await asyncio.to_thread(self._look)
        self._places.avoid(drained)
        if drained:
            for name, life in tuple(self._lives.items()):
                if life.shard is not None and await _node_of(life.handle) in drained:
                    self._outdate(name)


async def _node_of(handle: Any) -> str | None:
    """None of a shard that does not say where it is: it is busy, or gone."""
    try:
        async with asyncio.timeout(LOOK_S):
            identity: Identity = await handle.identity.remote()
    except (RayError, TimeoutError):
        return None
    return identity.node
