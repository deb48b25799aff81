"""Whether the application would answer a request now, as the routers and the fleet know it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from actors.fleet_status import FleetStatus, MemberStatus
from actors.lifecycle import State

IN_WORDS: Mapping[State, str] = {
    State.PENDING: "has waited {for_s:.0f} s to begin",
    State.LOADING: "has been loading for {for_s:.0f} s",
    State.READY: "loaded {for_s:.0f} s ago, but the scheduler has no word of it",
    State.DEAD: "has been dead for {for_s:.0f} s",
    State.STOPPING: "has been leaving for {for_s:.0f} s",
}
"""What a shard is about whose model is not served."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """`obstacles` say in words what keeps requests from being answered.

    Models that are `asleep` have no shard, and the next request wakes them; of those that are
    `loading`, which may sleep too, the first shards are on their way. A request for either waits,
    and that is no obstacle. A tenant's own shards of a model are nobody else's business, and are
    not named there.
    """

    obstacles: tuple[str, ...] = ()
    asleep: tuple[str, ...] = ()
    loading: tuple[str, ...] = ()


def readiness_of(
    unserved: Set[str], sleepers: Set[str], stand_ins: Set[str], status: FleetStatus | None
) -> Readiness:
    """Where no living shard serves the `unserved` models; `sleepers` may be without one, and
    `stand_ins` are a tenant's own. `status` is None where the fleet does not answer.
    """
    awaited = {m for m in unserved & sleepers if status is not None and status.wanted.get(m)}
    return Readiness(
        obstacles=tuple(_in_words(model, status) for model in sorted(unserved - sleepers)),
        asleep=tuple(sorted((unserved & sleepers) - awaited - stand_ins)),
        loading=tuple(sorted(awaited - stand_ins)),
    )


def _in_words(model: str, status: FleetStatus | None) -> str:
    if status is None:
        return f"{model} has no shard, and the fleet does not answer"
    shards = [_shard_in_words(member) for member in status.members if member.model == model]
    return ", ".join(shards) or f"{model} has {status.wanted.get(model, 0)} shards wanted"


def _shard_in_words(member: MemberStatus) -> str:
    because = f" ({member.message})" if member.message else ""
    return f"{member.name} {IN_WORDS[member.state].format(for_s=member.for_s)}{because}"
