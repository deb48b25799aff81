"""The folder of one run of `serve`: its lock tells the living's from what the killed have left.

The lock is one of an open file, which is handed on to the child that ends Ray's processes: so it is
held until both are dead, however they die, and with them all who use the folder. Rejected: to ask
whether a process of a noted number lives, since numbers come again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import monotonic

PLACE = Path("/tmp")
"""Sockets lie in the folder, whose paths have to be short: HAProxy takes 97 characters, 69 of which
Serve adds."""

PREFIX = "shoal-run-"
OWNER = "owner.lock"

SWEEPING_S = 5.0
"""After so long no further folder is removed: somebody waits for the start."""


class RunFolder:
    """An empty folder within `place`, held through the descriptor `lock` and all its copies."""

    def __init__(self, place: Path = PLACE) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        self.lock = _lock(self.path)

    def remove(self) -> None:
        """Nobody uses it any more."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)

    def keep(self) -> None:
        """Somebody is to read what is in it: no start removes it."""
        (self.path / OWNER).unlink()
        os.close(self.lock)


def _lock(folder: Path) -> int:
    """It has its name only once it is held, so that who sweeps never finds it free too early."""
    unnamed = folder / "new.lock"
    lock = os.open(unnamed, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    unnamed.rename(folder / OWNER)
    return lock


def sweep(place: Path = PLACE, now: Callable[[], float] = monotonic) -> None:
    """Remove this user's folders in `place` whose lock nobody holds; those without one stay."""
    give_up = now() + SWEEPING_S
    for folder in place.glob(f"{PREFIX}*/"):
        if now() > give_up:
            return
        with contextlib.suppress(OSError):  # it is held, kept, or gone meanwhile
            _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    if folder.lstat().st_uid != os.getuid():
        return
    lock = os.open(folder / OWNER, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
