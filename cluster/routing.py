"""Which shard: the cluster-wide prefix index, and the cost of each choice in tokens."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cluster.errors import LedgerBroken
from cluster.leases import Load, ShardBook
from cluster.messages import Candidate, PageHash, Submission

DECODE_TOKENS = 16
"""What a running sequence costs a newcomer: it takes one token of each step that the newcomer's
prefill and first decodes share with it."""

EXPLAINED = 4
"""Candidates that a lease names: a lease is a message, and a thousand shards are not a reason."""


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
        for page in reversed(pages):
            self._holders[page] = self._holders.get(page, 0) | bit
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

    def match(self, pages: Sequence[PageHash]) -> dict[str, int]:
        """How many of the leading `pages` each shard holds, for all that hold the first.

        What was matched counts as used.
        """
        matched: dict[str, int] = {}
        alive = self._holders.get(pages[0], 0) if pages else 0
        depth = 0
        while alive:
            depth += 1
            further = alive & self._holders.get(pages[depth], 0) if depth < len(pages) else 0
            matched.update((shard, depth) for shard in self._shards_of(alive ^ further))
            alive = further
        for page in reversed(pages[:depth]):
            self._holders.move_to_end(page)
        return matched

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


@dataclass(frozen=True, slots=True)
class Placement:
    """The shard chosen, what the request will weigh there, and what else was considered."""

    shard: ShardBook
    cached_tokens: int
    load: Load
    candidates: tuple[Candidate, ...]


def could_hold(shard: ShardBook, submission: Submission) -> bool:
    """Whether a choice fits the shard when it is empty."""
    return submission.prompt_tokens + submission.max_tokens <= shard.longest


def place(
    submission: Submission, shards: Mapping[str, ShardBook], index: PrefixIndex
) -> Placement | None:
    """The cheapest shard with room, or None where none has any.

    Of equals the one least recently granted anything is taken, so that cold requests go round.
    """
    matched = index.match(submission.page_hashes)
    options: list[tuple[float, int, str, int]] = []
    for name, shard in shards.items():
        cached = cached_tokens(shard, submission, matched[name]) if name in matched else 0
        price = cost(shard, submission, cached)
        if price < math.inf:
            options.append((price, shard.last_grant, name, cached))
    if not options:
        return None
    best = heapq.nsmallest(EXPLAINED, options)
    _, _, name, cached = best[0]
    uncached = submission.prompt_tokens - cached
    pages = shards[name].pages_of(uncached) + submission.choices
    load = Load(uncached, pages, submission.choices)
    return Placement(shards[name], cached, load, tuple(_explained(shards, best)))


def cost(shard: ShardBook, submission: Submission, cached: int) -> float:
    """What the request takes until and beside its first output, in tokens to compute.

        uncached prompt                         what this request adds
        + prompt tokens leased, not computed    the prefill in front of it
        + DECODE_TOKENS x leased sequences      the decodes beside it
        + uncached prompt x share of pages used what it will evict or be preempted for

    Infinite where the shard has no room: slots for all choices, and pages for the prompt and a
    first page of output each. An idle shard has room for whatever it could hold, as otherwise a
    request that needs the whole of a shard would wait for ever.
    """
    uncached = submission.prompt_tokens - cached
    unpromised = shard.free_pages - shard.promised_pages
    if not could_hold(shard, submission):
        return math.inf
    if shard.leases and (
        shard.sequences + submission.choices > shard.capacity.max_num_seqs
        or shard.pages_of(uncached) + submission.choices > unpromised
    ):
        return math.inf
    return outstanding(shard) + uncached * (2.0 - unpromised / shard.capacity.total_pages)


def outstanding(shard: ShardBook) -> int:
    """The work in front of and beside a newcomer, in tokens."""
    return shard.prefill_tokens + DECODE_TOKENS * shard.sequences


def cached_tokens(shard: ShardBook, submission: Submission, pages: int) -> int:
    """The last prompt token is always computed, since the first output comes out of it."""
    block_size = shard.capacity.block_size
    return min(pages, (submission.prompt_tokens - 1) // block_size) * block_size


def _explained(
    shards: Mapping[str, ShardBook], options: Iterable[tuple[float, int, str, int]]
) -> Iterator[Candidate]:
    for price, _, name, cached in options:
        shard = shards[name]
        yield Candidate(name, price, cached, outstanding(shard), shard.free_pages)
