"""Birth certificates: how Ray is asked for a scheduler and for a shard."""

from __future__ import annotations

import math
import time
from typing import Any
from uuid import uuid4

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.lives import Life
from actors.naming import SCHEDULER
from actors.scheduler import BatchScheduler
from actors.shard import KVShard
from actors.shard_spec import ShardSpec
from cluster.scheduling_config import SchedulingConfig

MAX_CONCURRENCY = 10_000
"""Calls at once: every long poll, and room for control calls beside them."""

ON_HEAD = {"node:__internal_head__": 0.001}
"""Ray resources of what the cluster cannot do without: the head is lost only with the cluster."""


def create_scheduler(
    config: SchedulingConfig, namespace: str, stamp: str = "", tether_s: float = math.inf
) -> Life:
    """A new life of the scheduler; its epoch, from the wall clock, is larger than any before."""
    options = {**_options(SCHEDULER, namespace, 0, tether_s), "resources": ON_HEAD}
    actor: Any = ray.remote(BatchScheduler).options(**options)
    handle = actor.remote(config, time.time_ns(), stamp=stamp, tether_s=tether_s)
    return Life(handle, asked={})


def create_shard(spec: ShardSpec, cpus: float, node: str | None = None) -> Life:
    """A new life of a shard, not loaded yet; on that node of Ray's if it can be."""
    options = shard_options(spec, cpus, node)
    asked = {"CPU": cpus, "GPU": spec.gpus, **options["resources"]}
    actor: Any = ray.remote(KVShard).options(**options)
    return Life(actor.remote(spec), asked, spec.ref, spec.model.load_timeout_s)


def new_incarnation() -> str:
    return uuid4().hex


def shard_options(spec: ShardSpec, cpus: float, node: str | None = None) -> dict[str, Any]:
    """How Ray runs a shard: on `node`, and elsewhere only where that is dead or full; nowhere else
    where it was given devices of that node."""
    where: Any = "SPREAD"
    if node is not None:
        free = not spec.devices
        where = NodeAffinitySchedulingStrategy(node, soft=free, _spill_on_unavailable=free)
    custom = dict(spec.model.resources.custom)
    return {
        **_options(spec.ref.actor, spec.namespace, cpus, spec.tether_s),
        "num_gpus": spec.gpus,
        # Whoever asks for nothing at all, Ray puts on any node, wherever it was to go.
        "memory": None if cpus or spec.gpus or custom else 1,
        "resources": custom,
        "scheduling_strategy": where,
    }


def _options(name: str, namespace: str, cpus: float, tether_s: float) -> dict[str, Any]:
    """Of every actor: named, never restarted in place, since what it knows dies with it. One with
    a tether outlives who made it; without one, Ray ends both together."""
    return {
        "lifetime": "detached" if math.isfinite(tether_s) else None,
        "name": name,
        "namespace": namespace,
        "num_cpus": cpus,
        "max_restarts": 0,
        "max_concurrency": MAX_CONCURRENCY,
        "enable_task_events": False,
    }
