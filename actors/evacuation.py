"""Nodes that Ray is to let go of, or that are gone: who is there, or on the way, goes elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from actors.naming import shard_name
from actors.nodes import draining_nodes
from actors.placing import Places

LOOK_S = 2.0
"""Between two looks at the nodes."""

logger = logging.getLogger(__name__)


class Evacuation:
    """Keeps new shards off nodes that are drained, and has those that are there replaced, and those
    that wait to begin on a node that is not there any more.

    `outdate` is called with the name of a shard that is to be replaced. `look` may block.
    """

    def __init__(
        self,
        places: Places,
        outdate: Callable[[str], None],
        look: Callable[[], frozenset[str]] = draining_nodes,
    ) -> None:
        self._places = places
        self._outdate = outdate
        self._look = look

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:  # the loop outlives what it finds: the next look may do better
                logger.exception("it is not known which nodes are there, or drained")
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """One look at the nodes, and at who is on those that go or are gone."""
        drained = await asyncio.to_thread(self._look)
        self._places.avoid(drained)
        astray = await self._places.astray()  # before who is there is read, as some may leave
        for model, index in (*self._places.on(drained), *astray):
            self._outdate(shard_name(model, index))
