"""Pages of a shard that lie in files: threads write and read them beside the steps.

No step waits for a file. What the threads did is entered into the books between two steps, and a
page counts as kept, or as come back, only then. A file that is missing, torn or damaged is a page
that is not there, and will be computed.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import get_native_id
from typing import TYPE_CHECKING

import torch

from actors.engine.fitting import Fitted
from actors.engine.host_pages import HostPages
from actors.engine.page_files import GIB, OwnFolder
from cluster.blocks import BlockPool
from cluster.config import ModelConfig
from cluster.errors import ConfigError
from cluster.folder_config import FolderConfig
from cluster.folder_tier import FileDone, FileOrder, FolderTier, PageRead, PageWrite, Read, Written

if TYPE_CHECKING:
    from actors.engine.page_codec import Bytes, PageCodec

WRITERS_NICE = 10
"""How far the writing thread stands back: the page that it writes is of use later, if ever."""

logger = logging.getLogger(__name__)


def open_folder(model: ModelConfig, fitted: Fitted, host: HostPages) -> FolderPages | None:
    """That of a model which has one. Raises ConfigError, naming the field, where it cannot be."""
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
    return FolderPages(config, codec, host)


class FolderPages:
    """The files of one shard, and the threads that know them. Owned by the thread of the engine."""

    def __init__(self, config: FolderConfig, codec: PageCodec, host: HostPages) -> None:
        """Raises ConfigError where there is no such folder, or no room in it."""
        room = int(config.gib * GIB)
        if room < codec.most:
            raise ConfigError(
                f"{config.gib:g} GiB may not hold one page of {codec.most} bytes",
                "cache.folder.gib",
            )
        self._room = room
        self._codec = codec
        self._host = host
        self._folder = OwnFolder(Path(config.path).expanduser(), config.gib)
        self._done: SimpleQueue[FileDone] = SimpleQueue()
        self._reader = ThreadPoolExecutor(1, "page-reader")
        self._writer = ThreadPoolExecutor(1, "page-writer", initializer=_stand_back)

    def ledger(self) -> FolderTier:
        """For a folder that is empty yet."""
        return FolderTier(self._room, self._codec.most)

    def exchange(self, pool: BlockPool, wait_s: float = 0.0) -> None:
        """Have done what `pool` orders, all moves that it gave out being done or under way, and
        tell it what was done; wait for so many seconds at most until there is something."""
        orders = pool.drain_orders()
        if orders:
            ready = self._host.copies_done()
            for order in orders:
                self._start(order, ready)
        for done in self._finished(wait_s):
            pool.settle(done)

    def close(self) -> None:
        """Finish what is under way, drop the rest, and remove all files."""
        for thread in (self._reader, self._writer):
            thread.shutdown(cancel_futures=True)
        self._folder.close()

    def _start(self, order: FileOrder, ready: Callable[[], None]) -> None:
        slot = self._host.memory(order.slot)
        path, done = self._folder.file(order.file), self._done
        if isinstance(order, PageRead):
            self._reader.submit(_read, order, path, self._codec, slot, ready, done)
        else:
            dropped = [self._folder.file(number) for number in order.dropped]
            self._writer.submit(_write, order, path, dropped, self._codec, slot, ready, done)

    def _finished(self, wait_s: float) -> Iterator[FileDone]:
        with suppress(Empty):
            if wait_s:
                yield self._done.get(timeout=wait_s)
            while True:
                yield self._done.get_nowait()


def _write(
    order: PageWrite,
    path: Path,
    dropped: list[Path],
    codec: PageCodec,
    slot: Bytes,
    ready: Callable[[], None],
    done: SimpleQueue[FileDone],
) -> None:
    size = None
    try:
        for each in dropped:
            each.unlink(missing_ok=True)
        ready()
        data = codec.encode(order.content, slot)
        path.write_bytes(data)
        size = len(data)
    except Exception as error:  # noqa: BLE001 - whatever it was, the page is just not kept
        logger.warning("a page is not kept in %s: %s", path.parent, error)
        with suppress(OSError):
            path.unlink(missing_ok=True)
    done.put(Written(order.content, size))


def _read(
    order: PageRead,
    path: Path,
    codec: PageCodec,
    slot: Bytes,
    ready: Callable[[], None],
    done: SimpleQueue[FileDone],
) -> None:
    whole = False
    try:
        ready()
        codec.decode(order.content, path.read_bytes(), slot)
        whole = True
    except Exception as error:  # noqa: BLE001 - whatever it was, the page is computed instead
        logger.warning("a page in %s cannot be used: %s", path, error)
        with suppress(OSError):
            path.unlink(missing_ok=True)
    done.put(Read(order.content, whole))


def _stand_back() -> None:
    """The system's scheduler lets a step go first; elsewhere threads have no priority of theirs."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, get_native_id(), WRITERS_NICE)
