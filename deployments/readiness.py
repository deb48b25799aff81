"""Whether the application would answer a request now, as the routers know it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Readiness:
    """`obstacles` say in words what keeps requests from being answered. Models that are `asleep`
    have no shard, and their next request waits for one: that is no obstacle. A tenant's own shards
    of a model are nobody else's business, and are not named there.
    """

    obstacles: tuple[str, ...] = ()
    asleep: tuple[str, ...] = ()
