"""CPUs, NUMA nodes and PCI devices as the kernel shows them under /sys."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import psutil

from cluster.topology import NumaNode


@dataclass(frozen=True)
class Sysfs:
    """A folder like /sys, and the CPUs that this process may use (None: all that are online).

    Whatever is not there is left out, as in containers that hide it: then all CPUs are one node.
    """

    root: Path = Path("/sys")
    allowed: frozenset[int] | None = None

    @cached_property
    def numa_nodes(self) -> tuple[NumaNode, ...]:
        folders = sorted(
            (int(folder.name.removeprefix("node")), folder)
            for folder in self.root.glob("devices/system/node/node[0-9]*")
        )
        return tuple(_numa_node(i, folder, self._usable) for i, folder in folders) or (
            NumaNode(0, tuple(sorted(self._usable)), psutil.virtual_memory().total, (10,)),
        )

    @property
    def single_numa_node(self) -> int | None:
        return self.numa_nodes[0].index if len(self.numa_nodes) == 1 else None

    @cached_property
    def cores(self) -> tuple[tuple[int, ...], ...]:
        """The usable CPUs of each physical core."""
        threads = {self._threads(cpu) for numa in self.numa_nodes for cpu in numa.cpus}
        return tuple(sorted(threads))

    def numa_node_of(self, pci: str) -> int | None:
        """The NUMA node of a PCI device; None where the kernel does not know it."""
        text = _read(self._pci_device(pci) / "numa_node") if pci else ""
        return int(text) if text.isdecimal() else None

    def share_bridge(self, a: str, b: str) -> bool:
        """Whether two PCI devices lie behind one bridge, below the host's own."""
        if not a or not b:
            return False
        above_a, above_b = self._bridges(a), self._bridges(b)
        return bool(above_a) and bool(above_b) and above_a[0] == above_b[0]

    @cached_property
    def _usable(self) -> frozenset[int]:
        online = frozenset(cpu_list(_read(self.root / "devices/system/cpu/online")))
        if not online:
            online = frozenset(range(psutil.cpu_count() or 1))
        return online if self.allowed is None else online & self.allowed

    def _threads(self, cpu: int) -> tuple[int, ...]:
        folder = self.root / f"devices/system/cpu/cpu{cpu}/topology"
        threads = set(cpu_list(_read(folder / "thread_siblings_list"))) & self._usable
        return tuple(sorted(threads | {cpu}))

    def _pci_device(self, pci: str) -> Path:
        return self.root / "bus/pci/devices" / pci

    def _bridges(self, pci: str) -> list[str]:
        """The PCI devices above one, from its root port down."""
        path = self._pci_device(pci).resolve()
        address = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
        return [part for part in path.parts[:-1] if address.fullmatch(part)]


def cpu_list(text: str) -> list[int]:
    """The numbers of a kernel list such as `0-3,8,10-11`; none of a text that is no such list."""
    cpus: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match:
            low, high = int(match[1]), int(match[2] or match[1])
            cpus.extend(range(low, high + 1))
    return cpus


def _numa_node(index: int, folder: Path, usable: frozenset[int]) -> NumaNode:
    total = re.search(r"MemTotal:\s+(\d+) kB", _read(folder / "meminfo"))
    return NumaNode(
        index=index,
        cpus=tuple(cpu for cpu in cpu_list(_read(folder / "cpulist")) if cpu in usable),
        memory_bytes=int(total[1]) * 1024 if total else 0,
        distances=tuple(int(part) for part in _read(folder / "distance").split()),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
