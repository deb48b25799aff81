"""The lives of the fleet's actors on paper: states, legal moves, and what to do next.

Pure: the clock is passed in, in seconds, and nothing here knows Ray.

    PENDING --placed--> LOADING --loaded--> READY    (PENDING --cramped--> PENDING)
       |                   |                  |
       +-------lost--------+-------lost-------+--> DEAD --created--> PENDING
       +-------------------+------------------+----stop----> STOPPING --lost--> removed
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count, islice

from actors.naming import SCHEDULER, shard_name
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
    """Seconds before a lost actor is created again: none, then doubling, until one is steady."""

    first_s: float = 1.0
    longest_s: float = 60.0
    steady_s: float = 10.0

    def delay(self, losses: int) -> float:
        return 0.0 if losses <= 1 else min(self.first_s * 2.0 ** (losses - 2), self.longest_s)


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
    steady = member.state is State.READY and now - member.since >= backoff.steady_s
    losses = 1 if steady else member.losses + 1
    return replace(moved, losses=losses, retry_at=now + backoff.delay(losses))


@dataclass(frozen=True, slots=True)
class Wanted:
    """So many actors made as `stamp` says: shards of `model`, or, where that is None, schedulers,
    of which there is one."""

    model: str | None
    count: int
    stamp: str


@dataclass(frozen=True, slots=True)
class Create:
    """Begin a new life of this member."""

    model: str | None
    index: int
    stamp: str

    @property
    def name(self) -> str:
        return SCHEDULER if self.model is None else shard_name(self.model, self.index)


@dataclass(frozen=True, slots=True)
class Stop:
    """End this member: it is not wanted any more, or not as it is."""

    name: str


Action = Create | Stop


def decide(
    wanted: Iterable[Wanted], members: Mapping[str, Member], now: float, surge: int
) -> tuple[Action, ...]:
    """What brings the members closer to what is wanted: first who has to go, then who is missing.

    Members of another stamp are outdated and replaced while they serve: up to `surge` new ones
    begin beside them, and one old goes for each new one that is READY. Where there is no room for
    a new one beside them, or no surge is allowed, one old goes first. A new one that never gets
    READY ends no old one. A name that is still STOPPING is not taken.
    """
    wishes = tuple(wanted)
    models = {wish.model for wish in wishes}
    strangers = [m for m in members.values() if m.model not in models]
    groups = [[m for m in members.values() if m.model == wish.model] for wish in wishes]
    each = [_of_group(wish, group, now, surge) for wish, group in zip(wishes, groups, strict=True)]
    stops = (*_stop(strangers), *(stop for one in each for stop in one if isinstance(stop, Stop)))
    return (*stops, *(new for one in each for new in one if isinstance(new, Create)))


def _of_group(wish: Wanted, group: Sequence[Member], now: float, surge: int) -> list[Action]:
    """The same for the members that one wish is about; a scheduler has no place for a second."""
    surge = surge if wish.model is not None else 0
    staying = sorted(filter(_stays, group), key=lambda m: (m.state is not State.READY, m.index))
    current = [m for m in staying if m.stamp == wish.stamp]
    old = [m for m in staying if m.stamp != wish.stamp]
    kept, surplus = current[: wish.count], current[wish.count :]
    missing = wish.count - len(kept)
    if old:
        missing = min(missing, wish.count + surge - len(group) + len(surplus))
    again = [m.index for m in kept if m.state is State.DEAD and now >= m.retry_at]
    fresh = islice(_free_indexes(wish, group), max(missing, 0))
    creates = [Create(wish.model, index, wish.stamp) for index in (*again, *fresh)]
    return [*_stop(surplus), *_stop(_replaced(wish, kept, old, group, surge)), *creates]


def _replaced(
    wish: Wanted, kept: list[Member], old: list[Member], group: Sequence[Member], surge: int
) -> list[Member]:
    """Which of the old have to go now: those that serve nobody, and what can be spared."""
    idle = [m for m in old if m.state is not State.READY]
    serving = [m for m in old if m.state is State.READY]
    ready = sum(m.state is State.READY for m in kept) + len(serving)
    if ready <= wish.count:
        underway = [m for m in group if m.state in (State.LOADING, State.STOPPING)]
        cramped = any(m.cramped for m in kept) and _place_was_taken(wish, kept, serving)
        blocked = cramped or (surge == 0 and ready == wish.count)
        return idle + (serving[:1] if blocked and not underway else [])
    return idle + serving[: ready - wish.count]


def _place_was_taken(wish: Wanted, kept: list[Member], serving: list[Member]) -> bool:
    """Whether each place that an old one left has a new one in it: what fits nowhere at all must
    not end one after the other."""
    placed = sum(m.state in (State.LOADING, State.READY) for m in kept)
    return wish.count - len(serving) <= placed


def _stop(members: Iterable[Member]) -> list[Stop]:
    return [Stop(member.name) for member in members if _stays(member)]


def _free_indexes(wish: Wanted, group: Sequence[Member]) -> Iterator[int]:
    """There is one name for a scheduler, and any number for shards."""
    used = {member.index for member in group}
    names = range(1) if wish.model is None else count()
    return (index for index in names if index not in used)


def _stays(member: Member) -> bool:
    return member.state is not State.STOPPING
