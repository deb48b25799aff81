"""What a child process of ours owes to its parent: it finds the same code, and ends with it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
"""Linux, prctl(2): the signal that this process gets when its parent ends."""

ROOT = Path(__file__).resolve().parents[1]


def python_path() -> str:
    """The child's PYTHONPATH: this checkout before whatever the parent was given."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def end_with_parent() -> None:
    """Called in the child: it is killed when the thread that started it ends, however that is."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
