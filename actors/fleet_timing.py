"""How long the fleet waits for what, and how that follows from the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from actors.lifecycle import Backoff
from actors.lives import Patience
from actors.reporting import ReportTiming
from actors.shard_spec import ShardTiming
from cluster.scheduling_config import SchedulingConfig


@dataclass(frozen=True, slots=True)
class FleetTiming:
    """How long the fleet waits for what; `tick_s` is the longest time between two looks."""

    tick_s: float = 0.5
    backoff: Backoff = field(default_factory=Backoff)
    patience: Patience = field(default_factory=Patience)
    shards: ShardTiming = field(default_factory=ShardTiming)


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
        audit_s=config.audit_s,
        reports=ReportTiming(heartbeat_s=config.heartbeat_s),
    )
    return FleetTiming(patience=patience, shards=shards)
