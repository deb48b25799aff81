"""Who owns which KV page of one shard: reference counts, prefix hashes, LRU reuse; integers only.

What a page holds is the engine's business. Here a page is a number that is in exactly one of three
places: used (somebody holds a reference), cached (nobody does, but its hash makes it findable), or
free. A cached page is as good as free, only that taking it moves its prefix to host memory, or
forgets it where there is none. What host memory has no room for may go on to a folder.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from cluster.errors import LedgerBroken
from cluster.findable import Findable, PageEvents
from cluster.folder_tier import FileDone, FileOrder, FolderStats
from cluster.host_tier import HostTier, Moves
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
class PoolStats:
    """Pages by place; used + cached + free = total. `host` are kept in host memory, those in use
    or cached among them; `saved` and `loaded` count pages moved there and back since the start.
    `folder` is the tier behind it.
    """

    total: int
    used: int
    cached: int
    free: int
    host: int
    saved: int
    loaded: int
    folder: FolderStats


class BlockPool:
    """The ledger of `num_blocks` pages of `block_size` tokens each.

    Without `prefix_caching` no page is ever findable, so a released page is at once free. Behind
    the pages stands a `host` tier, by default of none.
    """

    def __init__(
        self, num_blocks: int, block_size: int, prefix_caching: bool, host: HostTier | None = None
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._refs = [0] * num_blocks
        self._host = HostTier(0) if host is None else host
        self._findable = Findable(num_blocks, self._host)
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently released first

    @property
    def available(self) -> int:
        """Pages that `allocate` could give."""
        return len(self._free) + len(self._cached)

    @property
    def used(self) -> int:
        """Pages that somebody holds."""
        return self.num_blocks - self.available

    def reach(self, hashes: Iterable[PageHash]) -> int:
        """How many pages the longest prefix of `hashes` has that is here or in host memory."""
        return self._findable.reach(hashes)

    def held(self, prefix: Iterable[PageHash]) -> int:
        """How many pages of `prefix` somebody holds: opening it uses no further page for them."""
        pages = (self._findable.page(content) for content in prefix)
        return sum(page is not None and self._refs[page] > 0 for page in pages)

    def open(self, prefix: Sequence[PageHash]) -> list[int]:
        """The pages of `prefix`, which must be within `reach`, each with one reference more.

        What only host memory has is brought back into pages that `allocate` gives, by a step that
        begins with `drain_moves`. Raises LedgerBroken where that are too few.
        """
        found = [self._findable.page(content) for content in prefix]
        lacking = self._findable.lacking(prefix)
        self.take([page for page in found if page is not None])
        fresh = self.allocate(len(lacking))
        if fresh is None:
            raise LedgerBroken(f"{len(lacking)} pages to load, {self.available} are there")
        self._findable.load(lacking, fresh)
        rest = iter(fresh)
        return [next(rest) if page is None else page for page in found]

    def affordable(self, prefix: Sequence[PageHash], loads: float) -> tuple[int, int]:
        """How many pages of `prefix` can be opened now if no more than `loads` of them may be
        brought back, and how many would be."""
        opened, loaded, room = 0, 0, self.available
        for content in prefix[: self.reach(prefix)]:
            page = self._findable.page(content)
            loaded += page is None
            room -= page is None or not self._refs[page]
            if loaded > loads or room < 0:
                return opened, loaded - (page is None)
            opened += 1
        return opened, loaded

    def pin(self, prefix: Sequence[PageHash]) -> None:
        """Have host memory keep what it has of `prefix` until `drain_moves`."""
        self._findable.lacking(prefix[: self.reach(prefix)])

    def filed(self, hashes: Sequence[PageHash]) -> bool:
        """Whether a part of the longest prefix that can be found is only in files."""
        return self._findable.filed(hashes)

    def fetch(self, hashes: Sequence[PageHash]) -> None:
        """Have that part brought within `reach`, by the orders that follow."""
        self._findable.fetch(hashes)

    @property
    def awaits_files(self) -> bool:
        """Whether anything is being fetched."""
        return self._host.awaits_files

    def awaits(self, hashes: Iterable[PageHash]) -> bool:
        """Whether any of these is being fetched."""
        return self.awaits_files and any(map(self._host.is_arriving, hashes))

    def drain_orders(self) -> tuple[FileOrder, ...]:
        """What threads have to read and write, once the moves that were drained are done."""
        return self._findable.drain_orders()

    def settle(self, done: FileDone) -> None:
        """Enter what became of an order. Raises LedgerBroken for one that was not given."""
        self._findable.settle(done)

    def match(self, hashes: Iterable[PageHash]) -> list[int]:
        """The pages of the longest prefix of `hashes` that is here. Takes no reference."""
        pages = []
        for wanted in hashes:
            page = self._findable.page(wanted)
            if page is None:
                break
            pages.append(page)
        return pages

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
        if not self._refs[page] or self._findable.name(page) not in (None, content):
            raise LedgerBroken(f"page {page} cannot be sealed: free, or sealed as something else")
        if self.prefix_caching and self._findable.page(content) is None:
            self._findable.enter(page, content)

    def needs_copy(self, page: int) -> bool:
        """Whether a writer has to copy the page first: others hold it, or could find it."""
        return self._refs[page] > 1 or self._findable.name(page) is not None

    def gives(self, table: Iterable[int]) -> int:
        """How many pages of a block table nobody else holds: closing it lowers `used` by them."""
        return sum(self._refs[page] == 1 for page in table)

    def findable(self) -> tuple[PageHash, ...]:
        """Every hash that can be found, in files too, for an index that starts over."""
        return self._findable.all()

    def drain_events(self) -> PageEvents:
        """What became findable, and what no longer is, since the last call."""
        return self._findable.drain_events()

    def drain_moves(self) -> Moves:
        """What has to be moved between pages and host memory before anybody writes to a page.

        Whoever plans a step takes them with it; whoever writes to pages that `allocate` gave
        without a step has them done first.
        """
        return self._findable.drain_moves()

    def stats(self) -> PoolStats:
        return PoolStats(
            total=self.num_blocks,
            used=self.used,
            cached=len(self._cached),
            free=len(self._free),
            host=len(self._host),
            saved=self._host.saved,
            loaded=self._host.loaded,
            folder=self._host.folder.stats(),
        )

    def verify(self, tables: Iterable[Iterable[int]] | None = None) -> None:
        """Raise LedgerBroken unless every page is in one place and every hash names its page.

        With `tables`, all block tables there are, references must be exactly theirs.
        """
        used = [page for page, refs in enumerate(self._refs) if refs]
        places = sorted([*used, *self._cached, *self._free])
        if places != list(range(self.num_blocks)):
            raise LedgerBroken(f"places of {self.num_blocks} pages: {places}")
        self._findable.verify()
        if any(self._findable.name(page) is None for page in self._cached):
            raise LedgerBroken(f"a cached page has no hash: {list(self._cached)}")
        if any(self._findable.name(page) is not None for page in self._free):
            raise LedgerBroken(f"a free page has a hash: {self._free}")
        if tables is not None:
            self._verify_references(tables)

    def _verify_references(self, tables: Iterable[Iterable[int]]) -> None:
        held = Counter(page for table in tables for page in table)
        counted = Counter({page: refs for page, refs in enumerate(self._refs) if refs})
        if held != counted:
            raise LedgerBroken(f"tables hold {held}, references counted {counted}")

    def _set_aside(self, page: int) -> None:
        if self._findable.name(page) is None:
            self._free.append(page)
        else:
            self._cached[page] = None

    def _evict(self) -> int:
        page, _ = self._cached.popitem(last=False)
        self._findable.leave(page)
        return page
