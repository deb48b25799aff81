"""GPUs are cut where a plan asks for it: a keeper on each node, and the fleet's word to them.

The keeper is an actor of its own that outlives the fleet, as the shards do: it alone knows how it
found the GPUs of its node, and puts that back at the end, or once nobody holds it any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import Callable, Collection
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.devices.layout_book import LayoutBook
from actors.devices.mig import MigManager
from actors.identity import Identity
from actors.lives import in_words
from actors.models import default_cache
from actors.naming import ActorAddress, names_in
from actors.nodes import living_nodes
from actors.tether import Tether
from cluster.errors import NotReady
from cluster.placement import Plan, Recut

logger = logging.getLogger(__name__)

PREFIX = "mig-keeper-"
CUT_S = 120.0
"""Seconds for one node to be cut or restored."""
HOLD_S = 2.0
"""Between two signs of the fleet: our shards, which hear more of them, must not end much later."""
TRIES = 20
"""At a layout. A process that has just ended may still be in the driver's list."""


def _exit() -> None:
    os._exit(0)


class MigKeeper:
    """The one hand that cuts the GPUs of its node.

    Without a sign of the fleet for `slack_s` seconds it restores what it can, trying for as long
    again, and calls `leave`, unless there is a sign meanwhile. `scope` names the application among
    all that ever cut here; what another keeper of it left is restored too. Between two tries at a
    layout it waits for `pause_s`.
    """

    def __init__(
        self,
        slack_s: float,
        scope: str,
        manager: MigManager | None = None,
        leave: Callable[[], None] = _exit,
        pause_s: float = 1.0,
    ) -> None:
        self._slack_s = slack_s
        self._manager = manager or MigManager(LayoutBook(default_cache() / "mig" / scope))
        self._leave = leave
        self._pause_s = pause_s
        self._turn = asyncio.Lock()
        self._going: asyncio.Task[None] | None = None
        self._called_back = asyncio.Event()
        self._tether = Tether(slack_s, self._adrift)

    async def hold(self) -> None:
        """A sign of the fleet."""
        self._hold()

    async def recut(self, recut: Recut, own_pids: Collection[int]) -> None:
        """See `MigManager.recut`; raises DeviceUnavailable likewise."""
        self._hold()
        async with self._turn:
            await asyncio.to_thread(self._manager.recut, recut, own_pids)

    async def restore(self) -> tuple[str, ...]:
        """Put back every layout; what went wrong, GPU by GPU. No shard of ours is to be left."""
        self._hold()
        async with self._turn:
            return await self._put_back(TRIES)

    def _hold(self) -> None:
        self._tether.hold()
        if self._going is not None:
            self._called_back.set()

    async def _put_back(self, tries: int) -> tuple[str, ...]:
        """What still is not, after so many tries, or when it is called back."""
        problems = await asyncio.to_thread(self._manager.restore, ())
        while problems and (tries := tries - 1) and not await self._is_called_back():
            problems = await asyncio.to_thread(self._manager.restore, ())
        return problems

    async def _is_called_back(self) -> bool:
        """Before, or within the pause between two tries."""
        self._tether.hold()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pause_s):
                await self._called_back.wait()
        return self._called_back.is_set()

    def _adrift(self) -> None:
        self._going = asyncio.get_running_loop().create_task(self._go())

    async def _go(self) -> None:
        """In its turn to the end: what is cut after the layouts are back would stay so."""
        async with self._turn:
            problems: tuple[str, ...] = ()
            try:
                # The scheduler may hold our shards for as long again as we were held.
                problems = await self._put_back(TRIES + math.ceil(self._slack_s / self._pause_s))
            except Exception:  # who stayed for whatever it is would stay for good
                logger.exception("layouts are left as they are cut")
            if self._called_back.is_set():
                self._stay()
                return
            for problem in problems:
                logger.error("left as it is cut: %s", problem)
            self._leave()

    def _stay(self) -> None:
        self._going = None
        self._called_back.clear()
        self._tether = Tether(self._slack_s, self._adrift)


