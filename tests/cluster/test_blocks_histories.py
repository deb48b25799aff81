"""Random histories of a block pool: the books balance after every step."""

from __future__ import annotations

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

BLOCK_SIZE = 2


class BlockPoolHistories(RuleBasedStateMachine):
    """Block tables opened on cached prefixes, grown, forked, written to and closed at random.

    `index` is what a reader of the events believes to be findable.
    """

    tables = Bundle("tables")

    @initialize(pages=st.integers(1, 12), prefix_caching=st.booleans())
    def start(self, pages: int, prefix_caching: bool) -> None:
        self.pool = BlockPool(pages, BLOCK_SIZE, prefix_caching)
        self.held: dict[int, list[int]] = {}
        self.index: set[bytes] = set()

    @rule(
        target=tables, tokens=st.lists(st.integers(0, 1), max_size=12), salt=st.binary(max_size=1)
    )
    def compute(self, tokens: list[int], salt: bytes) -> object:
        hashes = page_hashes(tokens, BLOCK_SIZE, salt)
        prefix = self.pool.match(hashes)
        self.pool.take(prefix)
        before = self.pool.stats()
        fresh = self.pool.allocate(len(hashes) - len(prefix))
        if fresh is None:
            assert self.pool.stats() == before
            self.pool.release(prefix)
            return multiple()
        table = prefix + fresh
        for page, content in zip(table, hashes, strict=True):
            self.pool.seal(page, content)
        if self.pool.prefix_caching:
            assert self.pool.match(hashes) == table
        return self._hold(table)

    @rule(target=tables, table=tables)
    def fork(self, table: int) -> int:
        self.pool.take(self.held[table])
        return self._hold(list(self.held[table]))

    @rule(table=tables, place=st.integers(0, 5))
    def write(self, table: int, place: int) -> None:
        pages = self.held[table]
        if place >= len(pages) or not self.pool.needs_copy(pages[place]):
            return
        target = self.pool.allocate(1)
        if target is not None:
            source, pages[place] = pages[place], target[0]
            self.pool.release([source])
            assert not self.pool.needs_copy(pages[place])

    @rule(table=consumes(tables))
    def close(self, table: int) -> None:
        self.pool.release(self.held.pop(table))

    @rule()
    def read_events(self) -> None:
        events = self.pool.drain_events()
        assert not self.index & set(events.stored)
        assert self.index >= set(events.removed)
        self.index = (self.index | set(events.stored)) - set(events.removed)
        assert self.index == set(self.pool.findable())

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "pool"):
            self.pool.verify(self.held.values())
            stats = self.pool.stats()
            assert stats.used + stats.cached + stats.free == stats.total == self.pool.num_blocks
            assert stats.cached + stats.free == self.pool.available

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for table in self.held.values():
                self.pool.release(table)
            self.pool.verify([])
            self.read_events()

    def _hold(self, table: list[int]) -> int:
        number = max(self.held, default=0) + 1
        self.held[number] = table
        return number


TestBlockPoolHistories = BlockPoolHistories.TestCase
TestBlockPoolHistories.settings = settings(max_examples=200, stateful_step_count=40)
