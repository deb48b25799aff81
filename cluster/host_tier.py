"""Which pages host memory keeps once they have left the device, and in which slot; integers only.

A page that has a hash never changes again. So one that is brought back keeps its slot, and costs
nothing when it leaves the device a second time. What is to be moved is gathered while a step is
drafted, and handed over as a whole: first all saves, then, after the step's copies, all loads.
Three rules make that order enough:

- A slot that a load will read is given to nobody else until it was read.
- Of two saves into one slot only the later one counts.
- A page that leaves the device again before it was loaded is not loaded.

Behind it may stand a folder. Since a page must lie in a file before its slot is given away, those
that will go next are written beforehand and keep their slots until then. A slot that is being
written or read into is given to nobody.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

from cluster.errors import LedgerBroken
from cluster.folder_tier import FileDone, FileOrder, FolderTier, Read
from cluster.messages import PageHash
from cluster.steps import PageLoad, PageSave

Moves = tuple[tuple[PageSave, ...], tuple[PageLoad, ...]]

MOST_AHEAD = 512
"""Slots that are kept free or in files too, at most: each step looks at so many."""


class HostTier:
    """The ledger of `slots` pages of host memory; with none of them nothing is ever kept.

    `saved` and `loaded` count pages moved since the start.
    """

    def __init__(self, slots: int, folder: FolderTier | None = None) -> None:
        self.slots = slots
        self.saved = 0
        self.loaded = 0
        self.folder = FolderTier() if folder is None else folder
        self._ahead = min(-(-slots // 4), -(-self.folder.fits // 2), MOST_AHEAD)
        self._slots: OrderedDict[PageHash, int] = OrderedDict()  # least recently used first
        self._free = list(range(slots - 1, -1, -1))
        self._pinned: set[PageHash] = set()
        self._saves: dict[int, int] = {}
        self._loads: dict[int, int] = {}
        self._arriving: dict[PageHash, int] = {}
        self._reads: list[FileOrder] = []

    def __contains__(self, content: PageHash) -> bool:
        return content in self._slots

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def awaits_files(self) -> bool:
        """Whether files are being read."""
        return bool(self._arriving)

    def contents(self) -> Iterable[PageHash]:
        """All that it keeps, the least recently used first."""
        return self._slots.keys()

    def keep(self, content: PageHash, page: int) -> PageHash | None:
        """Keep what `page` holds, before anybody else writes there.

        Gives what is kept no longer: mostly nothing, the least recently used where all slots are
        taken, and `content` itself where none can be had.
        """
        self._loads.pop(page, None)
        if content in self._slots:
            self._slots.move_to_end(content)
            return None
        if content in self._arriving:
            return None
        slot, forgotten = self._take_slot()
        if slot is None:
            return content
        self._slots[content] = slot
        self._saves[slot] = page
        return forgotten

    def pin(self, contents: Sequence[PageHash]) -> None:
        """Keep these of a prefix whatever happens, until the moves are drained: they will be
        loaded. Its tail is forgotten first, since a page is of use only with all before it.

        Raises LedgerBroken where one is not here.
        """
        for content in reversed(contents):
            if content not in self._slots:
                raise LedgerBroken(f"page {content.hex()} is to be loaded and is not kept")
            self._slots.move_to_end(content)
            self._pinned.add(content)

    def load(self, content: PageHash, page: int) -> None:
        """Bring pinned content to `page`. Raises LedgerBroken where it is not pinned."""
        if content not in self._pinned:
            raise LedgerBroken(f"page {content.hex()} is loaded without being pinned")
        self._loads[page] = self._slots[content]

    def drain_moves(self) -> Moves:
        """What has to be moved before anything else is planned. The caller must see to it."""
        saves = tuple([PageSave(page, slot) for slot, page in self._saves.items()])
        loads = tuple([PageLoad(slot, page) for page, slot in self._loads.items()])
        self.saved += len(saves)
        self.loaded += len(loads)
        self._saves.clear()
        self._loads.clear()
        self._pinned.clear()
        return saves, loads

    def fetch(self, prefix: Sequence[PageHash]) -> list[PageHash]:
        """Have those of a prefix that are only in the folder read, as far as there are slots that
        hold nothing of it; gives what is kept no longer."""
        for content in reversed(prefix):
            if content in self._slots:
                self._slots.move_to_end(content)
            elif content in self.folder:
                self.folder.touch(content)
        spared, gone = frozenset(prefix), []
        for content in prefix:
            if content in self._slots or content in self._arriving:
                continue
            slot, forgotten = self._take_slot(spared)
            if slot is None:
                break
            gone += [] if forgotten is None else [forgotten]
            self._arriving[content] = slot
            self._reads.append(self.folder.read(content, slot))
        return gone

    def is_arriving(self, content: PageHash) -> bool:
        return content in self._arriving

    def drain_orders(self) -> tuple[tuple[FileOrder, ...], tuple[PageHash, ...]]:
        """What is to be read and written by threads once the drained moves are done; and what the
        folder gives up for that."""
        orders, self._reads = self._reads, []
        dropped = [*self.folder.drain_left()]
        for content in list(islice(self._slots, max(0, self._ahead - len(self._free)))):
            slot = self._slots[content]
            if content in self.folder:
                self.folder.touch(content)
            elif not self.folder.is_writing(content) and slot not in self._saves:
                begun = self.folder.write(content, slot)
                if begun is None:
                    break
                orders.append(begun[0])
                dropped += begun[1]
        return tuple(orders), tuple(dropped)

    def settle(self, done: FileDone) -> None:
        """Enter what became of an order. Raises LedgerBroken for one that was not given."""
        self.folder.settle(done)
        if isinstance(done, Read):
            slot = self._arriving.pop(done.content)
            if done.whole:
                self._slots[done.content] = slot
            else:
                self._free.append(slot)

    def verify(self, pages: Mapping[PageHash, int]) -> None:
        """Raise LedgerBroken unless each slot has one owner, and each load brings to a page of
        the device, of which `pages` are those with a hash, what it is named for."""
        owned = [*self._slots.values(), *self._arriving.values(), *self._free]
        if sorted(owned) != list(range(self.slots)):
            raise LedgerBroken(f"slots of {self.slots}: {self._slots}, free {self._free}")
        if not self._pinned <= self._slots.keys():
            raise LedgerBroken("a pinned page is not kept")
        if not self._saves.keys() <= set(self._slots.values()):
            raise LedgerBroken(f"slots {list(self._saves)} are written to, and one is free")
        due = {pages.get(content): self._slots[content] for content in self._pinned}
        if not self._loads.items() <= due.items():
            raise LedgerBroken(f"pages and slots to load {self._loads}, named for {due}")
        self._verify_folder()

    def _verify_folder(self) -> None:
        self.folder.verify()
        if self._arriving.keys() & self._slots.keys():
            raise LedgerBroken("a page is kept and arrives as well")
        if self._arriving.keys() != self.folder.reading:
            raise LedgerBroken("pages arrive that are not read, or the other way round")
        if not self.folder.writing <= self._slots.keys():
            raise LedgerBroken("a page is written to a file and is not kept")

    def _take_slot(self, spared: Collection[PageHash] = ()) -> tuple[int | None, PageHash | None]:
        """A slot for new content, and what was in it; (None, None) where none can be had."""
        if self._free:
            return self._free.pop(), None
        victim = next((each for each in self._slots if self._may_go(each, spared)), None)
        if victim is None:
            return None, None
        slot = self._slots.pop(victim)
        self._saves.pop(slot, None)
        return slot, victim

    def _may_go(self, content: PageHash, spared: Collection[PageHash]) -> bool:
        held = content in self._pinned or content in spared
        return not held and not self.folder.is_writing(content)
