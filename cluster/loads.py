"""The shards of one model in order of their load, kept sorted as the load changes."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from cluster.errors import LedgerBroken
from cluster.orders import Order
from cluster.scheduling_config import PlacementConfig
from cluster.shard_books import ShardBook

ENDLESS = 1 << 62
"""Places and pages that an idle shard offers: it has room for whatever it could hold."""


class ShardView(NamedTuple):
    """What a placement has to know of a shard, worked out once for each change of its load.

    `outstanding` is the work in front of and beside a newcomer, in tokens, and `told` the same as
    leases tell of it, rounded; `price` what a prompt token costs here; `places` and `pages` are
    what nobody has a lease on; `window` is how many prompt tokens may still be leased ahead of what
    the shard computes, negative where too many are, and `behind` those of them that each class goes
    before, the highest first. By the first three fields views are in order of load.
    """

    outstanding: float
    last_grant: int
    name: str
    price: float
    places: int
    pages: int
    window: float
    behind: tuple[int, ...]
    told: int
    book: ShardBook

    def takes_more(self, rank: int) -> bool:
        """Whether any newcomer of that class without a cached prefix could have room."""
        open_to_it = self.window > 0 or self.window_of(rank) > 0
        return open_to_it and self.places > 0 and self.pages > 1

    def window_of(self, rank: int) -> float:
        """The window of a class: the prompts of those below it do not stand in its way."""
        return self.window + (self.behind[rank] if rank < len(self.behind) else 0)

    @property
    def room_key(self) -> RoomKey:
        return -self.places, -self.pages, self.name


RoomKey = tuple[int, int, str]


class ModelShards:
    """The shards of one model, and for each class, of those that take more of it, two orders: by
    load, and by room.

    A placement looks at a few from the head of each, so that it costs the same with a thousand
    shards as with ten. A shard that is open to chats alone stands in no lower class's way.
    """

    def __init__(self, config: PlacementConfig) -> None:
        self._decode_tokens = config.decode_tokens
        self._page_pressure = config.page_pressure
        self._window_s = config.prefill_window_s
        self._window_tokens = config.prefill_window_tokens
        self._shards: dict[str, ShardBook] = {}
        self._views: dict[str, ShardView] = {}
        self._by_load: dict[int, Order[ShardView]] = {}
        self._by_room: dict[int, Order[RoomKey]] = {}
        self._changed: set[str] = set()
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
        if places:
            self.taken += places
            self.taken_by[rank] += places
        self._changed.add(shard.ref.shard)

    def among(self, names: Iterable[str]) -> list[ShardView]:
        """Those of the shards that serve this model, as of the last `refresh`: others may hold the
        same pages.
        """
        return [self._views[name] for name in names if name in self._views]

    def least_loaded(self, count: int, rank: int) -> list[ShardView]:
        """Of those that take more of a class, as of the last `refresh`, the cheapest for a newcomer
        without a prefix first.
        """
        order = self._by_load.get(rank)
        if order is None:
            order = self._by_load[rank] = Order(partial(self._load_key, rank), self._views)
        return order.sorted()[:count]

    def wait_s(self) -> float:
        """How long a newcomer without a prefix waits for the prompts in front of it, at least."""
        self.refresh()
        first = self.least_loaded(1, rank=0)
        return first[0].book.wait_s if first else 0.0

    def roomiest(self, places: int, rank: int) -> Iterator[ShardView]:
        """Of those that take more of a class and offer so many places: for each number of places
        the one with most pages. Seldom asked for, and never more than a shard has places.
        """
        order = self._by_room.get(rank)
        if order is None:
            order = self._by_room[rank] = Order(partial(self._room_key, rank), self._views)
        keys, at = order.sorted(), 0
        while at < len(keys) and -keys[at][0] >= places:
            offered, _, name = keys[at]
            yield self._views[name]
            at = bisect_left(keys, (offered + 1,), lo=at)

    def refresh(self) -> None:
        """Work out afresh what changed."""
        if not self._changed:
            return
        for name in self._changed:
            shard = self._shards.get(name)
            if shard is None:
                self._views.pop(name, None)
            else:
                self._views[name] = self._look(shard)
        for orders in (self._by_load, self._by_room):
            for order in orders.values():
                order.note(self._changed)
        self._changed.clear()

    def _load_key(self, rank: int, name: str) -> ShardView | None:
        view = self._views.get(name)
        return view if view is not None and view.takes_more(rank) else None

    def _room_key(self, rank: int, name: str) -> RoomKey | None:
        view = self._load_key(rank, name)
        return None if view is None else view.room_key

    def _look(self, shard: ShardBook) -> ShardView:
        capacity, sequences, prefill = shard.capacity, shard.sequences, shard.prefill_tokens
        unpromised, idle = shard.unpromised, not shard.leases
        used = 1.0 - unpromised / capacity.total_pages
        places = ENDLESS if idle else capacity.max_num_seqs - sequences
        outstanding = prefill + self._decode_tokens * sequences
        return ShardView(
            outstanding,
            shard.last_grant,
            shard.ref.shard,
            1.0 + self._page_pressure * used,
            0 if shard.leaving else places,
            ENDLESS if idle else unpromised,
            self.lookahead(shard) - prefill,
            tuple(shard.prefill_behind),
            round(outstanding),
            shard,
        )

    def lookahead(self, shard: ShardBook) -> float:
        """Prompt tokens that may be leased to it ahead of what it computes.

        Enough to keep it busy until its report is answered, and no more: what waits here keeps
        its order by class and may still go elsewhere, what waits there does neither.
        """
        least, speed = self._window_tokens, shard.speed.per_second
        return least if speed is None else max(speed * self._window_s, least / 2)

    def _measure(self) -> None:
        shards = self._shards.values()
        self.longest = max((shard.longest for shard in shards), default=0)
        self.block_size = min((shard.capacity.block_size for shard in shards), default=0)
        self.places = sum(shard.capacity.max_num_seqs for shard in shards)

    def verify(self) -> None:
        """Raises LedgerBroken where a view, an order or the sum of places is not up to date."""
        self.refresh()
        if self._views != {name: self._look(shard) for name, shard in self._shards.items()}:
            raise LedgerBroken("loads: a shard changed without notice")
        for by_load in self._by_load.values():
            by_load.verify(self._views)
        for by_room in self._by_room.values():
            by_room.verify(self._views)
        taken = sum(shard.sequences for shard in self._shards.values())
        if not taken == self.taken == self.taken_by.total():
            raise LedgerBroken(f"loads: {self.taken} places kept as taken, {taken} counted")
