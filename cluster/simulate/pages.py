"""The pages of simulated sequences, in a real pool."""

from __future__ import annotations

from cluster.blocks import BlockPool
from cluster.messages import PageHash
from cluster.simulate.runs import Sequence


class SequencePages:
    """Gives sequences pages and takes them back, as `cluster.block_tables` does on a shard."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._page = pool.block_size

    def has_room(self, one: Sequence, reserve: int) -> bool:
        """Whether all known tokens and `reserve` pages fit."""
        return self._pool.available >= self.needs(one) + reserve

    def open(self, one: Sequence) -> None:
        """Take what is cached of its prefix; there is room for the rest."""
        prefix = self._prefix(one)
        one.blocks, one.computed = self._pool.open(prefix), len(prefix) * self._page
        one.cached = one.computed if one.cached is None else one.cached

    def lacks(self, one: Sequence) -> list[PageHash]:
        """What it could do without computing, if it were cached."""
        usable = self._usable(one)
        return usable[self._pool.reach(usable) :]

    def fills(self, one: Sequence, count: int) -> list[PageHash]:
        """The pages that its next `count` tokens fill, as far as they have a name yet."""
        return one.hashes[one.computed // self._page : (one.computed + count) // self._page]

    def needs(self, one: Sequence) -> int:
        """Pages that opening it would put to use."""
        return -(-one.known // self._page) - self._pool.held(self._prefix(one))

    def fits(self, one: Sequence, wanted: int) -> int:
        """How many of the wanted tokens there are pages for."""
        if one.room >= wanted:
            return wanted
        return min(wanted, one.room + self._pool.available * self._page)

    def extend(self, one: Sequence, count: int) -> None:
        """Give it what it needs for `count` more tokens, which fit."""
        lacking = -(-(count - one.room) // self._page)
        if lacking > 0:
            one.blocks += self._pool.allocate(lacking) or ()
            one.room += lacking * self._page

    def advance(self, one: Sequence, count: int) -> None:
        """So many more tokens are computed; full pages can be found from now on."""
        first = one.computed // self._page
        one.computed += count
        one.room -= count
        for index in range(first, one.computed // self._page):
            self._pool.seal(one.blocks[index], one.page(index))

    def close(self, one: Sequence) -> None:
        """Give all back."""
        self._pool.release(one.blocks)
        one.blocks, one.room = [], 0

    def _usable(self, one: Sequence) -> list[PageHash]:
        return one.hashes[: (one.known - 1) // self._page]

    def _prefix(self, one: Sequence) -> list[PageHash]:
        usable = self._usable(one)
        return usable[: self._pool.reach(usable)]
