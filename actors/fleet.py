"""Wanted shards become living actors, and stay so: the owner of the scheduler and of every shard.

One loop compares what is wanted with what there is (`succession`); each life of an actor is one
task that tells its story (`keeper`). The actors outlive the process that holds this object for
`orphan_s`, within which a successor finds them (`adoption`) and goes on; so nothing can leak.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from ray.exceptions import ActorAlreadyExistsError

from actors.adoption import Found, end_living, find_living, look_at
from actors.autoscaler import ShardScaler, ask
from actors.carving import Carver
from actors.evacuation import Evacuation
from actors.fleet_status import FleetStatus, status_of
from actors.fleet_timing import FleetTiming, timing_of
from actors.identity import Identity
from actors.keeper import Keeper
from actors.lifecycle import Event, Member, State, advance
from actors.lives import Leave, Life
from actors.naming import ActorAddress, shard_name
from actors.placing import Places
from actors.shipyard import Shipyard
from actors.slicing import Slices
from actors.succession import Create, Stop, Succession, Wanted, left_wanted
from actors.tasks import cancel_all
from cluster.config import ShoalConfig
from cluster.errors import ModelNotFound, ShardLost


class Fleet:
    """Owns the application's actors in `namespace`. Everything happens on one event loop."""

    def __init__(
        self, config: ShoalConfig, namespace: str, timing: FleetTiming | None = None
    ) -> None:
        self._config = config.fleet
        self._namespace = namespace
        self._timing = timing or timing_of(config.scheduling)
        self._looked_at = time.monotonic() + self._timing.patience.ping_s  # adopting may take that
        self._wanted = {model.name: model.first_shards for model in config.models}
        self._members: dict[str, Member] = {}
        self._changed = asyncio.Event()
        leave = Leave(config.fleet.drain_s, config.fleet.hand_over_s)
        self._keeper = Keeper(namespace, self._timing.patience, leave, self._hear, self._stands)
        cuts = config.fleet.manage_mig
        self._carver = Carver(namespace, config.fleet.orphan_s, cuts)
        carve = self._carver.carve if cuts else None
        self._places = Places(config.models, slices=Slices(config.models, carve))
        self._shipyard = Shipyard(config, namespace, self._timing, self._places)
        self._succession = Succession(config.fleet.surge)
        self._scaler = ShardScaler(config.models, partial(ask, self._keeper.lives), self.scale)
        self._loops: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to look for what there is and to create what is missing; returns at once."""
        self._loops = [asyncio.get_running_loop().create_task(self._run())]

    def scale(self, shards: Mapping[str, int]) -> None:
        """Want so many shards of each model named; others stay as they are.

        Raises ModelNotFound, having changed nothing, for a model that is not configured.
        """
        unknown = sorted(set(shards) - set(self._wanted))
        if unknown:
            raise ModelNotFound(f"{unknown} not configured; there are {sorted(self._wanted)}")
        self._wanted |= shards
        self._shipyard.share_anew(self._keeper.lives.values(), self._shards())
        self._changed.set()

    def status(self) -> FleetStatus:
        every = self._members.values()
        return status_of(self._wanted, every, self._looked_at, time.monotonic())

    async def stop(self) -> None:
        """End every actor there is in the namespace, those too that were not adopted yet, and wait
        until all are dead. The fleet cannot be started again."""
        await cancel_all(*self._loops)
        await self._keeper.end_all()
        await end_living(self._namespace, self._timing.patience)
        await self._carver.restore()

    async def let_go(self) -> None:
        """Leave every actor to a successor, as it is. The fleet cannot be started again."""
        await cancel_all(*self._loops)
        await self._keeper.let_go()

    async def _run(self) -> None:
        await self._adopt_all()
        if self._members:
            self._scaler.resume(left_wanted(self._members.values(), self._config.surge))
        evacuation = Evacuation(self._places, self._outdate)
        beside = (self._scaler.run(), evacuation.run(), self._carver.run())
        self._loops += map(asyncio.get_running_loop().create_task, beside)
        while True:
            self._reconcile()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timing.tick_s):
                    await self._changed.wait()
            self._changed.clear()

    def _reconcile(self) -> None:
        self._looked_at = now = time.monotonic()
        for action in self._succession.decide(self._wishes(), self._members, now):
            match action:
                case Create():
                    self._create(action)
                case Stop(name):
                    self._stop(name)

    def _wishes(self) -> list[Wanted]:
        """The scheduler first, then the shards in the order of the configuration."""
        stamp = self._shipyard.stamp
        shards = [Wanted(model, count, stamp(model)) for model, count in self._wanted.items()]
        return [Wanted(None, 1, stamp(None)), *shards]

    def _shards(self) -> int:
        return sum(self._wanted.values())

    async def _adopt_all(self) -> None:
        """What is leaving already goes on doing so."""
        every = await find_living(self._namespace, self._timing.patience.ping_s)
        for found in every:
            self._adopt(found)
        await asyncio.sleep(0)  # their tasks begin, and can be cut short
        for found in every:
            if found.identity is not None and found.identity.leaving:
                self._stop(found.name)

    def _adopt(self, found: Found) -> None:
        """One that is mute counts as up to date, and as not begun, until it says what it is."""
        self._enter(found.name, found.model, found.index, self._shipyard.stamp(found.model))
        self._meet(found)
        self._keeper.begin(found.name, partial(self._take_over, found))

    def _meet(self, found: Found) -> None:
        """Until one that is mute says which slice it has, it may have any."""
        if found.identity is not None:
            self._recognise(found.name, found.identity)
        elif found.model is not None:
            self._places.expect(found.model, found.index)

    async def _take_over(self, found: Found) -> Life:
        """Its life, to go on with, once it says what it is. Raises ShardLost where it does not: a
        shard that loads may be too busy for as long as it is left to answer then."""
        if found.identity is None:
            patience = self._timing.patience
            limit_s = 0.0 if found.model is None else patience.load_ping_s
            again = await look_at(ActorAddress(found.name, self._namespace), limit_s)
            if again is None or again.identity is None:
                raise ShardLost(f"it did not say what it is for {patience.ping_s + limit_s:g} s")
            self._recognise(found.name, again.identity)
            return again.life(self._shipyard.load_timeout_s(found.model))
        return found.life(self._shipyard.load_timeout_s(found.model))

    def _recognise(self, name: str, identity: Identity) -> None:
        """It says what it is. First that it serves: an old one that does not is ended at once."""
        if identity.loaded:
            self._move(name, Event.PLACED)
            self._move(name, Event.LOADED)
        stamp = "" if identity.leaving else identity.stamp
        self._members[name] = replace(self._members[name], stamp=stamp)
        self._stands(name, identity)

    def _create(self, wish: Create) -> None:
        if wish.name in self._members:
            self._move(wish.name, Event.CREATED)
        else:
            self._enter(wish.name, wish.model, wish.index, wish.stamp)
        self._keeper.begin(wish.name, partial(self._build, wish))

    def _enter(self, name: str, model: str | None, index: int, stamp: str) -> None:
        now = time.monotonic()
        self._members[name] = Member(name, model, index, State.PENDING, now, stamp=stamp)

    async def _build(self, wish: Create) -> Life:
        """A new life; or that of who bears the name already, where two owners overlap."""
        try:
            return await self._shipyard.build(wish, self._shards(), partial(self._hear, wish.name))
        except ActorAlreadyExistsError:
            address = ActorAddress(wish.name, self._namespace)
            found = await look_at(address, self._timing.patience.ping_s)
            if found is None:
                raise
            self._meet(found)
            return await self._take_over(found)

    def _stop(self, name: str) -> None:
        if self._members[name].state is State.DEAD:
            del self._members[name]
            return
        self._move(name, Event.STOP)
        self._keeper.cut_short(name)

    def _outdate(self, name: str) -> None:
        """Have it replaced, as if it were made from another configuration."""
        if name in self._members:
            self._members[name] = replace(self._members[name], stamp="")
            self._changed.set()

    def _stands(self, name: str, identity: Identity) -> None:
        member = self._members[name]
        self._carver.stands(name, identity)
        if member.model is not None:
            where = (identity.node, identity.devices)
            for rival in self._places.note(member.model, member.index, *where):
                self._outdate(shard_name(*rival))

    def _hear(self, name: str, event: Event | None, message: str) -> None:
        if event is None:
            self._members[name] = replace(self._members[name], message=message)
        else:
            self._move(name, event, message)

    def _move(self, name: str, event: Event, message: str = "") -> None:
        """The one door: every change of a member's state passes here."""
        member = self._members[name]
        if event is Event.LOST:
            self._carver.leave(name)
            if member.model is not None:
                self._places.leave(member.model, member.index)
        if member.state is State.STOPPING and event is Event.LOST:
            del self._members[name]
        else:
            now = time.monotonic()
            self._members[name] = advance(member, event, now, message, self._timing.backoff)
        self._changed.set()
