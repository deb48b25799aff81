"""What kernels are compiled with, where they are kept, and how many threads they and torch have."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import torch
from numpy.typing import NDArray

Array = NDArray[Any]
T = TypeVar("T")

BUILT_IN = (
    "emit.py",
    "jit.py",
    "lanes.py",
    "packing.py",
    "prompt_blocks.py",
    "softmax.py",
    "tiles.py",
)
"""The files whose functions become part of kernels in other files."""


def _set_up() -> None:
    """Before anything is compiled, and in this process alone: a shard inherits its environment.

    By default numba's threads would be the CPUs this process is bound to now, but a shard is
    widened when another leaves the machine; and a compiled kernel would be taken for new as long as
    its own file is, whatever those are that it calls.
    """
    here = Path(__file__).parent
    version = hashlib.sha256(b"".join((here / name).read_bytes() for name in BUILT_IN)).hexdigest()
    numba.config.THREADING_LAYER = "omp"  # torch's own pool of threads, not a second one beside it
    if "NUMBA_NUM_THREADS" not in os.environ:
        numba.config.NUMBA_NUM_THREADS = os.cpu_count() or 1
    if "NUMBA_CACHE_DIR" not in os.environ:
        numba.config.CACHE_DIR = str(here / "__pycache__" / version[:12])


_set_up()

helper: Callable[[T], T] = numba.njit(
    nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz", "arcp"}, error_model="numpy"
)
"""What a kernel calls. Sums may be taken in another order, but nothing is taken to be finite."""


def use_threads(count: int) -> None:
    """Have torch and the kernels compute with `count` threads, as far as there are CPUs.

    torch comes last: numba, as it starts, gives OpenMP in this thread all the CPUs there are.
    """
    numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))
    torch.set_num_threads(count)
