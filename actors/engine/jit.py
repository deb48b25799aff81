"""What kernels are compiled with, and how many threads they and torch have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import torch
from numpy.typing import NDArray

numba.config.THREADING_LAYER = "omp"  # torch's own pool of threads, not a second one beside it

Array = NDArray[Any]
T = TypeVar("T")

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
