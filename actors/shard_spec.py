"""What a shard is born with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from actors.reporting import ReportTiming
from cluster.config import ModelConfig
from cluster.messages import ShardRef


@dataclass(frozen=True, slots=True)
class ShardTiming:
    """Seconds, but for `max_backlog`: deltas a door may leave unread before it is dropped."""

    door_timeout_s: float = 10.0
    settle_s: float = 5.0
    poll_wait_s: float = 2.0
    last_words_s: float = 1.0
    audit_s: float = 30.0
    device_s: float = 5.0
    max_backlog: int = 65_536
    reports: ReportTiming = field(default_factory=ReportTiming)


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """What a shard is born with. `threads`: torch's, of each rank; `gpus`: those that Ray is asked
    for, of all ranks together.

    `devices`: MIG slices of its node that the fleet gave it, by UUID; with none and no `gpus` it
    computes on the CPU.
    `claims`: the books, of its machine, in which it claims CPUs. `stamp`: what it is made from.
    Without its owner and without a scheduler it ends after `tether_s` seconds.
    """

    ref: ShardRef
    model: ModelConfig
    namespace: str
    threads: int
    gpus: float = 0.0
    timing: ShardTiming = field(default_factory=ShardTiming)
    claims: str = "shoal"
    stamp: str = ""
    tether_s: float = math.inf
    devices: tuple[str, ...] = ()

    @property
    def on_gpu(self) -> bool:
        return bool(self.gpus or self.devices)
