"""The lives that go on: each is one task, and when it ends, its actor is dead and its name free."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

from ray.exceptions import RayError

from actors.adoption import look_at
from actors.identity import Identity
from actors.lifecycle import Event
from actors.lives import AT_ONCE, Leave, Life, Patience, bury, hand_back, in_words, leave_of, live
from actors.naming import SCHEDULER, ActorAddress
from actors.tasks import cancel_all, first_to_end

NEWS_S = 1.0
"""Longest wait for the scheduler to take in that a shard is gone."""

logger = logging.getLogger(__name__)


class Keeper:
    """Keeps lives, one to a name at a time, until they end by themselves or are cut short.

    A shard that is cut short has its `leave` for what it has begun. By the actor's name, `tell`
    hears how each life goes on, at the end always that it is LOST, and `stands` where it is.
    """

    def __init__(
        self,
        namespace: str,
        patience: Patience,
        leave: Leave,
        tell: Callable[[str, Event | None, str], None],
        stands: Callable[[str, Identity], None],
    ) -> None:
        self._namespace = namespace
        self._patience = patience
        self._leave = leave
        self._tell = tell
        self._stands = stands
        self._lives: dict[str, Life] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._burying: set[str] = set()
        self._released = False
        self._ending = asyncio.Event()

    @property
    def lives(self) -> Mapping[str, Life]:
        """The lives that have begun and have not ended, by name."""
        return self._lives

    def begin(self, name: str, make: Callable[[], Awaitable[Life]]) -> None:
        """Keep the life that `make` gives, from now on; the one before by that name is over."""
        self._tasks[name] = asyncio.create_task(self._keep(name, make))

    def cut_short(self, name: str) -> None:
        """End a life. A burial goes on: cut short, it would leave the actor, and never be LOST."""
        if name not in self._burying:
            self._tasks[name].cancel()

    async def end_all(self) -> None:
        """Cut every life short, at once, and wait until all are dead."""
        self._ending.set()
        for name in self._tasks:
            self.cut_short(name)
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def let_go(self) -> None:
        """Leave every actor as it is."""
        self._released = True
        await cancel_all(*self._tasks.values())

    async def _keep(self, name: str, make: Callable[[], Awaitable[Life]]) -> None:
        reason, fault = "it is not wanted any more", None
        try:
            life = self._lives[name] = await make()
            await live(life, self._patience, partial(self._hear, name), partial(self._stands, name))
        except Exception as error:  # noqa: BLE001 - the fleet outlives all
            reason, fault = in_words(error), error
            logger.warning("%s is lost: %s", name, reason)
        except asyncio.CancelledError:
            if self._released:
                raise
        self._burying.add(name)
        try:
            await self._end(name, fault)
        except Exception:  # a member must be LOST whatever its burial raised, or it never returns
            logger.exception("%s could not be buried in order", name)
        self._burying.remove(name)
        self._tell(name, Event.LOST, reason)

    def _hear(self, name: str, event: Event | None, message: str) -> None:
        if event is Event.LOADED:
            self._lives[name] = replace(self._lives[name], loaded=True)
        self._tell(name, event, message)

    async def _end(self, name: str, fault: Exception | None) -> None:
        """Let its requests go on elsewhere, unless all ends, and bury it. The scheduler is told: of
        one that failed before, so that no new lease goes there, and of each after, since it may
        have reported in between."""
        life = self._lives.pop(name, None)
        if life is None:
            await self._oust(name)
            return
        if fault is not None:
            await self._say_gone(life)
        leave = AT_ONCE if fault else leave_of(life, self._lives.values(), self._leave)
        await self._bury(life, fault, leave)

    async def _oust(self, name: str) -> None:
        """A life that did not begin leaves nobody, unless somebody bears its name who could not be
        taken over, and would bear it for good."""
        found = await look_at(ActorAddress(name, self._namespace), self._patience.let_go_s)
        if found is not None:
            said = "is mute" if found.identity is None else f"is {found.identity}"
            logger.warning("who bears the name %s %s, and is ended", name, said)
            await self._bury(found.life(), None, AT_ONCE)

    async def _bury(self, life: Life, fault: Exception | None, leave: Leave) -> None:
        if not self._ending.is_set():
            await first_to_end(hand_back(life, fault, leave, self._patience), self._all_ends())
        await bury(life, self._patience)
        await self._say_gone(life)

    async def _all_ends(self) -> None:
        await self._ending.wait()

    async def _say_gone(self, life: Life) -> None:
        scheduler = self._lives.get(SCHEDULER)
        if life.shard is None or scheduler is None:
            return
        with contextlib.suppress(RayError, TimeoutError):
            async with asyncio.timeout(NEWS_S):
                await scheduler.handle.shard_gone.remote(life.shard)
