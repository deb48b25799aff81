"""Who of the fleet's actors goes and who begins next, so that there is what is wanted, and new.

Pure: the clock is passed in, in seconds, and nothing here knows Ray.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice

from actors.lifecycle import Member, State
from actors.naming import SCHEDULER, shard_name


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


class Succession:
    """Brings the members closer to what is wanted, one look at a time.

    Members of another stamp are outdated and replaced while they serve: up to `surge` new ones
    begin beside them, and one old goes for each new one that is READY. Where there is no room for
    a new one beside them, or no surge is allowed, one old goes first, and the next only once a new
    one has come to stand since. So what fits nowhere ends one old one and no more, and where there
    is room for fewer than are wanted, as many are replaced. A new one that never gets READY ends
    no old one. A name that is still STOPPING is not taken. A successor does not know who went
    first before it came, so where there is no room it may end one more.
    """

    def __init__(self, surge: int) -> None:
        self._surge = surge
        # Of each model, the new ones that stood when an old one last went first.
        self._stood: dict[str | None, frozenset[str]] = {}

    def decide(
        self, wanted: Iterable[Wanted], members: Mapping[str, Member], now: float
    ) -> tuple[Action, ...]:
        """First who has to go, then who is missing."""
        wishes = tuple(wanted)
        models = {wish.model for wish in wishes}
        every = _stop(member for member in members.values() if member.model not in models)
        for wish in wishes:
            group = [m for m in members.values() if m.model == wish.model]
            every += self._of_group(wish, group, now)
        return tuple(sorted(every, key=lambda action: isinstance(action, Create)))

    def _of_group(self, wish: Wanted, group: Sequence[Member], now: float) -> list[Action]:
        """For the members that one wish is about; a scheduler has no place for a second."""
        surge = self._surge if wish.model is not None else 0
        staying = sorted(filter(_stays, group), key=lambda m: (m.state is not State.READY, m.index))
        current = [m for m in staying if m.stamp == wish.stamp]
        old = [m for m in staying if m.stamp != wish.stamp]
        kept, surplus = current[: wish.count], current[wish.count :]
        missing = wish.count - len(kept)
        if old:
            missing = min(missing, wish.count + surge - len(group) + len(surplus))
        self._forget(wish, kept, old)
        again = [m.index for m in kept if m.state is State.DEAD and now >= m.retry_at]
        fresh = islice(_free_indexes(wish, group), max(missing, 0))
        creates = [Create(wish.model, index, wish.stamp) for index in (*again, *fresh)]
        return [*_stop(surplus), *_stop(self._replaced(wish, kept, old, group, surge)), *creates]

    def _replaced(
        self,
        wish: Wanted,
        kept: list[Member],
        old: list[Member],
        group: Sequence[Member],
        surge: int,
    ) -> list[Member]:
        """Which of the old have to go now: those that serve nobody, and what can be spared."""
        idle = [m for m in old if m.state is not State.READY]
        serving = [m for m in old if m.state is State.READY]
        ready = sum(m.state is State.READY for m in kept) + len(serving)
        if ready > wish.count:
            return idle + serving[: ready - wish.count]
        underway = any(m.state in (State.LOADING, State.STOPPING) for m in group)
        if not serving or underway:
            return idle
        full = surge == 0 and ready == wish.count
        return idle + (serving[:1] if self._goes_first(wish, kept, full) else [])

    def _goes_first(self, wish: Wanted, kept: list[Member], full: bool) -> bool:
        """Whether an old one makes room: the places are `full`, or a new one found none."""
        stand = frozenset(m.name for m in kept if m.state in (State.LOADING, State.READY))
        stood = self._stood.get(wish.model)
        cramped = any(m.cramped for m in kept) and (stood is None or not stand <= stood)
        if full or cramped:
            self._stood[wish.model] = stand
        return full or cramped

    def _forget(self, wish: Wanted, kept: list[Member], old: list[Member]) -> None:
        """Who is not among the new ones any more: the next by that name is another."""
        if not old:
            self._stood.pop(wish.model, None)
        elif wish.model in self._stood:
            self._stood[wish.model] &= {member.name for member in kept}


def left_wanted(members: Iterable[Member], surge: int) -> dict[str, int]:
    """How many shards of each model an earlier owner wanted, by what it left: in the midst of a
    change, up to `surge` of them are there for a while only. None of a model that it left none."""
    shards = [m for m in members if m.model is not None and _stays(m)]
    models = {m.model for m in shards if m.model is not None}
    return {model: _wanted_of([m for m in shards if m.model == model], surge) for model in models}


def _wanted_of(shards: Sequence[Member], surge: int) -> int:
    changing = len({member.stamp for member in shards}) > 1
    ready = sum(member.state is State.READY for member in shards)
    return max(ready, len(shards) - surge) if changing else len(shards)


def _stop(members: Iterable[Member]) -> list[Action]:
    return [Stop(member.name) for member in members if _stays(member)]


def _free_indexes(wish: Wanted, group: Sequence[Member]) -> Iterator[int]:
    """There is one name for a scheduler, and any number for shards."""
    used = {member.index for member in group}
    names = range(1) if wish.model is None else count()
    return (index for index in names if index not in used)


def _stays(member: Member) -> bool:
    return member.state is not State.STOPPING
