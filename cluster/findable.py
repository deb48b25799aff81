"""What can be found by its hash, in which tier, and how that changed.

All tiers count as one: content is findable as long as a page of the device, a slot of host memory
or a file has it. Used is the page, else the slot; what only a file has is fetched to a slot first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile

from cluster.errors import LedgerBroken
from cluster.folder_tier import FileDone, FileOrder
from cluster.host_tier import HostTier, Moves
from cluster.messages import PageHash


@dataclass(frozen=True, slots=True)
class PageEvents:
    """Net change of what is findable: no hash is in both, whatever happened in between."""

    stored: tuple[PageHash, ...]
    removed: tuple[PageHash, ...]


class Findable:
    """The names of a pool's `num_blocks` pages, and the tier behind them."""

    def __init__(self, num_blocks: int, host: HostTier) -> None:
        self._names: list[PageHash | None] = [None] * num_blocks
        self._pages: dict[PageHash, int] = {}
        self._host = host
        self._stored: dict[PageHash, None] = {}
        self._removed: dict[PageHash, None] = {}

    def name(self, page: int) -> PageHash | None:
        """What `page` can be found by."""
        return self._names[page]

    def page(self, content: PageHash) -> int | None:
        """The page of the device that has it."""
        return self._pages.get(content)

    def reach(self, hashes: Iterable[PageHash]) -> int:
        """How many of them, from the first on, the device or host memory has."""
        count = 0
        for content in hashes:
            if not self._is_near(content):
                break
            count += 1
        return count

    def lacking(self, hashes: Iterable[PageHash]) -> list[PageHash]:
        """Those that the device lacks and the host has, which are kept there until `load`.

        Raises LedgerBroken where neither has one.
        """
        lacking = [content for content in hashes if content not in self._pages]
        self._host.pin(lacking)
        return lacking

    def load(self, contents: Sequence[PageHash], pages: Sequence[int]) -> None:
        """Have what was `lacking` brought to `pages`, by whose names it is found from now on."""
        for content, page in zip(contents, pages, strict=True):
            self._host.load(content, page)
            self.enter(page, content)

    def enter(self, page: int, content: PageHash) -> None:
        """Name a page that has no name, by content that no page has."""
        if not self._has(content):
            self._appeared(content)
        self._names[page] = content
        self._pages[content] = page

    def leave(self, page: int) -> None:
        """Take a page's name away, since others write there; what it held goes to the host tier.

        Raises LedgerBroken where it has none.
        """
        content = self._names[page]
        if content is None:
            raise LedgerBroken(f"page {page} has no name to lose")
        self._names[page] = None
        del self._pages[content]
        forgotten = self._host.keep(content, page)
        if forgotten is not None:
            self._left(forgotten)

    def filed(self, hashes: Iterable[PageHash]) -> bool:
        """Whether the longest prefix of them that can be found takes a file."""
        found = takewhile(self._has, hashes)
        return any(not self._is_near(content) for content in found)

    def fetch(self, hashes: Iterable[PageHash]) -> None:
        """Have what only files have of that prefix read into host memory, as far as it has room."""
        found = takewhile(self._has, hashes)
        for forgotten in self._host.fetch([each for each in found if each not in self._pages]):
            self._left(forgotten)

    def drain_orders(self) -> tuple[FileOrder, ...]:
        """As `HostTier.drain_orders`."""
        orders, dropped = self._host.drain_orders()
        for content in dropped:
            self._left(content)
        return orders

    def settle(self, done: FileDone) -> None:
        """As `HostTier.settle`."""
        self._host.settle(done)
        self._left(done.content)

    def drain_moves(self) -> Moves:
        """As `HostTier.drain_moves`."""
        return self._host.drain_moves()

    def all(self) -> tuple[PageHash, ...]:
        """Every hash that any tier has."""
        below = chain(self._host.contents(), self._host.folder.contents())
        return tuple({**self._pages, **dict.fromkeys(below)})

    def drain_events(self) -> PageEvents:
        """What became findable, and what no longer is, since the last call."""
        events = PageEvents(tuple(self._stored), tuple(self._removed))
        self._stored.clear()
        self._removed.clear()
        return events

    def verify(self) -> None:
        """Raise LedgerBroken unless names and pages agree, and the host's books balance."""
        named = {name: page for page, name in enumerate(self._names) if name is not None}
        if named != self._pages:
            raise LedgerBroken(f"sealed pages {named}, findable pages {self._pages}")
        self._host.verify(self._pages)

    def _is_near(self, content: PageHash) -> bool:
        return content in self._pages or content in self._host

    def _has(self, content: PageHash) -> bool:
        return self._is_near(content) or content in self._host.folder

    def _left(self, content: PageHash) -> None:
        """A tier may have it no longer."""
        if not self._has(content):
            self._vanished(content)

    def _appeared(self, content: PageHash) -> None:
        if content in self._removed:
            del self._removed[content]
        else:
            self._stored[content] = None

    def _vanished(self, content: PageHash) -> None:
        if content in self._stored:
            del self._stored[content]
        else:
            self._removed[content] = None
