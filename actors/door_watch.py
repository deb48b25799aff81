"""Whose requests wait for a lease: a door that dies takes none of them back, so it is watched.

Without this a dead door's requests would be found out only as their turn comes, each holding its
place on a shard until nobody has claimed it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError

from actors.naming import ActorAddress
from actors.tasks import cancel_all
from cluster.errors import NotReady, SchedulerLost

LOOK_S = 2.0

logger = logging.getLogger(__name__)


class DoorWatch:
    """The doors of one router, by the names of their actors in `namespace`.

    `withdraw` is called for each request that waits of a door that is dead, `look_s` seconds after
    its death at most. A door that is merely silent is left alone. Lives on one event loop.
    """

    def __init__(
        self, namespace: str, withdraw: Callable[[str], Awaitable[None]], look_s: float = LOOK_S
    ) -> None:
        self._namespace = namespace
        self._withdraw = withdraw
        self._look_s = look_s
        self._waiting: dict[str, set[str]] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self.living: set[str] = set()
        """The doors whose death will be noticed."""

    @contextmanager
    def waiting(self, door: str, request_id: str) -> Iterator[None]:
        """While the block runs, the request waits for `door`; one without a name has no actor."""
        waiting = self._waiting.setdefault(door, set())
        waiting.add(request_id)
        if door and door not in self._watches:
            self._watches[door] = asyncio.get_running_loop().create_task(self._watch(door))
        try:
            yield
        finally:
            waiting.discard(request_id)

    async def close(self) -> None:
        await cancel_all(*self._watches.values())

    async def _watch(self, door: str) -> None:
        """For as long as the door lives. One that is not found is left alone for good: to take a
        living one for dead would fail its requests."""
        try:
            handle = await ActorAddress(door, self._namespace).look_up()
        except NotReady:
            logger.warning("no actor is called %s, so its death would not be noticed", door)
            return
        self.living.add(door)
        await self._death(handle)
        self.living.remove(door)
        del self._watches[door]
        orphans = tuple(self._waiting.pop(door))
        logger.info("%s is dead; %d requests of it are withdrawn", door, len(orphans))
        with contextlib.suppress(SchedulerLost):  # and their places in the queue with it
            await asyncio.gather(*map(self._withdraw, orphans))

    async def _death(self, handle: Any) -> None:
        with contextlib.suppress(ActorDiedError):
            while True:
                with contextlib.suppress(ActorUnavailableError):
                    await handle.__ray_ready__.remote()
                await asyncio.sleep(self._look_s)
