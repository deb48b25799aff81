"""What a server's processes took of the machine during a run: CPU, split, and memory.

Read from /proc (Linux). A process is the engine's if its title begins with the engine's, or a
process above it does; every other process of the server's tree is framework.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

PROC = Path("/proc")
GONE = (FileNotFoundError, ProcessLookupError)
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
GIB = 2**30

SAMPLE_S = 1.0
PSS_EVERY = 5
"""Samples to one of PSS, for which the kernel walks every page of the server."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process at one moment. `started`, in ticks since boot, tells it from a reuse of its id."""

    pid: int
    parent: int
    started: int
    title: str
    cpu_s: float
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """CPU seconds since boot: spent by all processes, and kept from this machine by its host."""

    busy_s: float
    steal_s: float


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run took. `others` is the rest of the machine: what it does, the figures suffer.

    Peaks are of the sum over the tree: RSS counts a shared page once a process, PSS once in all.
    `cpu_s_by_name` says it again by process, those of one short name together, most first.
    """

    engine_cpu_s: float
    framework_cpu_s: float
    client_cpu_s: float
    others_cpu_s: float
    steal_s: float
    peak_rss_gib: float
    peak_pss_gib: float
    cpu_s_by_name: Mapping[str, float]

    @property
    def framework_share(self) -> float:
        """Of the server's CPU time."""
        total = self.engine_cpu_s + self.framework_cpu_s
        return self.framework_cpu_s / total if total else 0.0


def read_tree(root: int, proc: Path = PROC) -> list[Process]:
    """The process `root` and all that descend from it, parents before children."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents(proc):
        children.setdefault(parent, []).append(pid)
    pids = [root]
    for pid in pids:  # grows while it is walked
        pids += children.get(pid, [])
    return [process for pid in pids if (process := _read(proc / str(pid)))]


def engine_pids(tree: Iterable[Process], engine_title: str) -> set[int]:
    """Those titled as the engine, and all below them; `tree` has parents before children."""
    engine: set[int] = set()
    for process in tree:
        if process.parent in engine or process.title.startswith(engine_title):
            engine.add(process.pid)
    return engine


def short_name(title: str) -> str:
    """The actor, the program, or what a Python runs; without paths, arguments and methods."""
    words = title.split() or ["?"]
    if words[0].startswith("ray::"):
        return words[0].partition(".")[0]
    names = [word.rpartition("/")[2] for word in words if not word.startswith("-")]
    is_python = names[0].startswith("python") and len(names) > 1 and "-c" not in words
    return names[1] if is_python else names[0]


def read_machine(proc: Path = PROC) -> Machine:
    fields = (proc / "stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
    return Machine((user + nice + system + irq + softirq) * TICK_S, steal * TICK_S)


def read_pss(tree: Iterable[Process], proc: Path = PROC) -> int:
    """Bytes, each page divided by the processes that share it; 0 for a process that is gone."""
    return sum(_pss(proc / str(process.pid) / "smaps_rollup") for process in tree)


class Meter:
    """Adds samples up. CPU counts from a process's first sample, or its birth if that is later."""

    def __init__(self, engine_title: str, tree: Iterable[Process], machine: Machine) -> None:
        self._engine_title = engine_title
        self._began = machine
        self._machine = machine
        self._first: dict[tuple[int, int], float] = {}
        self._last: dict[tuple[int, int], float] = {}
        self._names: dict[tuple[int, int], str] = {}
        self._of_engine: set[tuple[int, int]] = set()
        self._peak_rss = self._peak_pss = 0
        for process in tree:
            self._first[process.pid, process.started] = process.cpu_s

    def enter(self, tree: list[Process], machine: Machine, pss_bytes: int = 0) -> None:
        """One more sample; a process that has ended keeps what it was last seen to have taken."""
        engine = engine_pids(tree, self._engine_title)
        for process in tree:
            identity = process.pid, process.started
            self._last[identity] = process.cpu_s
            self._names[identity] = short_name(process.title)
            if process.pid in engine:
                self._of_engine.add(identity)
        self._machine = machine
        self._peak_rss = max(self._peak_rss, sum(process.rss_bytes for process in tree))
        self._peak_pss = max(self._peak_pss, pss_bytes)

    def usage(self, client_cpu_s: float) -> Usage:
        """What was taken between the first and the latest sample."""
        spent = {one: cpu - self._first.get(one, 0.0) for one, cpu in self._last.items()}
        engine = sum(cpu for one, cpu in spent.items() if one in self._of_engine)
        framework = sum(spent.values()) - engine
        by_name: dict[str, float] = defaultdict(float)
        for one, cpu in spent.items():
            by_name[self._names[one]] += cpu
        busy = self._machine.busy_s - self._began.busy_s
        return Usage(
            engine_cpu_s=engine,
            framework_cpu_s=framework,
            client_cpu_s=client_cpu_s,
            others_cpu_s=max(0.0, busy - engine - framework - client_cpu_s),
            steal_s=self._machine.steal_s - self._began.steal_s,
            peak_rss_gib=self._peak_rss / GIB,
            peak_pss_gib=self._peak_pss / GIB,
            cpu_s_by_name=dict(sorted(by_name.items(), key=lambda item: -item[1])),
        )


class Watch:
    """Samples a server's tree in a thread of this process, which is taken for the client."""

    def __init__(self, root: int, engine_title: str) -> None:
        self._root = root
        self._client_s = time.process_time()
        self._meter = Meter(engine_title, read_tree(root), read_machine())
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="watch", daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> Usage:
        """Take the last sample and add up."""
        self._ended.set()
        self._thread.join()
        self._enter(with_pss=True)
        return self._meter.usage(time.process_time() - self._client_s)

    def _sample(self) -> None:
        count = 0
        while not self._ended.wait(SAMPLE_S):
            count += 1
            self._enter(with_pss=count % PSS_EVERY == 0)

    def _enter(self, with_pss: bool) -> None:
        tree = read_tree(self._root)
        self._meter.enter(tree, read_machine(), read_pss(tree) if with_pss else 0)


def _parents(proc: Path) -> Iterator[tuple[int, int]]:
    """Every process of the machine and its parent."""
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            with suppress(*GONE):
                yield int(entry.name), int(_stat(entry)[1])


def _read(entry: Path) -> Process | None:
    """None if it has ended meanwhile."""
    try:
        fields = _stat(entry)
        title = (entry / "cmdline").read_text(errors="replace").replace("\0", " ").strip()
    except GONE:
        return None
    user, system, rss_pages = int(fields[11]), int(fields[12]), int(fields[21])
    return Process(
        pid=int(entry.name),
        parent=int(fields[1]),
        started=int(fields[19]),
        title=title,
        cpu_s=(user + system) * TICK_S,
        rss_bytes=rss_pages * PAGE_BYTES,
    )


def _stat(entry: Path) -> list[str]:
    """The fields of proc_pid_stat(5) from the third, the state, on."""
    return (entry / "stat").read_text().rpartition(")")[2].split()


def _pss(rollup: Path) -> int:
    try:
        lines = rollup.read_text().splitlines()
    except GONE:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
