"""Pages for sequences: opens, grows, forks and closes their block tables out of one pool."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.blocks import BlockPool, page_hash
from cluster.errors import ConfigError, LedgerBroken
from cluster.messages import PageHash
from cluster.sequences import State, Tracked
from cluster.steps import PageCopy


class BlockTables:
    """The only writer of `Sequence.blocks` and `Sequence.computed`.

    A sequence that starts takes its cached prefix over bit by bit (`load`), since what is brought
    back in one step holds up who runs beside it.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.block_size = pool.block_size
        self._due: dict[Tracked, int] = {}
        self._asked: set[Tracked] = set()

    @property
    def used(self) -> int:
        """Pages in use."""
        return self._pool.used

    def has_room(self, tracked: Tracked, reserve: int) -> bool:
        """Whether all known tokens and `reserve` pages fit."""
        return self._pool.available >= self.needs(tracked) + reserve

    def open(self, tracked: Tracked) -> None:
        """Start the table, for which there is room; due is now the prefix that is cached, on the
        device or in host memory."""
        if prefix := self._prefix(tracked):
            self._due[tracked] = len(prefix)

    def due(self, tracked: Tracked) -> int:
        """Tokens of its prefix that `load` has yet to take over; only then may it be extended."""
        return max(0, self._due.get(tracked, 0) - len(tracked.sequence.blocks)) * self.block_size

    def load(self, tracked: Tracked, most: float) -> int:
        """Take over what is due, as far as no more than `most` pages have to be brought back from
        host memory; returns how many have. What is gone meanwhile, or finds no room, is not due any
        more."""
        sequence = tracked.sequence
        due = tracked.hashes[len(sequence.blocks) : self._due[tracked]]
        opened, loaded = self._pool.affordable(due, most)
        sequence.blocks += self._pool.open(due[:opened])
        sequence.computed = len(sequence.blocks) * self.block_size
        if opened == len(due) or loaded < most:
            del self._due[tracked]
        else:
            self._pool.pin(due[opened:])
        return loaded

    def fetches(self, waiting: Tracked) -> bool:
        """Whether it waits for pages that only files have. They are asked for once, however many of
        them then come, and for one sequence at a time."""
        usable = self._usable(waiting)
        if waiting not in self._asked and self._pool.filed(usable):
            if self._pool.awaits_files:
                return True
            self._asked.add(waiting)
            self._pool.fetch(usable)
        return self.awaits(waiting)

    def awaits(self, waiting: Tracked) -> bool:
        """Whether pages that only files have were asked for, and have not come yet."""
        return self._pool.awaits(self._usable(waiting))

    def needs(self, tracked: Tracked) -> int:
        """Pages that opening it would put to use."""
        return self._growth(tracked, self._prefix(tracked))

    def lacks(self, tracked: Tracked) -> list[PageHash]:
        """What it could do without computing, if it were cached."""
        usable = self._usable(tracked)
        return usable[self._pool.reach(usable) :]

    def fills(self, tracked: Tracked, count: int) -> list[PageHash]:
        """The pages that its next `count` tokens fill, as far as their hashes are known yet."""
        computed = tracked.sequence.computed
        return tracked.hashes[computed // self.block_size : (computed + count) // self.block_size]

    def gives(self, tracked: Tracked) -> int:
        """Pages that closing it would take out of use."""
        return self._pool.gives(tracked.sequence.blocks)

    def fits(self, tracked: Tracked, wanted: int) -> int:
        """How many of the next `wanted` tokens there are pages for."""
        sequence = tracked.sequence
        room = len(sequence.blocks) * self.block_size - sequence.computed
        copies = self._writes_into_shared(tracked)
        if room >= wanted and not copies:
            return wanted
        spare = self._pool.available - copies
        return min(wanted, room + spare * self.block_size) if spare >= 0 else 0

    def extend(self, tracked: Tracked, count: int) -> PageCopy | None:
        """Give the next `count` tokens, which must fit, pages that nobody else reads.

        Gives the copy to be done first, where the first of them falls into a shared page. Within
        one step a source may become a later copy's target, so copies are either done in order, or
        all read before any is written.
        """
        sequence = tracked.sequence
        copy = self._unshare(tracked) if self._writes_into_shared(tracked) else None
        lacking = self._pages(sequence.computed + count) - len(sequence.blocks)
        if lacking > 0:
            sequence.blocks += self._allocate(lacking)
        return copy

    def room_behind(self, tracked: Tracked) -> int:
        """Places in its pages behind the known tokens."""
        sequence = tracked.sequence
        return max(0, len(sequence.blocks) * self.block_size - len(sequence.tokens))

    def advance(self, tracked: Tracked, count: int) -> None:
        """The next `count` tokens have KV now: pages that became full can be found."""
        sequence = tracked.sequence
        first = sequence.computed // self.block_size
        sequence.computed += count
        if self._pool.prefix_caching:
            for index in range(first, sequence.computed // self.block_size):
                self._pool.seal(sequence.blocks[index], self._hash(tracked, index))

    def fork(self, leader: Tracked, follower: Tracked) -> None:
        """Share the leader's pages of the prompt with the follower; or, where the follower came
        with output and that reaches further, the cached pages of all it knows.

        The prompt's last token stays to be computed again: its logits are what the follower
        samples its first token from. The last of the pages may hold tokens of the leader's own
        behind the prompt; the follower writes its own, into a copy, before it reads there.
        """
        sequence, cached = follower.sequence, self._pool.match(self._usable(follower))
        sequence.blocks = leader.sequence.blocks[: self._pages(sequence.prompt_len)]
        sequence.computed = sequence.prompt_len - 1
        if len(cached) * self.block_size > sequence.computed:
            sequence.blocks, sequence.computed = cached, len(cached) * self.block_size
        self._pool.take(sequence.blocks)

    def close(self, tracked: Tracked) -> None:
        """Give all pages back; the known tokens stay."""
        self._due.pop(tracked, None)
        self._asked.discard(tracked)
        self._pool.release(tracked.sequence.blocks)
        tracked.sequence.blocks = []
        tracked.sequence.computed = 0

    def verify(self, members: Iterable[Tracked]) -> None:
        """Raise LedgerBroken unless `members` hold the pool's references, and only to run."""
        members = list(members)
        self._pool.verify(one.sequence.blocks for one in members)
        for one in members:
            sequence, running = one.sequence, one.state is State.RUNNING
            room = len(sequence.blocks) * self.block_size
            if sequence.computed > room or (not running and room):
                raise LedgerBroken(f"{one.state}: {sequence.computed} tokens computed, room {room}")
        if not self._due.keys() <= {one for one in members if one.state is State.RUNNING}:
            raise LedgerBroken("a prefix is due to who does not run")
        if not self._asked <= set(members):
            raise LedgerBroken("files were asked for by who is not here any more")

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _usable(self, tracked: Tracked) -> list[PageHash]:
        """Hashes of pages that it could do without computing: at least one known token is left,
        since only computing gives logits. Where prompt scores are owed every position needs them.
        """
        known = len(tracked.sequence.tokens)
        return tracked.hashes[: 0 if tracked.owes_scores else (known - 1) // self.block_size]

    def _prefix(self, tracked: Tracked) -> list[PageHash]:
        """Those that are cached, on the device or in host memory."""
        usable = self._usable(tracked)
        return usable[: self._pool.reach(usable)]

    def _growth(self, tracked: Tracked, prefix: list[PageHash]) -> int:
        """Pages that its known tokens need beyond those that others hold already."""
        return self._pages(len(tracked.sequence.tokens)) - self._pool.held(prefix)

    def _writes_into_shared(self, tracked: Tracked) -> bool:
        """Only the page of the next token can be shared: later ones are not there yet."""
        blocks = tracked.sequence.blocks
        index = tracked.sequence.computed // self.block_size
        return index < len(blocks) and self._pool.needs_copy(blocks[index])

    def _unshare(self, tracked: Tracked) -> PageCopy:
        blocks = tracked.sequence.blocks
        index = tracked.sequence.computed // self.block_size
        copy = PageCopy(source=blocks[index], target=self._allocate(1)[0])
        blocks[index] = copy.target
        self._pool.release([copy.source])
        return copy

    def _allocate(self, count: int) -> list[int]:
        pages = self._pool.allocate(count)
        if pages is None:
            raise LedgerBroken(f"{count} pages were promised, {self._pool.available} are there")
        return pages

    def _hash(self, tracked: Tracked, index: int) -> PageHash:
        """The hash of full page `index`, computed once, when the page before it has one."""
        hashes = tracked.hashes
        if index == len(hashes):
            start = index * self.block_size
            parent = hashes[-1] if hashes else tracked.family.root
            hashes.append(
                page_hash(parent, tracked.sequence.tokens[start : start + self.block_size])
            )
        return hashes[index]


def check_room(pool: BlockPool, max_model_len: int) -> None:
    """Raise ConfigError where one sequence of `max_model_len` tokens would not fit the pool."""
    room = pool.num_blocks * pool.block_size
    if room < max_model_len:
        needed = -(-max_model_len // pool.block_size)
        raise ConfigError(
            f"the KV pool holds {pool.num_blocks} pages of {pool.block_size} tokens = {room}, less"
            f" than one sequence of max_model_len = {max_model_len}: give it {needed} pages or"
            f" more (cache.num_blocks, memory_gib or memory_fraction), or lower max_model_len"
            f" to {room}",
            "cache.num_blocks",
        )
