"""Pages of a shard that lie in files: threads write and read them beside the steps.

No step waits for a file. What the threads did is entered into the books between two steps, and a
page counts as kept, or as come back, only then. A file that is missing, torn or damaged is a page
that is not there, and will be computed.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import get_native_id
from time import monotonic
from typing import TYPE_CHECKING

import torch

from actors.engine.fitting import Fitted
from actors.engine.host_pages import HostPages
from actors.page_files import OwnFolder
from cluster.blocks import BlockPool
from cluster.config import ModelConfig
from cluster.errors import ConfigError
from cluster.folder_config import FolderConfig
from cluster.folder_tier import FileDone, FileOrder, FolderTier, PageRead, PageWrite, Read, Written

if TYPE_CHECKING:
    from actors.engine.page_codec import Bytes, PageCodec

GIB = 2**30

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What a write fails with where the disk has no more for it."""

WRITERS_NICE = 10
"""How far the writing thread stands back: the page that it writes is of use later, if ever."""

REST_S = 60.0
"""For so long a disk that fails again and again is left alone, before it is tried again."""

logger = logging.getLogger(__name__)


def open_folder(model: ModelConfig, fitted: Fitted, host: HostPages) -> FolderPages | None:
    """That of a model which has one; None where the disk fails now, since a shard without files is
    better than no shard. Raises ConfigError, naming the field, where it can never be."""
    config = model.cache.folder
    if config is None:
        return None
    if not fitted.host_slots:
        raise ConfigError(
            "pages from cache.folder come back through host memory, of which there is none:"
            " say how much",
            "cache.host_gib",
        )
    dtype = fitted.cache.dtype
    if config.int8 and (model.deterministic or dtype == torch.float32):
        mode = "deterministic" if model.deterministic else "float32"
        raise ConfigError(
            f"a page that was kept in eight bits is not what it was, and {mode} promises that",
            "cache.folder.int8",
        )
    try:
        from actors.engine.page_codec import PageCodec
    except ImportError as error:
        raise ConfigError(
            f"{error}: install Shoal with its extra, folder", "cache.folder"
        ) from error
    codec = PageCodec(fitted.layers, fitted.cache.block_size, dtype, config.int8)
    try:
        return FolderPages(config, codec, host)
    except OSError as error:
        logger.warning("serving without files in %s: %s", config.path, error)
        return None


class FolderPages:
    """The files of one shard, and the threads that know them. Owned by the thread of the engine.

    With `close`, or with this object, go the files; the threads end once they have done what was
    begun.
    """

    def __init__(self, config: FolderConfig, codec: PageCodec, host: HostPages) -> None:
        """Less room than asked for has to do. Raises ConfigError where one page may not fit what is
        asked for, and what OwnFolder raises."""
        room = int(config.gib * GIB)
        if room < codec.most:
            raise ConfigError(
                f"{config.gib:g} GiB may not hold one page of {codec.most} bytes",
                "cache.folder.gib",
            )
        self._folder = OwnFolder(Path(config.path).expanduser())
        if self._folder.free < room:
            free = f"{self._folder.free / GIB:.3g} GiB of {config.gib:g}"
            logger.warning("%s has room for %s: files take no more", config.path, free)
        self._tier = FolderTier(min(room, self._folder.free), codec.most)
        self._rests_until: float | None = None
        self._host = host
        self._under_way = 0
        self._clerk = _Clerk(self._folder.path, codec)
        self._reader = ThreadPoolExecutor(1, "page-reader")
        self._writer = ThreadPoolExecutor(1, "page-writer", initializer=_stand_back)

    @property
    def busy(self) -> bool:
        """Whether anything is under way, or done and not told."""
        return self._under_way > 0

    def close(self) -> None:
        """Remove all files; for any thread. What is ordered afterwards fails, as on a bad disk."""
        self._folder.close()

    def ledger(self) -> FolderTier:
        """Of the folder, which is empty yet."""
        return self._tier

    def exchange(self, pool: BlockPool, wait_s: float = 0.0) -> None:
        """Have done what `pool` orders, all moves that it gave out being done or under way, and
        tell it what was done; wait for so many seconds at most until there is something."""
        if self._tier.resting:
            self._rest(monotonic())
        orders = pool.drain_orders()
        if orders:
            ready = self._host.copies_done()
            for order in orders:
                self._start(order, ready)
        for done in self._finished(wait_s):
            self._under_way -= 1
            pool.settle(done)

    def _rest(self, now: float) -> None:
        if self._rests_until is None:
            self._rests_until = now + REST_S
            if self._tier.stats().given_up == 1:
                path = self._folder.path
                logger.warning("%s fails: without files for %g s at a time", path, REST_S)
        elif now >= self._rests_until:
            self._rests_until = None
            self._tier.try_again()

    def _start(self, order: FileOrder, ready: Callable[[], None]) -> None:
        self._under_way += 1
        slot = self._host.memory(order.slot)
        if isinstance(order, PageRead):
            self._reader.submit(self._clerk.read, order, slot, ready)
        else:
            self._writer.submit(self._clerk.write, order, slot, ready)

    def _finished(self, wait_s: float) -> Iterator[FileDone]:
        with suppress(Empty):
            if wait_s:
                yield self._clerk.done.get(timeout=wait_s)
            while True:
                yield self._clerk.done.get_nowait()


class _Clerk:
    """What the threads do; it knows the folder by its path, and does not keep it alive."""

    def __init__(self, path: Path, codec: PageCodec) -> None:
        self.done: SimpleQueue[FileDone] = SimpleQueue()
        self._path = path
        self._codec = codec
        self._told: set[str] = set()

    def write(self, order: PageWrite, slot: Bytes, ready: Callable[[], None]) -> None:
        """Remove, then write. Whatever goes wrong, the page is just not kept."""
        size, full, file = None, False, self._file(order.file)
        for number in order.dropped:
            self._remove(self._file(number))
        try:
            ready()
            data = self._codec.encode(order.content, slot)
            file.write_bytes(data)
            size = len(data)
        except Exception as error:  # noqa: BLE001 - the books wait for an answer to each order
            full = isinstance(error, OSError) and error.errno in FULL
            self._give_up(file, error)
        self.done.put(Written(order.content, size, full))

    def read(self, order: PageRead, slot: Bytes, ready: Callable[[], None]) -> None:
        """Fill the slot. Whatever goes wrong, the page is computed instead."""
        whole, file = False, self._file(order.file)
        try:
            ready()
            self._codec.decode(order.content, file.read_bytes(), slot)
            whole = True
        except Exception as error:  # noqa: BLE001 - likewise
            self._give_up(file, error)
        self.done.put(Read(order.content, whole))

    def _file(self, number: int) -> Path:
        return self._path / str(number)

    def _give_up(self, file: Path, error: Exception) -> None:
        self._warn(file, "there is no page", error)
        self._remove(file)

    def _remove(self, file: Path) -> None:
        """One that cannot be removed lies there until the folder goes."""
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            self._warn(file, "it stays", error)

    def _warn(self, file: Path, what: str, error: Exception) -> None:
        """Once for each cause: a disk that fails does so at every page."""
        cause = f"{what}: {getattr(error, 'strerror', None) or error}"
        if cause not in self._told:
            self._told.add(cause)
            logger.warning("%s: %s; not told again", file, cause)


def _stand_back() -> None:
    """The system's scheduler lets a step go first; elsewhere threads have no priority of theirs."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, get_native_id(), WRITERS_NICE)
