"""A folder of its own for one shard's page files: made for it, closed where the shard leaves.

Whoever has a folder holds a lock in it, which the system lets go of when the process dies, however
it dies. So the next shard that comes to the same place can tell whose folders are left over by
shards that were killed, and removes them.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
import weakref
from pathlib import Path

from filelock import FileLock, Timeout

from cluster.errors import ConfigError

PREFIX = "shoal-pages-"
OWNER = "owner.lock"

SWEEPING_S = 5.0
"""So long at most waits who only wants to tidy up: the lock's owner may be stopped."""

HOPELESS = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)
"""What is wrong with a path, and not with the disk at this moment."""


class OwnFolder:
    """An empty folder within `parent`, whose name nobody else has, until it is closed or this
    object is gone. There were `free` bytes for it.

    Raises ConfigError where `parent` can never be written to, OSError where it cannot be now.
    """

    def __init__(self, parent: Path) -> None:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            with _sweeping(parent):
                _sweep(parent)
                self.free = shutil.disk_usage(parent).free
                self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
                lock = FileLock(self.path / OWNER, thread_local=False)
                lock.acquire()
        except OSError as error:
            if error.errno not in HOPELESS:
                raise
            raise ConfigError(
                f"{parent} cannot be written to: {error}", "cache.folder.path"
            ) from error
        self.close = weakref.finalize(self, _remove, self.path, lock)


def sweep(parent: Path) -> None:
    """Remove the folders that are left over in `parent`, if there is one. Raises OSError where it
    cannot be written to, or another one sweeps it for long."""
    if parent.is_dir():
        with _sweeping(parent).acquire(timeout=SWEEPING_S):
            _sweep(parent)


def _sweeping(parent: Path) -> FileLock:
    """Held too by who makes a folder: one that has no lock yet is not left over."""
    return FileLock(parent / f"{PREFIX}sweeping.lock")


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*/"):
        lock = FileLock(folder / OWNER)
        with contextlib.suppress(Timeout, OSError):  # it lives, or is not ours to remove
            lock.acquire(timeout=0)
            _remove(folder, lock)


def _remove(folder: Path, lock: FileLock) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock.release()
