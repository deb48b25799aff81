"""The cluster-wide prefix index: which shards hold which pages, as they last reported."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cluster.errors import LedgerBroken
from cluster.messages import PageHash


class Match(NamedTuple):
    """How far into one prompt the shards hold its pages; good until the index changes.

    `levels` are (pages, bits of the shards that hold at least so many), deepest first, one for
    each number of pages at which some shard's part ends.
    """

    levels: Sequence[tuple[int, int]]
    bits: Mapping[str, int]
    names: Sequence[str]

    @property
    def depth(self) -> int:
        """The most leading pages that any shard holds."""
        return self.levels[0][0] if self.levels else 0

    def pages_of(self, shard: str) -> int:
        """How many of the leading pages `shard` holds."""
        return self.pages_of_each((shard,))[0]

    def pages_of_each(self, shards: Sequence[str]) -> list[int]:
        """How many of the leading pages each of `shards` holds."""
        found = [0] * len(shards)
        levels, bits = self.levels, self.bits
        if levels:
            for at, shard in enumerate(shards):
                bit = bits.get(shard)
                if bit is None:
                    continue
                for pages, holders in levels:
                    if holders >> bit & 1:
                        found[at] = pages
                        break
        return found

    def deepest(self, limit: int, turn: int, above: int = 0) -> list[str]:
        """Up to `limit` holders of more than `above` pages, those with most first.

        Of a level that has more, `turn` says where among them to begin, so that a prefix that
        everybody holds does not always show the same few.
        """
        found: list[str] = []
        seen = 0
        for pages, holders in self.levels:
            if pages <= above:
                break
            fresh = holders & ~seen
            seen |= holders
            last = 0
            if fresh.bit_count() > limit - len(found):
                last = fresh & ((1 << turn % fresh.bit_length()) - 1)
            for part in (fresh ^ last, last):
                while part and len(found) < limit:
                    lowest = part & -part
                    found.append(self.names[lowest.bit_length() - 1])
                    part ^= lowest
            if len(found) == limit:
                break
        return found


NOTHING = Match((), {}, ())
"""Nobody holds any of it."""

EVERYBODY = -1
"""The bits of all shards there could be."""


class PrefixIndex:
    """Which shards hold which pages, as last reported; bounded, and a hint, never a promise.

    The holders of a page are the bits of one integer, so that a prompt is matched against all
    shards at once by one AND a page, however many shards share the prefix. The bound counts a page
    once for each shard that holds it, which is what memory grows with. Beyond it the least recently
    used page is forgotten, and of one prefix the last page first: its head alone is still of use,
    its tail alone never. A page takes 210 bytes where 16 shards are indexed, 290 where 1,000 are.
    """

    def __init__(self, max_pages: int) -> None:
        self._max_pages = max_pages
        self._holders: OrderedDict[PageHash, int] = OrderedDict()
        self._pages: dict[str, set[PageHash]] = {}
        self._bits: dict[str, int] = {}
        self._names: list[str] = []
        self._vacant: list[int] = []
        self._size = 0

    def __len__(self) -> int:
        """Pages known, each counted once for each shard that holds it."""
        return self._size

    def shards(self) -> frozenset[str]:
        """The shards that pages are known of."""
        return frozenset(self._pages)

    def store(self, shard: str, pages: Sequence[PageHash]) -> None:
        """`shard` holds `pages` now; those of one prompt come in the prompt's order."""
        if not pages:
            return
        bit = 1 << self._bit(shard)
        held = self._pages.setdefault(shard, set())
        self._size -= len(held)
        held.update(pages)
        self._size += len(held)
        before, after = 0, bit
        for page in reversed(pages):
            holders = self._holders.get(page, 0)
            if holders != before:
                before, after = holders, holders | bit
            self._holders[page] = after  # one object for all that the same shards hold
            self._holders.move_to_end(page)
        while self._size > self._max_pages:
            self._forget_oldest()

    def remove(self, shard: str, pages: Iterable[PageHash]) -> None:
        """`shard` no longer holds `pages`."""
        held = self._pages.get(shard, set())
        gone = held.intersection(pages)
        held -= gone
        self._clear(shard, gone)

    def drop(self, shard: str) -> None:
        """Forget all of a shard, in as many steps as it held pages; unknown ones are ignored."""
        self._clear(shard, self._pages.pop(shard, set()))
        bit = self._bits.pop(shard, None)
        if bit is not None:
            self._vacant.append(bit)

    def match(self, pages: Sequence[PageHash]) -> Match:
        """Who holds how many of the leading `pages`; changes nothing."""
        levels: list[tuple[int, int]] = []
        alive, depth = EVERYBODY, 0
        before: int | None = EVERYBODY
        for holders in map(self._holders.get, pages):
            if holders is not before:  # most pages share one integer with the page before
                further = alive & holders if holders else 0
                if further != alive:
                    if depth:
                        levels.append((depth, alive))
                    alive = further
                    if not alive:
                        break
                before = holders
            depth += 1
        if alive > 0:
            levels.append((depth, alive))
        levels.reverse()
        return Match(levels, self._bits, self._names) if levels else NOTHING

    def use(self, pages: Sequence[PageHash]) -> None:
        """These pages, all of them known, were of use, and are forgotten later for it.

        That is noted once the index is half full: nothing is forgotten before it is full, and by
        then who is used at all was noted.
        """
        if 2 * self._size < self._max_pages:
            return
        move_to_end = self._holders.move_to_end
        for page in reversed(pages):
            move_to_end(page)

    def _bit(self, shard: str) -> int:
        """The number of the shard's bit; a dropped shard's number is given again."""
        if shard not in self._bits:
            if not self._vacant:
                self._vacant.append(len(self._names))
                self._names.append(shard)
            self._bits[shard] = self._vacant.pop()
            self._names[self._bits[shard]] = shard
        return self._bits[shard]

    def _shards_of(self, holders: int) -> Iterator[str]:
        while holders:
            lowest = holders & -holders
            yield self._names[lowest.bit_length() - 1]
            holders ^= lowest

    def _clear(self, shard: str, pages: set[PageHash]) -> None:
        self._size -= len(pages)
        bit = 1 << self._bits[shard] if pages else 0
        for page in pages:
            left = self._holders[page] ^ bit
            if left:
                self._holders[page] = left
            else:
                del self._holders[page]

    def _forget_oldest(self) -> None:
        page, holders = self._holders.popitem(last=False)
        for shard in self._shards_of(holders):
            self._pages[shard].remove(page)
            self._size -= 1

    def verify(self) -> None:
        """Raises LedgerBroken where pages by shard and shards by page disagree, or the bound."""
        pairs = {(s, page) for page, bits in self._holders.items() for s in self._shards_of(bits)}
        kept = {(shard, page) for shard, pages in self._pages.items() for page in pages}
        if pairs != kept or len(kept) != self._size:
            raise LedgerBroken(f"prefix index: {len(pairs)} by page, {len(kept)} by shard")
        if self._size > self._max_pages or not all(self._holders.values()):
            raise LedgerBroken(f"prefix index: {self._size} of {self._max_pages}, or a page unheld")
        if {self._names[bit]: bit for bit in self._bits.values()} != self._bits:
            raise LedgerBroken("prefix index: two shards share a bit")
