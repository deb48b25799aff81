"""How fast the squares multiply that compiled programs are made of, where these are Shoal's own.

torch's products are no limit there: on processors without AMX they reach half of what the
instructions do. Squares that stay in the cache come within a few percent of it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from actors.engine import inductor, products

ROWS, DEPTH = 256, 2 * products.STRETCH
"""Of a square. Its columns fit the first cache, and its rows come one after another."""

CALLS = 200
TRIES = 7


def own_products(integers: bool) -> float:
    """Operations a second of all of torch's threads, in bfloat16 or in integers of eight bits; 0
    where programs multiply otherwise."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None or not inductor.multiplies_in_vectors():
        return 0.0
    with tempfile.TemporaryDirectory() as folder:
        numbers = products.BYTES if integers else products.PAIRS
        multiply = _loaded(Path(folder), compiler, numbers.name)
        threads = torch.get_num_threads()
        with ThreadPoolExecutor(threads) as pool:
            best_s = min(_timed(pool, multiply, threads) for _ in range(TRIES))
    return threads * CALLS * 2 * ROWS * DEPTH * products.COLUMNS / best_s


def _loaded(folder: Path, compiler: str, name: str) -> Any:
    products.write_object(folder)
    library = folder / "products.so"
    made = (compiler, "-shared", "-o", str(library), str(folder / products.OBJECT))
    subprocess.run(made, check=True)
    function = ctypes.CDLL(str(library))[name]
    function.argtypes = [ctypes.c_int64] * 6 + [ctypes.c_bool] + [ctypes.c_void_p] * 3
    function.restype = None
    return function


def _timed(pool: ThreadPoolExecutor, multiply: Any, threads: int) -> float:
    """Seconds until all threads are done; the calls let each other run."""
    began = time.perf_counter()
    list(pool.map(lambda _: _multiply(multiply), range(threads)))
    return time.perf_counter() - began


def _multiply(multiply: Any) -> None:
    columns = products.COLUMNS
    rows, packed = torch.zeros(ROWS, DEPTH, 2), torch.zeros(DEPTH, columns, 2)  # bytes to spare
    sums = torch.zeros(ROWS, columns)
    sizes = ROWS, columns, DEPTH, DEPTH, columns, columns
    places = rows.data_ptr(), packed.data_ptr(), sums.data_ptr()
    for _ in range(CALLS):
        multiply(*sizes, False, *places)
