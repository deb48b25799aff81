"""A folder of its own for one shard's page files: made for it, gone with it, swept if it is killed.

Whoever has a folder holds a lock in it, which the system lets go of when the process dies, however
it dies. So the next shard that comes can tell whose folders are left over, and removes them.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import weakref
from pathlib import Path

from filelock import FileLock, Timeout

from cluster.errors import ConfigError

PREFIX = "shoal-pages-"
OWNER = "owner.lock"

GIB = 2**30


class OwnFolder:
    """An empty folder within `parent`, whose name nobody else has, as long as this object lives.

    Raises ConfigError where `parent` cannot be written to, or has less than `gib` free.
    """

    def __init__(self, parent: Path, gib: float) -> None:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            with FileLock(parent / f"{PREFIX}sweeping.lock"):
                _sweep(parent)
                self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
                lock = FileLock(self.path / OWNER, thread_local=False)
                lock.acquire()
        except OSError as error:
            raise ConfigError(
                f"{parent} cannot be written to: {error}", "cache.folder.path"
            ) from error
        self.close = weakref.finalize(self, _remove, self.path, lock)
        free = shutil.disk_usage(parent).free
        if free < gib * GIB:
            self.close()
            raise ConfigError(
                f"{gib:g} GiB are asked for, {free / GIB:.3g} GiB are free in {parent}",
                "cache.folder.gib",
            )


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*/"):
        lock = FileLock(folder / OWNER)
        with contextlib.suppress(Timeout, OSError):  # it lives, or is not ours to remove
            lock.acquire(timeout=0)
            _remove(folder, lock)


def _remove(folder: Path, lock: FileLock) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock.release()
