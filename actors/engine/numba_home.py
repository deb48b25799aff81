"""Where numba keeps compiled kernels, and how many threads it may have: set before it is imported.

By default its threads would be the CPUs this process is bound to now, but a shard is widened when
another leaves the machine; and a compiled kernel would be taken for new as long as its own file is,
whatever those are that it calls.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

BUILT_IN = (
    "dots.py",
    "emit.py",
    "jit.py",
    "lanes.py",
    "multipliers.py",
    "packing.py",
    "prompt_blocks.py",
    "softmax.py",
    "squares.py",
    "tiles.py",
)
"""The files whose functions become part of kernels in other files."""


def set_up() -> None:
    here = Path(__file__).parent
    version = hashlib.sha256(b"".join((here / name).read_bytes() for name in BUILT_IN)).hexdigest()
    os.environ.setdefault("NUMBA_NUM_THREADS", str(os.cpu_count() or 1))
    os.environ.setdefault("NUMBA_CACHE_DIR", str(here / "__pycache__" / version[:12]))
