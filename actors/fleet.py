"""Wanted shards become living actors, and stay so: the owner of the scheduler and of every shard.

One loop compares what is wanted with what there is (`lifecycle.decide`); each life of an actor is
one task that tells its story (`lives.live`). The actors outlive the process that holds this object
for `orphan_s`, within which a successor finds them (`adoption`) and goes on; so nothing can leak.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

import ray
from ray.exceptions import RayError

from actors.adoption import Found, find_living
from actors.autoscaler import ShardScaler, ask
from actors.carving import Carver
from actors.creation import create_scheduler, create_shard, new_incarnation
from actors.evacuation import Evacuation
from actors.fleet_status import FleetStatus, status_of
from actors.fleet_timing import FleetTiming, timing_of
from actors.identity import stamp_of
from actors.lifecycle import Create, Event, Member, State, Stop, Wanted, advance, decide
from actors.lives import Life, bury, hand_back, in_words, live
from actors.naming import SCHEDULER
from actors.placing import Places
from actors.shard_spec import ShardSpec
from actors.sharing import Machines, Share, fair_share, machines
from actors.slicing import Slices
from actors.tasks import cancel_all, first_to_end
from cluster.config import ModelConfig, ShoalConfig
from cluster.errors import ModelNotFound
from cluster.messages import ShardRef

logger = logging.getLogger(__name__)


class Fleet:
    """Owns the application's actors in `namespace`. Everything happens on one event loop."""

    def __init__(
        self, config: ShoalConfig, namespace: str, timing: FleetTiming | None = None
    ) -> None:
        self._config = config
        self._namespace = namespace
        self._timing = timing or timing_of(config.scheduling)
        self._models = {model.name: model for model in config.models}
        self._wanted = {model.name: model.first_shards for model in config.models}
        self._stamps = {name: self._stamp(name) for name in (None, *self._models)}
        self._members: dict[str, Member] = {}
        self._lives: dict[str, Life] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._burying: set[str] = set()
        self._released = False
        self._ending = asyncio.Event()
        self._changed = asyncio.Event()
        self._looked_at = time.monotonic()
        self._carver = Carver(namespace, self._lives, config.fleet.orphan_s)
        carve = self._carver.carve if config.fleet.manage_mig else None
        self._places = Places(config.models, slices=Slices(config.models, carve))
        self._scaler = ShardScaler(config.models, partial(ask, self._lives), self.scale)
        self._loops: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to look for what there is and to create what is missing; returns at once."""
        self._loops = [asyncio.get_running_loop().create_task(self._run())]

    def scale(self, shards: Mapping[str, int]) -> None:
        """Want so many shards of each model named; others stay as they are.

        Raises ModelNotFound, having changed nothing, for a model that is not configured.
        """
        unknown = sorted(set(shards) - set(self._models))
        if unknown:
            raise ModelNotFound(f"{unknown} not configured; there are {sorted(self._models)}")
        self._wanted |= shards
        self._share_anew()
        self._changed.set()

    def status(self) -> FleetStatus:
        every = self._members.values()
        return status_of(self._wanted, every, self._looked_at, time.monotonic())

    async def stop(self) -> None:
        """End every actor and wait until all are dead. The fleet cannot be started again."""
        self._ending.set()
        await cancel_all(*self._loops)
        for name in self._tasks:
            self._cut_short(name)
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._carver.restore()

    async def let_go(self) -> None:
        """Leave every actor to a successor, as it is. The fleet cannot be started again."""
        self._released = True
        await cancel_all(*self._loops)
        await cancel_all(*self._tasks.values())

    async def _run(self) -> None:
        await self._adopt_all()
        self._scaler.resume(Counter(m.model for m in self._members.values() if m.model))
        evacuation = Evacuation(self._lives, self._places, self._outdate)
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
        for action in decide(self._wishes(), self._members, now, self._config.fleet.surge):
            match action:
                case Create():
                    self._create(action)
                case Stop(name):
                    self._stop(name)

    def _wishes(self) -> list[Wanted]:
        """The scheduler first, then the shards in the order of the configuration."""
        return [
            Wanted(None, 1, self._stamps[None]),
            *(Wanted(model, count, self._stamps[model]) for model, count in self._wanted.items()),
        ]

    async def _adopt_all(self) -> None:
        """What is leaving already goes on doing so."""
        every = await find_living(self._namespace, self._timing.patience.ping_s)
        for found in every:
            self._adopt(found)
        await asyncio.sleep(0)  # their tasks begin, and can be cut short
        for found in every:
            if found.identity.leaving:
                self._stop(found.name)

    def _adopt(self, found: Found) -> None:
        shard, stamp, now = found.life.shard, found.identity.stamp, time.monotonic()
        state = State.READY if found.life.loaded else State.PENDING
        model = shard.model if shard else None
        life = found.life
        if model in self._models:
            life = replace(life, load_timeout_s=self._models[model].load_timeout_s)
        self._members[found.name] = Member(found.name, model, found.index, state, now, stamp=stamp)
        if model is not None:
            identity = found.identity
            self._places.note(model, found.index, identity.node, identity.devices)
        self._begin(found.name, partial(_as_found, life))

    def _create(self, wish: Create) -> None:
        now = time.monotonic()
        if wish.name in self._members:
            self._move(wish.name, Event.CREATED)
        else:
            self._members[wish.name] = Member(
                wish.name, wish.model, wish.index, State.PENDING, now, stamp=wish.stamp
            )
        self._begin(wish.name, partial(self._new_life, wish))

    def _begin(self, name: str, life: Callable[[], Awaitable[Life]]) -> None:
        self._tasks[name] = asyncio.create_task(self._live(name, life))

    def _stop(self, name: str) -> None:
        if self._members[name].state is State.DEAD:
            del self._members[name]
            return
        self._move(name, Event.STOP)
        self._cut_short(name)

    def _cut_short(self, name: str) -> None:
        """End a life. A burial goes on: cut short, it would leave the actor, and never be LOST."""
        if name not in self._burying:
            self._tasks[name].cancel()

    async def _live(self, name: str, begin: Callable[[], Awaitable[Life]]) -> None:
        """One life; whatever ends it, the actor is dead and its name free before the next."""
        reason, fault = "it is not wanted any more", None
        try:
            life = self._lives[name] = await begin()
            await live(life, self._timing.patience, partial(self._hear, name))
        except Exception as error:  # noqa: BLE001 - the fleet outlives all
            reason, fault = in_words(error), error
            logger.warning("%s is lost: %s", name, reason)
        except asyncio.CancelledError:
            if self._released:
                raise
        self._burying.add(name)
        member = self._members[name]
        try:
            await self._end(name, fault)
        except Exception:  # a member must be LOST whatever its burial raised, or it never returns
            logger.exception("%s could not be buried in order", name)
        if member.model is not None:
            self._places.leave(member.model, member.index)
        self._burying.remove(name)
        self._move(name, Event.LOST, reason)

    async def _new_life(self, wish: Create) -> Life:
        orphan_s = self._config.fleet.orphan_s
        if wish.model is None:
            return create_scheduler(self._config.scheduling, self._namespace, wish.stamp, orphan_s)
        model = self._models[wish.model]
        share = self._share(model, machines(ray.nodes()))
        tell = partial(self._hear, wish.name)
        site = await self._places.find(model.name, wish.index, share, tell)
        spec = ShardSpec(
            ShardRef(wish.name, model.name, wish.name, new_incarnation()),
            model,
            self._namespace,
            share.threads,
            share.gpus,
            self._timing.shards,
            stamp=wish.stamp,
            tether_s=orphan_s,
            devices=site.devices,
        )
        return create_shard(spec, share.cpus, site.node)

    def _stamp(self, model: str | None) -> str:
        """Of what a shard of `model`, or the scheduler, is made from: all that a living one cannot
        take over. How many there are is no part of it, nor how long one may load."""
        if model is None:
            return stamp_of(self._config.scheduling)
        fixed = self._models[model].model_copy(
            update={"shards": 0, "autoscaling": None, "load_timeout_s": 0}
        )
        return stamp_of(fixed, self._timing.shards)

    async def _end(self, name: str, fault: Exception | None) -> None:
        """Let its requests go on elsewhere, unless all ends, and bury it. The scheduler is told: of
        one that failed before, so that no new lease goes there, and of each after, since it may
        have reported in between."""
        life = self._lives.pop(name, None)
        if life is not None:
            if fault is not None:
                await self._say_gone(life)
            if fault is not None or self._members[name].state is State.STOPPING:
                limit_s = 0.0 if fault else self._config.fleet.drain_s
                hands_back = hand_back(life, fault, limit_s, self._timing.patience)
                await first_to_end(hands_back, self._all_ends())
            await bury(life, self._timing.patience)
            await self._say_gone(life)

    async def _all_ends(self) -> None:
        await self._ending.wait()

    async def _say_gone(self, life: Life) -> None:
        scheduler = self._lives.get(SCHEDULER)
        if life.shard is None or scheduler is None:
            return
        with contextlib.suppress(RayError, TimeoutError):
            async with asyncio.timeout(1.0):
                await scheduler.handle.shard_gone.remote(life.shard)

    def _outdate(self, name: str) -> None:
        """Have it replaced, as if it were made from another configuration."""
        self._members[name] = replace(self._members[name], stamp="")
        self._changed.set()

    def _share(self, model: ModelConfig, cluster: Machines) -> Share:
        return fair_share(model.resources, sum(self._wanted.values()), cluster)

    def _share_anew(self) -> None:
        """Tell the living how many threads are theirs now; who is born later is told then."""
        cluster = machines(ray.nodes())
        for life in self._lives.values():
            if life.shard is not None and life.shard.model in self._models:
                share = self._share(self._models[life.shard.model], cluster)
                life.handle.use_threads.remote(share.threads)

    def _hear(self, name: str, event: Event | None, message: str) -> None:
        if event is None:
            self._members[name] = replace(self._members[name], message=message)
        else:
            self._move(name, event, message)

    def _move(self, name: str, event: Event, message: str = "") -> None:
        """The one door: every change of a member's state passes here."""
        member = self._members[name]
        if member.state is State.STOPPING and event is Event.LOST:
            del self._members[name]
        else:
            now = time.monotonic()
            self._members[name] = advance(member, event, now, message, self._timing.backoff)
        self._changed.set()


async def _as_found(life: Life) -> Life:
    return life
