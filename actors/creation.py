"""Birth certificates: how Ray is asked for a scheduler and for a shard."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

import ray

from actors.lives import Life
from actors.naming import SCHEDULER
from actors.scheduler import BatchScheduler
from actors.shard import KVShard, ShardSpec
from cluster.scheduling_config import SchedulingConfig

MAX_CONCURRENCY = 10_000
"""Calls at once: every long poll, and room for control calls beside them."""


def create_scheduler(config: SchedulingConfig, namespace: str) -> Life:
    """A new life of the scheduler; its epoch, from the wall clock, is larger than any before."""
    actor: Any = ray.remote(BatchScheduler).options(**_options(SCHEDULER, namespace, cpus=0))
    return Life(actor.remote(config, time.time_ns()), asked={})


def create_shard(spec: ShardSpec, cpus: float) -> Life:
    """A new life of a shard, not loaded yet."""
    options = shard_options(spec, cpus)
    asked = {"CPU": cpus, "GPU": spec.gpus, **options["resources"]}
    actor: Any = ray.remote(KVShard).options(**options)
    return Life(actor.remote(spec), asked, spec.ref, spec.model.load_timeout_s)


def new_incarnation() -> str:
    return uuid4().hex


def shard_options(spec: ShardSpec, cpus: float) -> dict[str, Any]:
    """How Ray runs a shard, spread over the nodes there are."""
    return {
        **_options(spec.ref.actor, spec.namespace, cpus),
        "num_gpus": spec.gpus,
        "resources": dict(spec.model.resources.custom),
        "scheduling_strategy": "SPREAD",
    }


def _options(name: str, namespace: str, cpus: float) -> dict[str, Any]:
    """Of every actor: named, never restarted in place, since what it knows dies with it."""
    return {
        "name": name,
        "namespace": namespace,
        "num_cpus": cpus,
        "max_restarts": 0,
        "max_concurrency": MAX_CONCURRENCY,
        "enable_task_events": False,
    }
