"""End every process that descends from this one, and no other."""

from __future__ import annotations

import contextlib
import ctypes
import sys

import psutil

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
KILL_PATIENCE_S = 5.0


def adopt_orphans() -> None:
    """Have orphaned descendants become children of this process instead of init's.

    Ray ends its workers abruptly, and what they had started, such as HAProxy, would otherwise
    leave the tree that `end_descendants` walks. Linux only; elsewhere orphans are not adopted.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_descendants() -> int:
    """SIGKILL every descendant until none is left; how many there were."""
    ended = 0
    while descendants := alive(psutil.Process().children(recursive=True)):
        for process in descendants:
            _kill(process)
        ended += len(descendants)
        _, stubborn = psutil.wait_procs(descendants, timeout=KILL_PATIENCE_S)
        if stubborn:
            break  # in the kernel, waiting for a device: nothing more can be done
    return ended


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Not those that only wait to be reaped, which may be the business of the machine's first."""
    return [process for process in processes if _status(process) != psutil.STATUS_ZOMBIE]


def _status(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.NoSuchProcess:
        return str(psutil.STATUS_ZOMBIE)


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):  # it ended by itself meanwhile
        process.kill()
