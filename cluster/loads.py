"""The shards of one model in order of their load, kept sorted as the load changes."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from cluster.errors import LedgerBroken
from cluster.scheduling_config import PlacementConfig
from cluster.shard_books import ShardBook

ENDLESS = 1 << 62
"""Places and pages that an idle shard offers: it has room for whatever it could hold."""


class ShardView(NamedTuple):
    """What a placement has to know of a shard, worked out once for each change of its load.

    `outstanding` is the work in front of and beside a newcomer, in tokens; `price` what a prompt
    token costs here; `places` and `pages` are what nobody has a lease on; `window` is how many
    prompt tokens may still be leased ahead of what the shard computes, negative where too many are,
    and `behind` those of them that each class goes before, the highest first;
    `wait_s` is how long those that are leased take it, as far as its speed is known. By the first
    three fields views are in order of load.
    """

    outstanding: float
    last_grant: int
    name: str
    price: float
    places: int
    pages: int
    window: float
    behind: tuple[int, ...]
    wait_s: float
    longest: int
    block_size: int

    @property
    def takes_more(self) -> bool:
        """Whether any newcomer without a cached prefix could have room."""
        return self.places > 0 and self.pages > 1 and self.window_of(0) > 0

    def window_of(self, rank: int) -> float:
        """The window of a class: the prompts of those below it do not stand in its way."""
        return self.window + (self.behind[rank] if rank < len(self.behind) else 0)

    @property
    def room_key(self) -> RoomKey:
        return -self.places, -self.pages, self.name


RoomKey = tuple[int, int, str]


class ModelShards:
    """The shards of one model, and of those that take more, two orders: by load, and by room.

    A placement looks at a few from the head of each, so that it costs the same with a thousand
    shards as with ten. A shard whose load changed is noted and put in its place before the next
    look, so that a report with many events moves it once.
    """

    def __init__(self, config: PlacementConfig) -> None:
        self._config = config
        self._shards: dict[str, ShardBook] = {}
        self._views: dict[str, ShardView] = {}
        self._by_load: list[ShardView] = []
        self._by_room: list[RoomKey] = []
        self._rooms: dict[str, RoomKey] = {}
        self._changed: set[str] = set()
        self._moved: set[str] = set()
        self.longest = 0
        self.block_size = 0
        self.places = 0
        self.taken = 0
        self.taken_by: Counter[int] = Counter()

    @property
    def shards(self) -> Mapping[str, ShardBook]:
        return MappingProxyType(self._shards)

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, name: str) -> ShardBook:
        return self._shards[name]

    def add(self, shard: ShardBook) -> None:
        self._shards[shard.ref.shard] = shard
        self._measure()
        self.changed(shard)

    def remove(self, name: str) -> None:
        del self._shards[name]
        self._measure()
        self._changed.add(name)

    def changed(self, shard: ShardBook, places: int = 0, rank: int = 0) -> None:
        """Its load or its room is no longer what it was; so many more of its places are taken, by
        the class of that rank."""
        self.taken += places
        self.taken_by[rank] += places
        self._changed.add(shard.ref.shard)

    def among(self, names: Iterable[str]) -> list[ShardView]:
        """Those of the shards that serve this model, as of the last `refresh`: others may hold the
        same pages.
        """
        return [self._views[name] for name in names if name in self._views]

    def least_loaded(self, count: int) -> list[ShardView]:
        """Of those that take more, the cheapest for a newcomer without a prefix first."""
        return self._by_load[:count]

    def wait_s(self) -> float:
        """How long a newcomer without a prefix waits for the prompts in front of it, at least."""
        self.refresh()
        return self._by_load[0].wait_s if self._by_load else 0.0

    def roomiest(self, places: int) -> Iterator[ShardView]:
        """Of those that take more and offer so many places: for each number of places the one with
        most pages. Seldom asked for, and never more than a shard has places.
        """
        self._sort_rooms()
        at = 0
        while at < len(self._by_room) and -self._by_room[at][0] >= places:
            offered, _, name = self._by_room[at]
            yield self._views[name]
            at = bisect_left(self._by_room, (offered + 1,), lo=at)

    def refresh(self) -> None:
        """Work out afresh what changed."""
        for name in self._changed:
            old = self._views.pop(name, None)
            if old is not None and old.takes_more:
                del self._by_load[bisect_left(self._by_load, old)]
            if name in self._shards:
                new = self._views[name] = self._look(self._shards[name])
                if new.takes_more:
                    insort(self._by_load, new)
        self._moved |= self._changed
        self._changed.clear()

    def _sort_rooms(self) -> None:
        """Bring the order by room up to date with the views."""
        for name in self._moved:
            old = self._rooms.pop(name, None)
            if old is not None:
                del self._by_room[bisect_left(self._by_room, old)]
            view = self._views.get(name)
            if view is not None and view.takes_more:
                self._rooms[name] = view.room_key
                insort(self._by_room, view.room_key)
        self._moved.clear()

    def _look(self, shard: ShardBook) -> ShardView:
        used = 1.0 - shard.unpromised / shard.capacity.total_pages
        idle = not shard.leases
        places = ENDLESS if idle else shard.capacity.max_num_seqs - shard.sequences
        return ShardView(
            outstanding=shard.prefill_tokens + self._config.decode_tokens * shard.sequences,
            last_grant=shard.last_grant,
            name=shard.ref.shard,
            price=1.0 + self._config.page_pressure * used,
            places=0 if shard.leaving else places,
            pages=ENDLESS if idle else shard.unpromised,
            window=self.lookahead(shard) - shard.prefill_tokens,
            behind=_behind(shard.prefill_by_rank),
            wait_s=shard.prefill_tokens / (shard.speed.per_second or math.inf),
            longest=shard.longest,
            block_size=shard.capacity.block_size,
        )

    def lookahead(self, shard: ShardBook) -> float:
        """Prompt tokens that may be leased to it ahead of what it computes.

        Enough to keep it busy until its report is answered, and no more: what waits here keeps
        its order by class and may still go elsewhere, what waits there does neither.
        """
        least = self._config.prefill_window_tokens
        speed = shard.speed.per_second
        return least if speed is None else max(speed * self._config.prefill_window_s, least / 2)

    def _measure(self) -> None:
        shards = self._shards.values()
        self.longest = max((shard.longest for shard in shards), default=0)
        self.block_size = min((shard.capacity.block_size for shard in shards), default=0)
        self.places = sum(shard.capacity.max_num_seqs for shard in shards)

    def verify(self) -> None:
        """Raises LedgerBroken where a view, an order or the sum of places is not up to date."""
        self.refresh()
        self._sort_rooms()
        views = {name: self._look(shard) for name, shard in self._shards.items()}
        takers = [view for view in views.values() if view.takes_more]
        if views != self._views:
            raise LedgerBroken("loads: a shard changed without notice")
        if self._by_load != sorted(takers):
            raise LedgerBroken(f"loads: {len(takers)} take more, not in order of load")
        if self._by_room != sorted(view.room_key for view in takers):
            raise LedgerBroken(f"loads: {len(takers)} take more, not in order of room")
        taken = sum(shard.sequences for shard in self._shards.values())
        if not taken == self.taken == self.taken_by.total():
            raise LedgerBroken(f"loads: {self.taken} places kept as taken, {taken} counted")


def _behind(by_rank: list[int]) -> tuple[int, ...]:
    """For each class, the sum of those below it."""
    return tuple([sum(by_rank[rank + 1 :]) for rank in range(len(by_rank) - 1)])