class Carver:
    """The fleet's word to the keepers of its nodes, which are made where there is something to cut.

    It is told who of the fleet is where: what runs on a GPU and is none of them is foreign. `cuts`:
    whether the fleet may have something cut.
    """

    def __init__(
        self, namespace: str, slack_s: float, cuts: bool = True, hold_s: float = HOLD_S
    ) -> None:
        self._namespace = namespace
        self._slack_s = slack_s
        self._cuts = cuts
        self._hold_s = hold_s
        self._stand: dict[str, Identity] = {}
        self._cut_nodes: set[str] = set()

    def stands(self, name: str, identity: Identity) -> None:
        """One of ours is there, until it has left."""
        self._stand[name] = identity

    def leave(self, name: str) -> None:
        """It is dead."""
        self._stand.pop(name, None)

    async def carve(self, plan: Plan) -> tuple[str, ...]:
        """Make the recuts of a plan; what was refused, and why."""
        answers = await asyncio.gather(*map(self._cut, plan.recuts))
        return tuple(answer for answer in answers if answer)

    async def restore(self) -> None:
        """Give every GPU its layout back, once no shard is left. A keeper that does not manage it
        goes on trying until it is adrift; one that died is made anew, and knows by its book."""
        living = {node["NodeID"] for node in await living_nodes()}
        nodes = self._cut_nodes | {name.removeprefix(PREFIX) for name in await self._names()}
        await asyncio.gather(*map(self._restore, nodes & living))

    async def run(self) -> None:
        """Hold the keepers, those of an earlier fleet too, for as long as this one lives; a fleet
        that cuts nothing does so until there is none, and then asks Ray for none any more."""
        while True:
            if not (await self._hold_all() or self._cuts):
                return
            await asyncio.sleep(self._hold_s)

    async def _hold_all(self) -> bool:
        """Whether there may be one."""
        try:
            names = await self._names()
            for name in names:
                with contextlib.suppress(NotReady):
                    keeper = await ActorAddress(name, self._namespace).look_up()
                    keeper.hold.remote()
        except Exception:  # the loop outlives what it finds: the next word may get there
            logger.exception("the keepers of MIG layouts are out of reach")
            return True
        return bool(names)

    async def _cut(self, recut: Recut) -> str:
        here = [one.pid for one in self._stand.values() if one.node == recut.node]
        self._cut_nodes.add(recut.node)
        try:
            async with asyncio.timeout(CUT_S):
                keeper = await self._keeper(recut.node)
                await keeper.recut.remote(recut, tuple(here))
        except (RayError, TimeoutError) as error:
            logger.warning("%s of %s is not cut: %s", recut.gpu, recut.node, in_words(error))
            return in_words(error)
        return ""

    async def _restore(self, node: str) -> None:
        try:
            async with asyncio.timeout(CUT_S):
                keeper = await self._keeper(node)
                problems = await keeper.restore.remote()
        except (RayError, TimeoutError) as error:
            problems = (in_words(error),)
        for problem in problems:
            logger.error("a MIG layout is not restored: %s", problem)
        if not problems:
            ray.kill(keeper)

    async def _keeper(self, node: str) -> Any:
        """Who bears the name and lives, else a new one. Ray keeps the name of a dead one until it
        is killed too."""
        with contextlib.suppress(NotReady):
            keeper = await ActorAddress(PREFIX + node, self._namespace).look_up()
            try:
                await keeper.hold.remote()
            except ActorDiedError as error:
                logger.warning("the keeper of %s is dead: %s", node, error)
                ray.kill(keeper)
            else:
                return keeper
        return await asyncio.to_thread(self._new_keeper, node)

    def _new_keeper(self, node: str) -> Any:
        """Another fleet may be quicker. Asks Ray for it, and may block."""
        actor: Any = ray.remote(MigKeeper).options(
            name=PREFIX + node,
            namespace=self._namespace,
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        return actor.remote(self._slack_s, self._namespace)

    async def _names(self) -> list[str]:
        return [name for name in await names_in(self._namespace) if name.startswith(PREFIX)]
