"""A shard's pool is backed ahead of its steps, while none runs; what was only read is let go."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from actors.engine import memory
from actors.engine.memory import Backing, huge_zeros

PAGES, ROW = 64, 65_536


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Keys and values of one layer: 8 MiB, of which 2 are backed ahead."""
    monkeypatch.setattr(memory, "SMALL", 1)
    monkeypatch.setattr(memory, "AHEAD", 16 * 2 * ROW)
    monkeypatch.setattr(memory, "AT_ONCE", 4 * ROW)
    return [huge_zeros(PAGES * ROW, torch.uint8).view(PAGES, ROW) for _ in range(2)]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def test_it_is_backed_ahead_of_what_steps_write(rows: list[Tensor]) -> None:
    backing = Backing(rows)
    until(lambda: backing.backed == 16)
    with backing.writing(20):
        pass
    until(lambda: backing.backed == 36)
    with backing.writing(PAGES - 1):
        pass
    until(lambda: backing.backed == PAGES)


def test_what_is_backed_costs_a_step_no_faults(rows: list[Tensor]) -> None:
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    small_pages = mmap.mmap(-1, PAGES * ROW, flags=private)  # each of its pages is a fault
    rows = [torch.frombuffer(small_pages, dtype=torch.uint8).view(PAGES, ROW)]
    backing = Backing(rows)
    until(lambda: backing.backed == PAGES // 2)
    expected = PAGES // 2 * ROW // mmap.PAGESIZE
    begun = faults()
    rows[0][: PAGES // 2].fill_(1)
    between = faults()
    rows[0][PAGES // 2 :].fill_(1)
    assert between - begun < expected // 2 < faults() - between


def test_what_pages_hold_stays(rows: list[Tensor]) -> None:
    rows[0][:20] = 7
    rows[1][5] = 9
    backing = Backing(rows)
    until(lambda: backing.backed == 16)
    assert (rows[0][:20] == 7).all()
    assert not rows[0][20:].any()
    assert (rows[1][5] == 9).all()
    assert not rows[1][6:].any()


def test_it_rests_while_a_step_runs(rows: list[Tensor]) -> None:
    backing = Backing(rows)
    until(lambda: backing.backed == 16)
    with backing.writing(40):
        backing._reach(40)
        time.sleep(2 * memory.QUIET_S)
        assert backing.backed == 16
    until(lambda: backing.backed == 56)


class Asked:
    """The C library, and how often it was asked to back memory."""

    def __init__(self) -> None:
        self.times = 0

    def madvise(self, *asked: Any) -> int:
        self.times += 1
        answer: int = ctypes.CDLL(None).madvise(*asked)
        return answer


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    library = Asked()
    monkeypatch.setattr(memory, "_libc", library)
    return library


def test_a_system_that_cannot_is_asked_once(
    rows: list[Tensor], asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "POPULATE_WRITE", 9_999)
    backing = Backing(rows)
    until(lambda: not backing._works)
    with backing.writing(40):
        pass
    assert not backing._works
    assert (asked.times, backing.backed) == (1, 0)
    assert not rows[0].any()


def test_a_system_that_can_is_asked_for_each_stretch_of_keys_and_of_values(
    rows: list[Tensor], asked: Asked
) -> None:
    backing = Backing(rows)
    until(lambda: backing.backed == 16)
    assert asked.times == 2 * 16 // 4


def test_small_pools_and_devices_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "Thread", None)  # nor is a thread started to find that out
    small = [torch.zeros(4, 16, dtype=torch.uint8)]
    elsewhere = [torch.zeros(2, memory.SMALL, dtype=torch.uint8, device="meta")]
    for rows in (small, elsewhere):
        backing = Backing(rows)
        with backing.writing(1):
            pass
        assert backing.backed == 0
        assert not backing._works


def resident(address: int) -> int:
    """KiB in memory of the mapping that begins there."""
    lines = iter(Path("/proc/self/smaps").read_text(errors="replace").splitlines())
    next(line for line in lines if line.startswith(f"{address:x}-"))
    return int(next(line for line in lines if line.startswith("Rss:")).split()[1])


@contextmanager
def mapped(file: Path, rights: int) -> Iterator[tuple[mmap.mmap, int]]:
    """A private mapping of all of a file, and its address."""
    with file.open("rb") as opened:
        found = mmap.mmap(opened.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=rights)
    view = np.frombuffer(found, np.uint8)
    address = view.__array_interface__["data"][0]
    del view
    with found:
        yield found, address


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """One in the folder that is meant, and one beside it."""
    inside, outside = tmp_path / "folder" / "inside", tmp_path / "outside"
    inside.parent.mkdir()
    for file in (inside, outside):
        file.write_bytes(bytes(range(256)) * 4096)
    return inside, outside


def test_what_was_only_read_of_files_in_a_folder_is_dropped_and_comes_back(
    files: tuple[Path, Path],
) -> None:
    with mapped(files[0], mmap.PROT_READ) as inside, mapped(files[1], mmap.PROT_READ) as outside:
        contents = inside[0][:], outside[0][:]
        assert resident(inside[1]) == resident(outside[1]) == 1024
        memory.drop_read(files[0].parent)
        assert (resident(inside[1]), resident(outside[1])) == (0, 1024)
        assert (inside[0][:], outside[0][:]) == contents


def test_names_of_files_need_not_be_text(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    (folder / "file").write_bytes(bytes(4096))
    with mapped(folder / "file", mmap.PROT_READ) as (found, address):
        assert (found[0], resident(address)) == (0, 4)
        memory.drop_read(folder)
        assert resident(address) == 0


def test_what_differs_from_the_file_is_kept(files: tuple[Path, Path]) -> None:
    """A mapping that may not be written any more, but was."""
    with mapped(files[0], mmap.PROT_READ | mmap.PROT_WRITE) as (found, address):
        found[5000] = 77
        found[70_000] = 78
        for rights in (mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE):
            memory._libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(found)), rights)
            memory.drop_read(files[0].parent)
            assert (found[5000], found[70_000]) == (77, 78)
