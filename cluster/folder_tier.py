"""Which pages the files of a shard's folder keep, and what is being written and read; numbers only.

A file is written from a slot of host memory and read into one, by threads beside the steps. So a
page is here only once its file is whole, and a file that is being read is not removed. No number
names two files, so it does not matter in which order the threads come to them.

A disk that has gone bad fails order after order, each after it made somebody wait. So after some in
a row the tier is given up: it forgets what it has, and takes nothing until it is told to try again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count

from cluster.errors import LedgerBroken
from cluster.messages import PageHash

IN_FLIGHT = 64
"""Pages being written at once, at most: their slots of host memory cannot be given away."""

FAILURES = 8
"""Orders that fail in a row, but for want of room, after which the tier is given up."""


@dataclass(frozen=True, slots=True)
class PageWrite:
    """Remove the files `dropped`, then write `slot` of host memory to a new `file`."""

    content: PageHash
    slot: int
    file: int
    dropped: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PageRead:
    """Read `file`, which was written with `content`, into `slot` of host memory."""

    content: PageHash
    slot: int
    file: int


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a PageWrite: a file of `size` bytes, or, with None, nothing; `full` where that
    is for want of room on the disk."""

    content: PageHash
    size: int | None
    full: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """What became of a PageRead: where the file was not `whole`, nothing of it may be used."""

    content: PageHash
    whole: bool


FileOrder = PageWrite | PageRead
FileDone = Written | Read


@dataclass(frozen=True, slots=True)
class FolderStats:
    """Files that are whole and their bytes; since the start, files written, those that could not
    be, pages read back, and files that were found missing or damaged; and how often all of it was
    given up."""

    pages: int
    used_bytes: int
    written: int
    failed: int
    read: int
    corrupt: int
    given_up: int


@dataclass(frozen=True, slots=True)
class _File:
    number: int
    size: int


