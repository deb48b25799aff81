"""Wanted shards become living actors, and stay so: the owner of the scheduler and of every shard.

One loop compares what is wanted with what there is (`lifecycle.decide`); each life of an actor is
one task that tells its story (`lives.live`). The actors are not detached: they end with the
process that holds this object, so nothing can leak.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import ray
from ray.exceptions import RayError

from actors.autoscaler import Demand, ShardScaler
from actors.creation import create_scheduler, create_shard, new_incarnation
from actors.lifecycle import Backoff, Create, Event, Member, State, Stop, advance, decide
from actors.lives import Life, Patience, bury, hand_back, in_words, live
from actors.naming import SCHEDULER, shard_name
from actors.placing import Places
from actors.reporting import ReportTiming
from actors.shard import ShardSpec, ShardTiming
from actors.sharing import Machines, Share, fair_share, machines
from actors.tasks import cancel_all
from cluster.config import ModelConfig, ShoalConfig
from cluster.errors import ModelNotFound, NotReady
from cluster.messages import ShardRef
from cluster.scheduling_config import SchedulingConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FleetTiming:
    """How long the fleet waits for what; `tick_s` is the longest time between two looks."""

    tick_s: float = 0.5
    backoff: Backoff = field(default_factory=Backoff)
    patience: Patience = field(default_factory=Patience)
    shards: ShardTiming = field(default_factory=ShardTiming)


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One actor: `for_s` seconds in its state; `message`: what last went wrong, until READY."""

    name: str
    model: str | None
    state: State
    for_s: float
    losses: int
    message: str


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """The fleet at one moment. `tick_age_s`: seconds since the loop last looked."""

    wanted: Mapping[str, int]
    members: tuple[MemberStatus, ...]
    tick_age_s: float


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
        self._members: dict[str, Member] = {}
        self._lives: dict[str, Life] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._burying: set[str] = set()
        self._changed = asyncio.Event()
        self._looked_at = time.monotonic()
        self._places = Places(config.models)
        self._scaler = ShardScaler(config.models, self._demand, self.scale)
        self._loops: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to create what is wanted; returns at once."""
        loop = asyncio.get_running_loop()
        self._loops = [loop.create_task(self._run()), loop.create_task(self._scaler.run())]

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
        now = time.monotonic()
        return FleetStatus(
            wanted=dict(self._wanted),
            members=tuple(
                MemberStatus(m.name, m.model, m.state, now - m.since, m.losses, m.message)
                for m in self._members.values()
            ),
            tick_age_s=now - self._looked_at,
        )

    async def stop(self) -> None:
        """End every actor and wait until all are dead. The fleet cannot be started again."""
        await cancel_all(*self._loops)
        for name in self._tasks:
            self._cut_short(name)
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._reconcile()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timing.tick_s):
                    await self._changed.wait()
            self._changed.clear()

    def _reconcile(self) -> None:
        self._looked_at = time.monotonic()
        for action in decide(self._wishes(), self._members, self._looked_at):
            match action:
                case Create():
                    self._create(action)
                case Stop(name):
                    self._stop(name)

    def _wishes(self) -> list[Create]:
        """The scheduler first, then the shards in the order of the configuration."""
        return [
            Create(SCHEDULER, None, 0),
            *(
                Create(shard_name(model, index), model, index)
                for model, count in self._wanted.items()
                for index in range(count)
            ),
        ]

    def _create(self, wish: Create) -> None:
        now = time.monotonic()
        if wish.name in self._members:
            self._move(wish.name, Event.CREATED)
        else:
            self._members[wish.name] = Member(wish.name, wish.model, wish.index, State.PENDING, now)
        self._tasks[wish.name] = asyncio.create_task(self._live(wish))

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

    async def _live(self, wish: Create) -> None:
        """One life; whatever ends it, the actor is dead and its name free before the next."""
        reason, fault = "it is not wanted any more", None
        try:
            life = self._lives[wish.name] = await self._begin(wish)
            await live(life, self._timing.patience, partial(self._hear, wish.name))
        except Exception as error:  # noqa: BLE001 - the fleet outlives all
            reason, fault = in_words(error), error
            logger.warning("%s is lost: %s", wish.name, reason)
        finally:
            self._burying.add(wish.name)
            try:
                await self._end(wish.name, fault)
            except Exception:
                logger.exception("%s could not be buried in order", wish.name)
            self._burying.remove(wish.name)
            self._move(wish.name, Event.LOST, reason)

    async def _begin(self, wish: Create) -> Life:
        if wish.model is None:
            return create_scheduler(self._config.scheduling, self._namespace)
        model = self._models[wish.model]
        share = self._share(model, machines(ray.nodes()))
        node = await self._places.find(model.name, wish.index, share)
        ref = ShardRef(wish.name, model.name, wish.name, new_incarnation())
        spec = ShardSpec(
            ref, model, self._namespace, share.threads, share.gpus, self._timing.shards
        )
        return create_shard(spec, share.cpus, node)

    async def _end(self, name: str, fault: Exception | None) -> None:
        """Bury, and tell the scheduler: before, so that no new lease goes to the shard, and after,
        since it may have reported in between. In between its doors are told, unless all ends."""
        life, member = self._lives.pop(name, None), self._members[name]
        if member.model is not None:
            self._places.leave(member.model, member.index)
        if life is not None:
            await self._say_gone(life)
            if fault is not None or self._members[name].state is State.STOPPING:
                await hand_back(life, fault, self._timing.patience)
            await bury(life, self._timing.patience)
            await self._say_gone(life)

    async def _say_gone(self, life: Life) -> None:
        scheduler = self._lives.get(SCHEDULER)
        if life.shard is None or scheduler is None:
            return
        with contextlib.suppress(RayError, TimeoutError):
            async with asyncio.timeout(1.0):
                await scheduler.handle.shard_gone.remote(life.shard)

    async def _demand(self) -> Demand:
        """How the models do; raises NotReady where no scheduler lives that could tell."""
        scheduler = self._lives.get(SCHEDULER)
        if scheduler is None:
            raise NotReady("no scheduler lives", retry_after_s=1.0)
        demand: Demand = await scheduler.handle.demand.remote()
        return demand

    def _share(self, model: ModelConfig, cluster: Machines) -> Share:
        return fair_share(model.resources, sum(self._wanted.values()), cluster)

    def _share_anew(self) -> None:
        """Tell the living how many threads are theirs now; who is born later is told then."""
        cluster = machines(ray.nodes())
        for life in self._lives.values():
            if life.shard is not None:
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


def timing_of(config: SchedulingConfig) -> FleetTiming:
    """A shard that gives no sign for `shard_timeout_s` is lost to the fleet, to the scheduler and
    to the doors alike, so a poll has to be answered well within it."""
    patience = Patience(
        ping_every_s=config.heartbeat_s,
        ping_s=config.shard_timeout_s,
        step_s=config.step_timeout_s,
    )
    shards = ShardTiming(
        poll_wait_s=min(ShardTiming().poll_wait_s, config.shard_timeout_s / 4),
        reports=ReportTiming(heartbeat_s=config.heartbeat_s),
    )
    return FleetTiming(patience=patience, shards=shards)
