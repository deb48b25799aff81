"""Random histories of a block pool: the books balance, and pages hold what they are named for.

Threads that write and read files are played by hand: each order takes effect at a time of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from cluster.blocks import BlockPool, page_hashes
from cluster.folder_tier import FileOrder, FolderTier, PageRead, Read, Written
from cluster.host_tier import HostTier

BLOCK_SIZE = 2

Prompt = tuple[int, int, bool]

# Few texts, so that one comes back soon after it was evicted.
prompts: st.SearchStrategy[Prompt] = st.tuples(st.integers(0, 2), st.integers(1, 6), st.booleans())


@dataclass
class Table:
    """Pages and what is to be in them; the last `unwritten` are computed by the next step.

    Only what is `settled`, since a step has been, is forked or written to.
    """

    pages: list[int]
    contents: list[bytes]
    unwritten: int = 0
    settled: bool = False


@dataclass
class Memory:
    """What is in each page of the device, each slot of the host, and each file."""

    pages: dict[int, bytes] = field(default_factory=dict)
    slots: dict[int, bytes] = field(default_factory=dict)
    files: dict[int, bytes] = field(default_factory=dict)


class BlockPoolHistories(RuleBasedStateMachine):
    """Block tables opened on cached prefixes, forked, written to and closed at random, and steps
    that move and write what was planned so far.

    `index` is what a reader of the events believes to be findable.
    """

    tables = Bundle("tables")

    @initialize(
        pages=st.integers(1, 8),
        prefix_caching=st.sampled_from([True, True, True, False]),
        host_slots=st.sampled_from([0, 1, 2, 3, 5, 8]),
        folder=st.sampled_from([0, 2, 6, 30]),
    )
    def start(self, pages: int, prefix_caching: bool, host_slots: int, folder: int) -> None:
        tier = HostTier(host_slots, FolderTier(folder, most=2))
        self.pool = BlockPool(pages, BLOCK_SIZE, prefix_caching, tier)
        self.orders: list[FileOrder] = []
        self.held: dict[int, Table] = {}
        self.copies: list[tuple[int, int]] = []
        self.memory = Memory()
        self.index: set[bytes] = set()

    @rule(target=tables, burst=st.lists(prompts, min_size=1, max_size=8))
    def compute(self, burst: list[Prompt]) -> object:
        """In one step, after which some are closed and the others stay."""
        tables = [self._compute(text, length) for text, length, _ in burst]
        self.step()
        for table, (*_, stays) in zip(tables, burst, strict=True):
            if table is not None and not stays:
                self.close(table)
        kept = zip(tables, burst, strict=True)
        return multiple(*[table for table, (*_, stays) in kept if stays and table is not None])

    @rule(target=tables, prompt=prompts)
    def begin(self, prompt: Prompt) -> object:
        """Without a step: what follows may fall into the same one."""
        table = self._compute(*prompt[:2])
        return multiple() if table is None else table

    @rule(target=tables, table=tables)
    def fork(self, table: int) -> int:
        self.step()
        one = self.held[table]
        self.pool.take(one.pages)
        return self._hold(Table(list(one.pages), list(one.contents), settled=True))

    @rule(table=tables, place=st.integers(0, 5))
    def write(self, table: int, place: int) -> None:
        if not self.held[table].settled:
            self.step()
        pages = self.held[table].pages
        if place >= len(pages) or not self.pool.needs_copy(pages[place]):
            return
        target = self.pool.allocate(1)
        if target is not None:
            source, pages[place] = pages[place], target[0]
            self.copies.append((source, target[0]))
            self.pool.release([source])
            assert not self.pool.needs_copy(pages[place])

    @rule(table=consumes(tables))
    def close(self, table: int) -> None:
        one = self.held.pop(table)
        gives, used = self.pool.gives(one.pages), self.pool.used
        self.pool.release(one.pages)
        assert self.pool.used == used - gives

    @rule()
    def step(self) -> None:
        saves, loads = self.pool.drain_moves()
        pages, slots = self.memory.pages, self.memory.slots
        slots.update({save.slot: pages[save.page] for save in saves})
        pages.update({target: pages[source] for source, target in self.copies})
        pages.update({load.page: slots[load.slot] for load in loads})
        self.copies = []
        for one in self.held.values():
            begun = len(one.pages) - one.unwritten
            for page, content in zip(one.pages[begun:], one.contents[begun:], strict=True):
                pages[page] = content
                self.pool.seal(page, content)
            one.unwritten, one.settled = 0, True
            assert [pages[page] for page in one.pages] == one.contents

    @rule(prompt=prompts)
    def fetch(self, prompt: Prompt) -> None:
        text, length, _ = prompt
        self.pool.fetch(page_hashes([text] * length * BLOCK_SIZE, BLOCK_SIZE, b""))

    @rule()
    def hand_over(self) -> None:
        self.step()
        self.orders += self.pool.drain_orders()

    @rule(place=st.integers(0, 20), goes_well=st.sampled_from([True, True, True, False]))
    def work_on_a_file(self, place: int, goes_well: bool) -> None:
        if not self.orders:
            return
        order = self.orders.pop(place % len(self.orders))
        if isinstance(order, PageRead):
            assert self.memory.files[order.file] == order.content
            if goes_well:
                self.memory.slots[order.slot] = self.memory.files[order.file]
            self.pool.settle(Read(order.content, goes_well))
        else:
            for file in order.dropped:
                self.memory.files.pop(file)
            if goes_well:
                self.memory.files[order.file] = self.memory.slots[order.slot]
            self.pool.settle(Written(order.content, 1 + place % 2 if goes_well else None))

    @rule()
    def read_events(self) -> None:
        events = self.pool.drain_events()
        assert not self.index & set(events.stored)
        assert self.index >= set(events.removed)
        self.index = (self.index | set(events.stored)) - set(events.removed)
        findable = self.pool.findable()
        assert self.index == set(findable)
        assert all(self.pool.reach([each]) or self.pool.filed([each]) for each in findable)

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "pool"):
            self.pool.verify(one.pages for one in self.held.values())
            stats = self.pool.stats()
            assert stats.used + stats.cached + stats.free == stats.total == self.pool.num_blocks
            assert stats.cached + stats.free == self.pool.available

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            self.step()
            for table in list(self.held):
                self.close(table)
            while self.orders:
                self.work_on_a_file(0, goes_well=True)
            self.pool.verify([])
            self.read_events()

    def _compute(self, text: int, length: int) -> int | None:
        hashes = page_hashes([text] * length * BLOCK_SIZE, BLOCK_SIZE, b"")
        prefix = hashes[: self.pool.reach(hashes)]
        growth = len(hashes) - self.pool.held(prefix)
        before = self.pool.stats()
        if self.pool.available < growth:
            assert self.pool.allocate(growth) is None
            assert self.pool.stats() == before
            return None
        fresh = len(hashes) - len(prefix)
        pages = self.pool.open(prefix) + (self.pool.allocate(fresh) or [])
        assert self.pool.used == before.used + growth
        return self._hold(Table(pages, list(hashes), fresh))

    def _hold(self, table: Table) -> int:
        number = max(self.held, default=0) + 1
        self.held[number] = table
        return number


TestBlockPoolHistories = BlockPoolHistories.TestCase
TestBlockPoolHistories.settings = settings(max_examples=200, stateful_step_count=40)
