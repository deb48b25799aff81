"""How long a door waits for what on its way to a shard."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChannelTiming:
    """Seconds: life without requests; how long a shard may be out of reach, tried how often; how
    long it may leave a poll unanswered; how long it is not asked again after that; and how often
    it is told what is still wanted of it."""

    idle_s: float = 30.0
    patience_s: float = 5.0
    retry_s: float = 0.1
    silence_s: float = 10.0
    shun_s: float = 30.0
    audit_s: float = 30.0
