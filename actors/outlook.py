"""What is known of the nodes: surveyed when it is needed, forgotten where it may be old."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from actors.survey import survey
from cluster.topology import Topology

Look = Callable[[Topology], Awaitable[Topology]]
"""Surveys the cluster, where what is known already need not be asked again."""


async def look_again(known: Topology) -> Topology:
    return await survey(known=known)


class Outlook:
    """One look at a time; what is forgotten while somebody looks is seen again before it counts."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._forgotten: set[str] = set()
        self._all_old = False
        self._looking = asyncio.Lock()
        self.topology = Topology(())

    async def renew(self) -> Topology:
        """With every node that is there, as it is known or else as it is seen now."""
        async with self._looking:
            if self._all_old:
                self._all_old, self.topology = False, Topology(())
            while True:
                self._forgotten.clear()
                seen = await self._look(self.topology)
                self.topology = seen.without(self._forgotten)
                if not self._forgotten:
                    return seen

    def forget(self, nodes: Collection[str]) -> None:
        """They may have changed, and are surveyed again when they are next needed."""
        self._forgotten.update(nodes)
        self.topology = self.topology.without(nodes)

    def forget_all(self) -> None:
        """Whoever renews next sees all of them anew; who is looking now may go by what he sees."""
        self._all_old = True
