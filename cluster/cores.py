"""Which CPUs each process of a node computes with: disjoint sets, near its device, whole cores."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from cluster.topology import Node, NumaNode


def core_sets(node: Node, near: Sequence[int | None]) -> tuple[tuple[int, ...], ...]:
    """A set of CPUs for each process, where `near` is the NUMA node of its device, if it has one.

    Sets are disjoint while there are as many CPUs as processes on a NUMA node. Who has no device
    goes where most CPUs are left for it, and takes over the NUMA nodes that nobody needs.
    """
    homes = _homes(node, near)
    sets: list[tuple[int, ...]] = [()] * len(near)
    for numa in node.numa:
        tenants = [rank for rank, home in enumerate(homes) if numa.index in home]
        parts = divide(_cores_of(node, numa), len(tenants))
        for rank, part in zip(tenants, parts, strict=True):
            sets[rank] = tuple(sorted((*sets[rank], *part)))
    return tuple(sets)


def divide(cores: Sequence[tuple[int, ...]], parts: int) -> tuple[tuple[int, ...], ...]:
    """The CPUs of `cores` in `parts` sets whose sizes differ by a core at most.

    With fewer cores than parts, cores are split into CPUs; with fewer CPUs, parts share them.
    """
    cpus = [(cpu,) for core in cores for cpu in core]
    pieces = list(cores) if len(cores) >= parts else cpus
    if len(pieces) < parts:
        return tuple(pieces[part % len(pieces)] if pieces else () for part in range(parts))
    bounds = [part * len(pieces) // parts for part in range(parts + 1)] if parts else []
    return tuple(
        tuple(cpu for piece in pieces[low:high] for cpu in piece) for low, high in pairwise(bounds)
    )


def nearest_with_cpus(node: Node, index: int | None) -> int | None:
    """The NUMA node to run on for a device at `index`: itself, or the nearest with CPUs."""
    home = next((numa for numa in node.numa if numa.index == index), None)
    if home is None or home.cpus:
        return None if home is None else home.index
    far = dict(zip((numa.index for numa in node.numa), home.distances, strict=False))
    able = [numa.index for numa in node.numa if numa.cpus]
    return min(able, key=lambda other: (far.get(other, 255), other), default=None)


def _homes(node: Node, near: Sequence[int | None]) -> list[set[int]]:
    homes = [nearest_with_cpus(node, index) for index in near]
    crowd = {numa.index: homes.count(numa.index) for numa in node.numa if numa.cpus}
    sizes = {numa.index: len(numa.cpus) for numa in node.numa}
    free = [rank for rank, home in enumerate(homes) if home is None]
    for rank in free:
        if crowd:
            homes[rank] = max(crowd, key=lambda i: (sizes[i] / (crowd[i] + 1), -i))
            crowd[homes[rank] or 0] += 1
    sets = [set() if home is None else {home} for home in homes]
    idle = [index for index, count in crowd.items() if not count]
    for turn, index in enumerate(idle if free else ()):
        sets[free[turn % len(free)]].add(index)
    return sets


def _cores_of(node: Node, numa: NumaNode) -> list[tuple[int, ...]]:
    """The physical cores of a NUMA node; CPUs of which no core is known count as one each."""
    mine = set(numa.cpus)
    whole = [tuple(cpu for cpu in core if cpu in mine) for core in node.cores]
    known = {cpu for core in whole for cpu in core}
    return sorted([core for core in whole if core] + [(c,) for c in numa.cpus if c not in known])
