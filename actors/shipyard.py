"""How the fleet's actors are made: from what, with which share of a machine, and where."""

from __future__ import annotations

from collections.abc import Iterable

import ray

from actors.creation import create_scheduler, create_shard, new_incarnation
from actors.fleet_timing import FleetTiming
from actors.identity import stamp_of
from actors.lives import Life, Listener
from actors.placing import Places
from actors.shard_spec import ShardSpec
from actors.sharing import Machines, Share, fair_share, machines
from actors.succession import Create
from cluster.config import ModelConfig, ShoalConfig
from cluster.messages import ShardRef


class Shipyard:
    """Makes schedulers and shards as the configuration says.

    `shards`, wherever it is asked for, is how many of them share the cluster.
    """

    def __init__(
        self, config: ShoalConfig, namespace: str, timing: FleetTiming, places: Places
    ) -> None:
        self._config = config
        self._namespace = namespace
        self._timing = timing
        self._places = places
        self._models = {model.name: model for model in config.models}
        self._stamps = {name: self._stamp_of(name) for name in (None, *self._models)}

    def stamp(self, model: str | None) -> str:
        """What a shard of `model`, or the scheduler, bears that is up to date; nothing of a model
        that is not configured is."""
        return self._stamps.get(model, "")

    def load_timeout_s(self, model: str | None) -> float:
        return self._models[model].load_timeout_s if model in self._models else 0.0

    async def build(self, wish: Create, shards: int, tell: Listener) -> Life:
        """A new life, as soon as it is known where; `tell` hears what keeps it waiting. Raises what
        Ray has against it."""
        orphan_s = self._config.fleet.orphan_s
        if wish.model is None:
            return create_scheduler(self._config.scheduling, self._namespace, wish.stamp, orphan_s)
        model = self._models[wish.model]
        share = self._share(model, shards, machines(ray.nodes()))
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

    def share_anew(self, lives: Iterable[Life], shards: int) -> None:
        """Tell the living how many threads are theirs now; who is born later is told then."""
        cluster = machines(ray.nodes())
        for life in lives:
            if life.shard is not None and life.shard.model in self._models:
                share = self._share(self._models[life.shard.model], shards, cluster)
                life.handle.use_threads.remote(share.threads)

    def _share(self, model: ModelConfig, shards: int, cluster: Machines) -> Share:
        return fair_share(model.resources, shards, cluster, model.tensor_parallel)

    def _stamp_of(self, model: str | None) -> str:
        """Of all that a living one cannot take over. How many there are is no part of it, nor how
        long one may load."""
        if model is None:
            return stamp_of(self._config.scheduling)
        fixed = self._models[model].model_copy(
            update={"shards": 0, "autoscaling": None, "load_timeout_s": 0}
        )
        return stamp_of(fixed, self._timing.shards)
