"""Who owns which KV page of one shard: reference counts, prefix hashes, LRU reuse; integers only.

What a page holds is the engine's business. Here a page is a number that is in exactly one of three
places: used (somebody holds a reference), cached (nobody does, but its hash makes it findable), or
free. A cached page is as good as free, only that taking it forgets a prefix.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from cluster.errors import LedgerBroken
from cluster.messages import PageHash

HASH_BYTES = 16


def root_hash(salt: bytes) -> PageHash:
    """The parent of every first page under `salt`: other salts never share pages."""
    return blake2b(salt, digest_size=HASH_BYTES).digest()


def page_hash(parent: PageHash, tokens: Sequence[int]) -> PageHash:
    """Hash of one full page: its parent's hash, then its token ids as little-endian 32-bit."""
    packed = struct.pack(f"<{len(tokens)}I", *tokens)
    return blake2b(parent + packed, digest_size=HASH_BYTES).digest()


def page_hashes(tokens: Sequence[int], block_size: int, salt: bytes) -> tuple[PageHash, ...]:
    """Chained hashes of the full pages of `tokens`; a partial last page has none.

    A hash names a page's tokens and all before them. 128 bits of a cryptographic hash, because
    the hash alone decides whose KV is reused: a collision, by chance or by design, would serve
    one request from the content of another.
    """
    parent = root_hash(salt)
    hashes = []
    for end in range(block_size, len(tokens) + 1, block_size):
        parent = page_hash(parent, tokens[end - block_size : end])
        hashes.append(parent)
    return tuple(hashes)


@dataclass(frozen=True, slots=True)
class PageEvents:
    """Net change of the findable pages: no hash is in both, whatever happened in between."""

    stored: tuple[PageHash, ...]
    removed: tuple[PageHash, ...]


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Pages by place; used + cached + free = total."""

    total: int
    used: int
    cached: int
    free: int


class BlockPool:
    """The ledger of `num_blocks` pages of `block_size` tokens each.

    Without `prefix_caching` no page is ever findable, so a released page is at once free.
    """

    def __init__(self, num_blocks: int, block_size: int, prefix_caching: bool) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._refs = [0] * num_blocks
        self._hashes: list[PageHash | None] = [None] * num_blocks
        self._by_hash: dict[PageHash, int] = {}
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently released first
        self._stored: dict[PageHash, None] = {}
        self._removed: dict[PageHash, None] = {}

    @property
    def available(self) -> int:
        """Pages that `allocate` could give."""
        return len(self._free) + len(self._cached)

    def match(self, hashes: Iterable[PageHash]) -> list[int]:
        """The pages of the longest findable prefix of `hashes`. Takes no reference."""
        pages = []
        for wanted in hashes:
            page = self._by_hash.get(wanted)
            if page is None:
                break
            pages.append(page)
        return pages

    def unreferenced(self, pages: Iterable[int]) -> int:
        """How many of `pages` nobody holds: taking them lowers `available` by as many."""
        return sum(not self._refs[page] for page in pages)

    def take(self, pages: Iterable[int]) -> None:
        """Add a reference to each page, used or cached: to reuse a prefix, and to share in a fork.

        Raises LedgerBroken, and takes none, where a page is free: its content is nobody's.
        """
        pages = list(pages)
        for page in pages:
            if not self._refs[page] and page not in self._cached:
                raise LedgerBroken(f"page {page} was taken while free")
        for page in pages:
            if not self._refs[page]:
                del self._cached[page]
            self._refs[page] += 1

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages with one reference each and no content; None, and no change, if too few.

        Free pages go first, then cached ones, least recently released first.
        """
        if count > self.available:
            return None
        pages = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for page in pages:
            self._refs[page] = 1
        return pages

    def release(self, pages: Sequence[int]) -> None:
        """Drop one reference of each page of a block table, given from its first page on.

        The tail becomes evictable first, since a page is findable only while all before it are.
        Raises LedgerBroken, and releases none, where a page has fewer references than that.
        """
        for page, drops in Counter(pages).items():
            if self._refs[page] < drops:
                raise LedgerBroken(f"page {page} released {drops} times, held {self._refs[page]}")
        for page in reversed(pages):
            self._refs[page] -= 1
            if not self._refs[page]:
                self._set_aside(page)

    def seal(self, page: int, content: PageHash) -> None:
        """Make a full, computed page findable; where its hash is taken, the first page keeps it.

        Raises LedgerBroken for a page that nobody holds or that is sealed as something else.
        """
        if not self._refs[page] or self._hashes[page] not in (None, content):
            raise LedgerBroken(f"page {page} cannot be sealed: free, or sealed as something else")
        if not self.prefix_caching or content in self._by_hash:
            return
        self._hashes[page] = content
        self._by_hash[content] = page
        if content in self._removed:
            del self._removed[content]
        else:
            self._stored[content] = None

    def needs_copy(self, page: int) -> bool:
        """Whether a writer has to copy the page first: others hold it, or could find it."""
        return self._refs[page] > 1 or self._hashes[page] is not None

    def findable(self) -> tuple[PageHash, ...]:
        """Every hash that `match` would find, for an index that starts over."""
        return tuple(self._by_hash)

    def drain_events(self) -> PageEvents:
        """What became findable, and what no longer is, since the last call."""
        events = PageEvents(tuple(self._stored), tuple(self._removed))
        self._stored.clear()
        self._removed.clear()
        return events

    def stats(self) -> PoolStats:
        used = self.num_blocks - self.available
        return PoolStats(self.num_blocks, used, len(self._cached), len(self._free))

    def verify(self, tables: Iterable[Iterable[int]] | None = None) -> None:
        """Raise LedgerBroken unless every page is in one place and every hash names its page.

        With `tables`, all block tables there are, references must be exactly theirs.
        """
        used = [page for page, refs in enumerate(self._refs) if refs]
        places = sorted([*used, *self._cached, *self._free])
        if places != list(range(self.num_blocks)):
            raise LedgerBroken(f"places of {self.num_blocks} pages: {places}")
        sealed = {content: page for page, content in enumerate(self._hashes) if content is not None}
        if sealed != self._by_hash:
            raise LedgerBroken(f"sealed pages {sealed}, findable pages {self._by_hash}")
        if any(self._hashes[page] is None for page in self._cached):
            raise LedgerBroken(f"a cached page has no hash: {list(self._cached)}")
        if any(self._hashes[page] is not None for page in self._free):
            raise LedgerBroken(f"a free page has a hash: {self._free}")
        if tables is not None:
            self._verify_references(tables)

    def _verify_references(self, tables: Iterable[Iterable[int]]) -> None:
        held = Counter(page for table in tables for page in table)
        counted = Counter({page: refs for page, refs in enumerate(self._refs) if refs})
        if held != counted:
            raise LedgerBroken(f"tables hold {held}, references counted {counted}")

    def _set_aside(self, page: int) -> None:
        if self._hashes[page] is None:
            self._free.append(page)
        else:
            self._cached[page] = None

    def _evict(self) -> int:
        page, _ = self._cached.popitem(last=False)
        content = self._hashes[page]
        if content is None:
            raise LedgerBroken(f"cached page {page} has no hash")
        self._hashes[page] = None
        del self._by_hash[content]
        if content in self._stored:
            del self._stored[content]
        else:
            self._removed[content] = None
        return page
