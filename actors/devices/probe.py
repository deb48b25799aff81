"""How fast this process copies and computes right now: a probe of some hundredths of a second."""

from __future__ import annotations

import time

import numpy as np

_COPY_BYTES = 32 * 2**20
_SIZE = 512
_ROUNDS = 3


def copy_and_compute() -> float:
    """Seconds of the fastest of some rounds; fresh memory, since that is what a policy moves."""
    return min(_round() for _ in range(_ROUNDS))


def _round() -> float:
    begun = time.perf_counter()
    source = np.ones(_COPY_BYTES, dtype=np.uint8)
    matrix = source[: 4 * _SIZE * _SIZE].copy().view(np.float32).reshape(_SIZE, _SIZE)
    source.copy()
    matrix @ matrix
    return time.perf_counter() - begun
