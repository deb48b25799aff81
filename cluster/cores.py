"""Which CPUs of its node a shard should ask for: near its device, whole cores, a fair number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cluster.topology import Node, NumaNode


def fair_count(node: Node, threads: int, devices: Sequence[str]) -> int:
    """CPUs for a shard that wants `threads`: at most the part that its devices have of their home.

    A NUMA node's CPUs are parted among all the devices there, GPUs or slices, used or not, so that
    nobody who comes later finds them gone. A shard without devices may have all of its node.
    """
    home = home_of(node, devices)
    if home is None:
        return min(threads, len(node.cpus))
    neighbours = [uuid for uuid in _devices(node) if home_of(node, [uuid]) == home]
    mine = len(_numa(node, home).cpus) * len(devices) // max(len(neighbours), 1)
    return min(threads, max(mine, 1))


def orders(node: Node, home: int | None) -> tuple[tuple[int, ...], ...]:
    """In which orders to try for CPUs, best first: one NUMA node alone, and at last all of them.

    Within each, the threads of a core follow each other.
    """
    able = [numa for numa in node.numa if numa.cpus]
    if home is not None:
        far = dict(zip((n.index for n in node.numa), _numa(node, home).distances, strict=False))
        able.sort(key=lambda numa: (numa.index != home, far.get(numa.index, 255), numa.index))
    alone = [_by_core(node, numa) for numa in (able[:1] if home is not None else able)]
    return (*alone, tuple(cpu for numa in able for cpu in _by_core(node, numa)))


def home_of(node: Node, devices: Sequence[str]) -> int | None:
    """The one NUMA node with CPUs that all the devices are nearest to; None where there is none."""
    gpus = [node.gpu(uuid) or node.parent(uuid) for uuid in devices]
    homes = {nearest_with_cpus(node, gpu.numa_node) for gpu in gpus if gpu is not None}
    return homes.pop() if len(homes) == 1 else None


def nearest_with_cpus(node: Node, index: int | None) -> int | None:
    """The NUMA node to run on for a device at `index`: itself, or the nearest with CPUs."""
    home = next((numa for numa in node.numa if numa.index == index), None)
    if home is None or home.cpus:
        return None if home is None else home.index
    far = dict(zip((numa.index for numa in node.numa), home.distances, strict=False))
    able = [numa.index for numa in node.numa if numa.cpus]
    return min(able, key=lambda other: (far.get(other, 255), other), default=None)


def numa_of(node: Node, cpus: Iterable[int]) -> int | None:
    """The NUMA node that all of the CPUs belong to, None where they belong to several."""
    wanted = set(cpus)
    return next((numa.index for numa in node.numa if wanted <= set(numa.cpus)), None)


def _devices(node: Node) -> list[str]:
    """All that a shard can sit on: slices where a GPU is cut, else the GPU."""
    return [
        uuid
        for gpu in node.gpus
        for uuid in ([cut.uuid for cut in gpu.slices] if gpu.mig_enabled else [gpu.uuid])
    ]


def _numa(node: Node, index: int) -> NumaNode:
    return next(numa for numa in node.numa if numa.index == index)


def _by_core(node: Node, numa: NumaNode) -> tuple[int, ...]:
    """The NUMA node's CPUs core by core; those whose core is unknown come last."""
    mine = set(numa.cpus)
    cores = [cpu for core in node.cores for cpu in core if cpu in mine]
    return (*cores, *(cpu for cpu in numa.cpus if cpu not in set(cores)))
