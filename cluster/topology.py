"""What machines there are: nodes, GPUs, MIG slices, links, NUMA nodes; a snapshot as data."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum


class Closeness(IntEnum):
    """How near two GPUs of one node are, nearest first: what their traffic has to cross."""

    NVLINK = 0
    SWITCH = 1
    NUMA = 2
    NODE = 3


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A cut that a GPU allows: the memory slices it takes, and where it may start."""

    name: str
    memory_bytes: int
    size: int
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MigSlice:
    """A MIG device: one compute instance of one GPU instance, with memory of its own.

    `start` and `size` are the memory slices of its GPU instance; `start` is -1 where unknown.
    """

    uuid: str
    profile: str
    memory_bytes: int
    gpu_instance: int
    compute_instance: int
    start: int = -1
    size: int = 0


@dataclass(frozen=True, slots=True)
class Gpu:
    """A whole GPU. What the driver did not tell is None, memory 0, and `pci` empty.

    `index` is the driver's number for it, which a reset or another machine may change.
    `lost`: it stopped answering while it was read; `defect`: why it must not be used until it is
    reset or replaced, "" where it is sound. Nothing may be placed on either.
    `ecc_errors`: uncorrected ones since the driver was loaded; `pcie_replays` likewise.
    """

    uuid: str
    name: str
    memory_bytes: int
    index: int = -1
    pci: str = ""
    numa_node: int | None = None
    compute_capability: tuple[int, int] | None = None
    mig_enabled: bool = False
    slices: tuple[MigSlice, ...] = ()
    profiles: tuple[MigProfile, ...] = ()
    ecc_errors: int | None = None
    pcie_replays: int | None = None
    lost: bool = False
    defect: str = ""

    @property
    def usable(self) -> bool:
        return not self.lost and not self.defect


@dataclass(frozen=True, slots=True)
class Link:
    """Between GPUs `a` and `b`: NVLinks, straight or through switches, and how near by PCIe."""

    a: str
    b: str
    nvlinks: int
    pcie: Closeness


@dataclass(frozen=True, slots=True)
class NumaNode:
    """CPUs and the memory beside them. `distances`: to each NUMA node, as the kernel lists them."""

    index: int
    cpus: tuple[int, ...]
    memory_bytes: int
    distances: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One machine. `cores`: the CPUs of each physical core; `driver`: None without one.

    `warnings` say what could not be read, and of which GPU.
    """

    name: str
    numa: tuple[NumaNode, ...]
    cores: tuple[tuple[int, ...], ...] = ()
    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    driver: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def cpus(self) -> tuple[int, ...]:
        return tuple(cpu for numa in self.numa for cpu in numa.cpus)

    @property
    def memory_bytes(self) -> int:
        return sum(numa.memory_bytes for numa in self.numa)

    def gpu(self, uuid: str) -> Gpu | None:
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    def parent(self, slice_uuid: str) -> Gpu | None:
        """The GPU that a MIG slice is a part of."""
        return next((g for g in self.gpus if any(s.uuid == slice_uuid for s in g.slices)), None)

    def groups(self, level: Closeness) -> tuple[frozenset[str], ...]:
        """Sets of GPUs that reach each other within `level`, in the order of `gpus`.

        NVLink islands are what NVLinks connect, the other groups follow from PCIe alone.
        """
        if level is Closeness.NODE:
            return (frozenset(gpu.uuid for gpu in self.gpus),) if self.gpus else ()
        near = [
            (link.a, link.b)
            for link in self.links
            if (link.nvlinks > 0 if level is Closeness.NVLINK else link.pcie <= level)
        ]
        return _components([gpu.uuid for gpu in self.gpus], near)


@dataclass(frozen=True, slots=True)
class Topology:
    """The cluster's machines at one moment."""

    nodes: tuple[Node, ...]

    def node(self, name: str) -> Node | None:
        return next((node for node in self.nodes if node.name == name), None)

    def among(self, names: Collection[str]) -> Topology:
        """These machines alone, as far as they are there."""
        return Topology(tuple(node for node in self.nodes if node.name in names))

    def without(self, names: Collection[str]) -> Topology:
        """The other machines."""
        return Topology(tuple(node for node in self.nodes if node.name not in names))

    @property
    def has_accelerators(self) -> bool:
        return any(node.gpus for node in self.nodes)


def _components(members: list[str], pairs: list[tuple[str, str]]) -> tuple[frozenset[str], ...]:
    group = {member: frozenset({member}) for member in members}
    for a, b in pairs:
        merged = group[a] | group[b]
        group.update(dict.fromkeys(merged, merged))
    return tuple(dict.fromkeys(group[member] for member in members))
