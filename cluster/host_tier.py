"""Which pages host memory keeps once they have left the device, and in which slot; integers only.

A page that has a hash never changes again. So one that is brought back keeps its slot, and costs
nothing when it leaves the device a second time. What is to be moved is gathered while a step is
drafted, and handed over as a whole: first all saves, then, after the step's copies, all loads.
Three rules make that order enough:

- A slot that a load will read is given to nobody else until it was read.
- Of two saves into one slot only the later one counts.
- A page that leaves the device again before it was loaded is not loaded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from cluster.errors import LedgerBroken
from cluster.messages import PageHash
from cluster.steps import PageLoad, PageSave

Moves = tuple[tuple[PageSave, ...], tuple[PageLoad, ...]]


class HostTier:
    """The ledger of `slots` pages of host memory; with none of them nothing is ever kept.

    `saved` and `loaded` count pages moved since the start.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.saved = 0
        self.loaded = 0
        self._slots: OrderedDict[PageHash, int] = OrderedDict()  # least recently used first
        self._free = list(range(slots - 1, -1, -1))
        self._pinned: set[PageHash] = set()
        self._saves: dict[int, int] = {}
        self._loads: dict[int, int] = {}

    def __contains__(self, content: PageHash) -> bool:
        return content in self._slots

    def __len__(self) -> int:
        return len(self._slots)

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
        forgotten = None if self._free else self._least_recently_used()
        if forgotten is not None:
            self._free.append(self._slots.pop(forgotten))
        if not self._free:
            return content
        slot = self._free.pop()
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

    def verify(self, pages: Mapping[PageHash, int]) -> None:
        """Raise LedgerBroken unless each slot has one owner, and each load brings to a page of
        the device, of which `pages` are those with a hash, what it is named for."""
        if sorted([*self._slots.values(), *self._free]) != list(range(self.slots)):
            raise LedgerBroken(f"slots of {self.slots}: {self._slots}, free {self._free}")
        if not self._pinned <= self._slots.keys():
            raise LedgerBroken("a pinned page is not kept")
        if not self._saves.keys() <= set(self._slots.values()):
            raise LedgerBroken(f"slots {list(self._saves)} are written to, and one is free")
        due = {pages.get(content): self._slots[content] for content in self._pinned}
        if not self._loads.items() <= due.items():
            raise LedgerBroken(f"pages and slots to load {self._loads}, named for {due}")

    def _least_recently_used(self) -> PageHash | None:
        return next((each for each in self._slots if each not in self._pinned), None)