class FolderTier:
    """The ledger of files of at most `most` bytes each, `room` bytes in all; by default of none."""

    def __init__(self, room: int = 0, most: int = 1) -> None:
        self._room = room
        self._most = most
        self._files: OrderedDict[PageHash, _File] = OrderedDict()  # least recently used first
        self._writing: dict[PageHash, int] = {}
        self._reading: set[PageHash] = set()
        self._numbers = count()
        self._used = 0
        self._written = self._failed = self._read = self._corrupt = 0
        self._failing = 0
        self._given_up = 0
        self._left: list[PageHash] = []
        self._orphans: list[int] = []
        self._resting = False

    def __contains__(self, content: PageHash) -> bool:
        return content in self._files

    def __len__(self) -> int:
        return len(self._files)

    @property
    def fits(self) -> int:
        """Pages that it can keep at least, however badly they compress."""
        return self._room // self._most

    @property
    def resting(self) -> bool:
        """Whether it was given up."""
        return self._resting

    @property
    def may_write(self) -> bool:
        return len(self._writing) < IN_FLIGHT and not self._resting

    @property
    def writing(self) -> frozenset[PageHash]:
        return frozenset(self._writing)

    @property
    def reading(self) -> frozenset[PageHash]:
        return frozenset(self._reading)

    def contents(self) -> Iterable[PageHash]:
        """All that it keeps, the least recently used first."""
        return self._files.keys()

    def is_writing(self, content: PageHash) -> bool:
        return content in self._writing

    def touch(self, content: PageHash) -> None:
        """It is of use: others go first."""
        self._files.move_to_end(content)

    def write(self, content: PageHash, slot: int) -> tuple[PageWrite, tuple[PageHash, ...]] | None:
        """Begin to write, and tell what is dropped for it; None where that is not enough, or too
        much is under way. Raises LedgerBroken for what is here or on its way."""
        if content in self._files or content in self._writing:
            raise LedgerBroken(f"page {content.hex()} is written twice")
        victims = self._victims() if self.may_write else None
        if victims is None:
            return None
        dropped = (*self._orphans, *[self._forget(victim) for victim in victims])
        self._orphans.clear()
        self._writing[content] = next(self._numbers)
        return PageWrite(content, slot, self._writing[content], dropped), victims

    def read(self, content: PageHash, slot: int) -> PageRead:
        """Begin to read what is here. Raises LedgerBroken where it is not, or is read already."""
        if content not in self._files or content in self._reading:
            raise LedgerBroken(f"page {content.hex()} is to be read, and is no file or read twice")
        self._reading.add(content)
        return PageRead(content, slot, self._files[content].number)

    def settle(self, done: FileDone) -> None:
        """Enter what became of an order.

        Where the disk was full, what is not used yet is taken to be missing on it. What could not
        be read is forgotten. Raises LedgerBroken for what was not ordered.
        """
        if isinstance(done, Written):
            self._settle_write(done)
        else:
            self._settle_read(done)

    def try_again(self) -> None:
        """It has rested: the next failure gives it up again, the next success is a new start."""
        self._resting = False

    def drain_left(self) -> tuple[PageHash, ...]:
        """What was forgotten since the last call because all was."""
        left, self._left = tuple(self._left), []
        return left

    def stats(self) -> FolderStats:
        return FolderStats(
            pages=len(self._files),
            used_bytes=self._used,
            written=self._written,
            failed=self._failed,
            read=self._read,
            corrupt=self._corrupt,
            given_up=self._given_up,
        )

    def verify(self) -> None:
        """Raise LedgerBroken unless all files fit, each is one page's, and those read are here."""
        reserved = self._used + self._most * len(self._writing)
        counted = sum(file.size for file in self._files.values())
        if counted != self._used or reserved > self._room:
            raise LedgerBroken(f"files take {counted} bytes, {reserved} in all, of {self._room}")
        if self._files.keys() & self._writing.keys() or not self._reading <= self._files.keys():
            raise LedgerBroken("a page is written that is here, or read that is not")
        numbers = [*self._writing.values(), *(file.number for file in self._files.values())]
        if len(set(numbers)) < len(numbers):
            raise LedgerBroken(f"two pages have one file: {numbers}")

    def _settle_write(self, done: Written) -> None:
        number = self._writing.pop(done.content, None)
        if number is None:
            raise LedgerBroken(f"page {done.content.hex()} was written without order")
        if done.size is None:
            self._failed += 1
            if done.full:
                self._room = self._used + self._most * len(self._writing)
            else:
                self._count_failure()
        else:
            self._count_success()
            self._written += 1
            self._files[done.content] = _File(number, done.size)
            self._used += done.size

    def _settle_read(self, done: Read) -> None:
        if done.content not in self._reading:
            raise LedgerBroken(f"page {done.content.hex()} was read without order")
        self._reading.remove(done.content)
        if done.whole:
            self._count_success()
            self._read += 1
        else:
            self._corrupt += 1
            self._forget(done.content)
            self._count_failure()

    def _count_success(self) -> None:
        """What was under way when it was given up, and went well, is no reason to trust it."""
        if not self._resting:
            self._failing = 0

    def _count_failure(self) -> None:
        self._failing += 1
        if self._failing >= FAILURES and not self._resting:
            self._give_up()

    def _give_up(self) -> None:
        """Files that nobody reads are removed with the next that is written."""
        self._resting = True
        self._given_up += 1
        left = list(self._unread())
        self._left += left
        self._orphans += [self._forget(content) for content in left]

    def _victims(self) -> tuple[PageHash, ...] | None:
        """What has to go, the least recently used first, for one more file."""
        lacking = self._used + self._most * (len(self._writing) + 1) - self._room
        victims, unread = [], self._unread()
        while lacking > 0:
            victim = next(unread, None)
            if victim is None:
                return None
            lacking -= self._files[victim].size
            victims.append(victim)
        return tuple(victims)

    def _unread(self) -> Iterator[PageHash]:
        return (content for content in self._files if content not in self._reading)

    def _forget(self, content: PageHash) -> int:
        file = self._files.pop(content)
        self._used -= file.size
        return file.number
