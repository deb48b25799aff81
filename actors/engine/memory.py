"""What a shard asks of the system's memory, so that no step has to wait for it (Linux).

Memory that a process gets is none until it is first written: then the system clears a page and puts
it there, which in a virtual machine can take longer than what is computed meanwhile. Measured
(docs/performance.md): a fifth of a step of prompts, a tenth of a step of many decodes.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, Thread
from time import monotonic, sleep
from typing import Any

import torch
from torch import Tensor

AHEAD = 2**30
"""Bytes of a pool, up to half of it, that are backed before they are needed: forty thousand tokens
of the default model. An idle shard holds so much more."""

SMALL = 64 * 2**20
"""Bytes of a pool that is not worth a thread."""

QUIET_S = 0.02
"""Without a step for so long a shard has time for it: what it is behind with, steps do themselves.
Beside them it would take as much from them."""

AT_ONCE = 2 * 2**20
"""Bytes that are backed by one call, of one layer's keys or values."""

POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux 5.14: as if every page were written, and nothing is changed."""

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
"""`mallopt`'s numbers, malloc.h of the GNU library."""

LARGEST_KEPT = 32 * 2**20
"""Bytes: the largest MMAP_THRESHOLD that the library takes."""

MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+ *(.*)")
"""The first line of each in /proc/self/smaps: addresses, rights, and the file."""

_libc: Any = ctypes.CDLL(None, use_errno=True)


def huge_zeros(elements: int, dtype: torch.dtype) -> Tensor:
    """Zeros that take memory only where they are written, in huge pages if the system has some."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, elements * dtype.itemsize, flags=private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype)


def keep_freed() -> None:
    """What is freed from now on stays with the process: the next step needs as much again."""
    if mallopt := getattr(_libc, "mallopt", None):
        mallopt(MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
        mallopt(TOP_PAD, LARGEST_KEPT)


def give_back() -> None:
    """What was freed so far goes back to the system."""
    if trim := getattr(_libc, "malloc_trim", None):
        trim(0)


def drop_read(folder: Path) -> None:
    """What was only read of files in `folder`, mapped here, is in this process's memory no more;
    where it is looked at again, the system brings it back."""
    for begin, size in _only_read(folder.resolve()):
        _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


def _only_read(folder: Path) -> Iterator[tuple[int, int]]:
    """Address and size of private mappings in which no page is a copy that differs from the file:
    a program's loader makes some, and then takes the right to write away."""
    smaps = Path("/proc/self/smaps")
    found = None
    for line in smaps.read_text(errors="surrogateescape").splitlines() if smaps.exists() else ():
        if mapping := MAPPING.match(line):
            begin, end = (int(mapping[part], 16) for part in (1, 2))
            inside = mapping[3] == "r--p" and Path(mapping[4]).is_relative_to(folder)
            found = (begin, end - begin) if inside else None
        elif line.startswith(("Anonymous:", "Swap:")) and line.split()[1] != "0":
            found = None
        elif found and line.startswith("VmFlags:"):  # the last line of a mapping
            yield found


class Backing:
    """Has the pages of a pool backed `AHEAD` of those in use, by a thread, while no step runs."""

    def __init__(self, rows: Iterable[Tensor]) -> None:
        """`rows`: the memory of a pool on a CPU, `[pages, bytes]` each; on a device there is
        nothing to do."""
        self._rows = tuple(rows)
        self._pages = len(self._rows[0])
        page_bytes = sum(each.shape[1] for each in self._rows)
        worth = self._rows[0].device.type == "cpu" and self._pages * page_bytes >= SMALL
        self._ahead = min(AHEAD // page_bytes, self._pages // 2) if worth else 0
        self._stride = max(1, AT_ONCE // max(each.shape[1] for each in self._rows))
        self._lock = Lock()
        self._quiet_from = monotonic()
        self._works = False
        self.backed = self._wanted = 0
        self._reach(0)

    @contextmanager
    def writing(self, page: int) -> Iterator[None]:
        """Around a step that writes to no page behind this one."""
        self._quiet_from = math.inf
        try:
            yield
        finally:
            self._quiet_from = monotonic() + QUIET_S
        self._reach(page)

    def _reach(self, page: int) -> None:
        with self._lock:
            self._wanted = max(self._wanted, min(page + self._ahead, self._pages))
            behind = self._wanted - self.backed
            if self._works or not self._ahead or behind <= self._ahead // 8:
                return
            self._works = True
        Thread(target=self._work, name="backing", daemon=True).start()

    def _work(self) -> None:
        while self._is_behind():
            end = min(self.backed + self._stride, self._wanted)
            if all(self._back_in_quiet(rows[self.backed : end]) for rows in self._rows):
                self.backed = end
            else:
                self._ahead = 0  # the kernel cannot, and is not asked again

    def _is_behind(self) -> bool:
        with self._lock:
            self._works = bool(self._ahead) and self.backed < self._wanted
            return self._works

    def _back_in_quiet(self, memory: Tensor) -> bool:
        while (left_s := self._quiet_from - monotonic()) > 0:
            sleep(min(left_s, QUIET_S))
        return _back(memory)


def _back(memory: Tensor) -> bool:
    """Whether the system did. The call lets other threads of Python go on."""
    begin = memory.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    size = memory.data_ptr() + memory.numel() - begin
    return not _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), POPULATE_WRITE)
