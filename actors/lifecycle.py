"""The lives of the fleet's actors on paper: states and legal moves.

Pure: the clock is passed in, in seconds, and nothing here knows Ray.

    PENDING --placed--> LOADING --loaded--> READY    (PENDING --cramped--> PENDING)
       |                   |                  |
       +-------lost--------+-------lost-------+--> DEAD --created--> PENDING
       +-------------------+------------------+----stop----> STOPPING --lost--> removed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from cluster.errors import IllegalTransition


class State(StrEnum):
    """Where an actor stands. PENDING: asked for, but no node has begun to run it."""

    PENDING = "pending"
    LOADING = "loading"
    READY = "ready"
    DEAD = "dead"
    STOPPING = "stopping"


class Event(StrEnum):
    """What happens to an actor. CRAMPED: for a while no node has had room for it."""

    CRAMPED = "cramped"
    PLACED = "placed"
    LOADED = "loaded"
    LOST = "lost"
    CREATED = "created"
    STOP = "stop"


TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.PENDING, Event.CRAMPED): State.PENDING,
    (State.PENDING, Event.PLACED): State.LOADING,
    (State.LOADING, Event.LOADED): State.READY,
    (State.PENDING, Event.LOST): State.DEAD,
    (State.LOADING, Event.LOST): State.DEAD,
    (State.READY, Event.LOST): State.DEAD,
    (State.DEAD, Event.CREATED): State.PENDING,
    (State.PENDING, Event.STOP): State.STOPPING,
    (State.LOADING, Event.STOP): State.STOPPING,
    (State.READY, Event.STOP): State.STOPPING,
}


@dataclass(frozen=True, slots=True)
class Member:
    """One actor of the fleet. `model` is None for the scheduler; `stamp` says what it is made from.

    `message` is what last went wrong, kept until the actor is READY. `losses` counts lives lost
    since one was READY for a while; `retry_at` is when the next may begin.
    """

    name: str
    model: str | None
    index: int
    state: State
    since: float
    message: str = ""
    losses: int = 0
    retry_at: float = 0.0
    stamp: str = ""
    cramped: bool = False


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds before a lost actor is created again: none, then doubling, until one is steady. One
    that had loaded has shown that it can, so the next is not put off for longer than `ready_s`."""

    first_s: float = 1.0
    longest_s: float = 60.0
    steady_s: float = 10.0
    ready_s: float = 4.0

    def delay(self, losses: int, was_ready: bool = False) -> float:
        longest_s = min(self.ready_s, self.longest_s) if was_ready else self.longest_s
        return 0.0 if losses <= 1 else min(self.first_s * 2.0 ** (losses - 2), longest_s)


def advance(member: Member, event: Event, now: float, message: str, backoff: Backoff) -> Member:
    """The member after the event. Raises IllegalTransition where the table does not allow it."""
    state = TRANSITIONS.get((member.state, event))
    if state is None:
        raise IllegalTransition(f"{member.name} is {member.state}, which allows no {event}")
    if event is Event.CRAMPED:
        return replace(member, cramped=True, message=message)
    kept = "" if event is Event.LOADED else member.message
    moved = replace(member, state=state, since=now, message=message or kept, cramped=False)
    if event is not Event.LOST:
        return moved
    was_ready = member.state is State.READY
    steady = was_ready and now - member.since >= backoff.steady_s
    losses = 1 if steady else member.losses + 1
    return replace(moved, losses=losses, retry_at=now + backoff.delay(losses, was_ready))
