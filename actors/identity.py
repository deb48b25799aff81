"""What an actor tells the fleet: what it is, and that it lives; and the stamp of the up to date."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import ray

from cluster.messages import ShardRef

STAMP_LEN = 16


@dataclass(frozen=True, slots=True)
class Identity:
    """What the actor was made from (`stamp`), where it is, and, of a shard, which it is and how far
    it is. `pid` is the process's number on its node; `devices` those the fleet gave it, by UUID."""

    stamp: str
    shard: ShardRef | None = None
    loaded: bool = True
    leaving: bool = False
    node: str = ""
    pid: int = 0
    devices: tuple[str, ...] = ()


def node_id() -> str:
    """Of the node that this process is on."""
    return str(ray.get_runtime_context().get_node_id())


@dataclass(frozen=True, slots=True)
class Pulse:
    """A sign of life: `turns` of the engine's loop so far, and whether one is under way."""

    turns: int
    busy: bool


def stamp_of(*made_from: Any) -> str:
    """The same for actors that are made from the same configuration by the same code.

    The code is what the application's runtime environment names: its `working_dir` is called by
    what is in it. An image that changes replaces every process anyway.
    """
    code = ray.get_runtime_context().get_runtime_env_string()
    return sha256(repr((code, *made_from)).encode()).hexdigest()[:STAMP_LEN]
