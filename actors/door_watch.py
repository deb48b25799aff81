"""Learns which doors are gone: Ray does not name their process any more, though they wait for
leases, or have some that they have not used."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import ray

LOOK_S = 2.0
"""Between two looks, seconds."""

logger = logging.getLogger(__name__)


def living_actors() -> frozenset[str]:
    """The names of all actors that live, in any namespace; blocks."""
    return frozenset(one["name"] for one in ray.util.list_named_actors(all_namespaces=True))


class DoorWatch:
    """Asks Ray, while there are doors that wait or have leases they have not used, which of them
    live.

    `waiting` gives the names of those doors, `gone` is called with each that lives no more. A door
    is called as the actor that it is in.
    """

    def __init__(
        self,
        waiting: Callable[[], frozenset[str]],
        gone: Callable[[str], None],
        living: Callable[[], frozenset[str]] = living_actors,
    ) -> None:
        self._waiting = waiting
        self._gone = gone
        self._living = living
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, unless it has; call it on the event loop."""
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def look(self) -> None:
        """One look. Who is asked for was there before the question, so who is not named is gone."""
        doors = self._waiting()
        if doors:
            living = await asyncio.to_thread(self._living)
            for door in sorted(doors - living):
                logger.warning("door %s is gone, and what it has waiting is dropped", door)
                self._gone(door)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except Exception:  # the loop outlives what it finds: nobody else would look
                logger.exception("it is not known which doors are there")
