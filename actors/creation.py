"""Birth certificates: how the fleet asks Ray for a scheduler and for a shard."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

import ray

from actors.lives import Life
from actors.naming import SCHEDULER
from actors.scheduler import BatchScheduler
from actors.shard import KVShard, ShardSpec, shard_options
from cluster.config import SchedulingConfig


def create_scheduler(config: SchedulingConfig, namespace: str) -> Life:
    """A new life of the scheduler; its epoch, from the wall clock, is larger than any before."""
    options = {
        "name": SCHEDULER,
        "namespace": namespace,
        "num_cpus": 0,
        "max_restarts": 0,
        "max_concurrency": 10_000,
        "enable_task_events": False,
    }
    actor = ray.remote(BatchScheduler).options(**options)
    return Life(actor.remote(config, time.time_ns()), asked={})


def create_shard(spec: ShardSpec, cpus: float) -> Life:
    """A new life of a shard, not loaded yet."""
    options = shard_options(spec, cpus)
    asked = {"CPU": cpus, "GPU": spec.gpus, **options["resources"]}
    actor: Any = ray.remote(KVShard).options(**options)
    return Life(actor.remote(spec), asked, spec.ref, spec.model.load_timeout_s)


def new_incarnation() -> str:
    return uuid4().hex
