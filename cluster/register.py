"""Which shards there are: the books of all, by name, and those of each model in their orders."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.errors import LedgerBroken
from cluster.loads import ModelShards
from cluster.messages import ShardRef
from cluster.scheduling_config import PlacementConfig
from cluster.shard_books import LeaseEntry, ShardBook


class ShardRegister:
    """Only `LeaseBook` writes to it."""

    def __init__(self, placement: PlacementConfig) -> None:
        self._placement = placement
        self._shards: dict[str, ShardBook] = {}
        self._models: dict[str, ModelShards] = {}

    def __getitem__(self, name: str) -> ShardBook:
        return self._shards[name]

    def __contains__(self, name: str) -> bool:
        return name in self._shards

    def every(self) -> Iterable[ShardBook]:
        return self._shards.values()

    def serving(self, model: str) -> ModelShards:
        """The shards of `model`, perhaps none."""
        shards = self._models.get(model)
        return ModelShards(self._placement) if shards is None else shards

    def life(self, ref: ShardRef) -> ShardBook | None:
        """The book of this very life of the shard."""
        book = self._shards.get(ref.shard)
        return book if book is not None and book.ref == ref else None

    def add(self, shard: ShardBook) -> None:
        self._shards[shard.ref.shard] = shard
        self._models.setdefault(shard.ref.model, ModelShards(self._placement)).add(shard)

    def remove(self, name: str) -> None:
        """It holds no lease any more."""
        self._models[self._shards.pop(name).ref.model].remove(name)

    def weigh(self, shard: ShardBook, entry: LeaseEntry, sign: int) -> None:
        """Put the weight of a lease there on (+1), or take it off (-1)."""
        shard.weigh(entry, sign)
        places = sign * entry.load.sequences
        self._models[shard.ref.model].changed(shard, places, entry.lease.rank)

    def computed(self, shard: ShardBook, entry: LeaseEntry) -> None:
        """A lease there starts: what is left of its weight is its place."""
        shard.computed(entry)
        self._models[shard.ref.model].changed(shard)

    def changed(self, shard: ShardBook) -> None:
        """Its room is no longer what it was."""
        self._models[shard.ref.model].changed(shard)

    def verify(self) -> None:
        """Raises LedgerBroken where a book, a model or the two together do not add up."""
        for shard in self._shards.values():
            shard.verify()
        for model in self._models.values():
            model.verify()
        by_model = {name for model in self._models.values() for name in model.shards}
        if by_model != self._shards.keys():
            raise LedgerBroken(f"shards: {len(self._shards)} by name, {len(by_model)} by model")
