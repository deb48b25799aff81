"""How the machine is shared among shards: CPUs reserved with Ray, torch threads, GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cluster.config import ResourcesConfig


@dataclass(frozen=True, slots=True)
class Machines:
    """The cluster as far as sharing goes: cores of each node, and GPUs in all."""

    cores: tuple[float, ...]
    gpus: float


@dataclass(frozen=True, slots=True)
class Share:
    """What one shard gets. `cpus` and `gpus`, of all its ranks, are Ray's to reserve; `threads`, of
    each of them, are torch's."""

    cpus: float
    gpus: float
    threads: int


def machines(nodes: Iterable[dict[str, Any]]) -> Machines:
    """From what `ray.nodes()` lists."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    cores = tuple(node["CPU"] for node in alive if node.get("CPU"))
    return Machines(cores, sum(node.get("GPU", 0.0) for node in alive))


def fair_share(asked: ResourcesConfig, shards: int, cluster: Machines, ranks: int = 1) -> Share:
    """What the configuration asks for, and an even part of a node where it leaves that open.

    By default a shard reserves one core, or its part of one, but computes with all of its part:
    so a shard that joins finds room, and the others only have to narrow their threads.
    """
    whole = asked.gpus if asked.gpus is not None else float(min(1.0, cluster.gpus) * ranks)
    gpus = 0.0 if asked.mig_profile else whole
    even = _even_cores(max(shards, 1), cluster.cores)
    cpus = asked.cpus if asked.cpus is not None else min(1.0, even)
    threads = asked.threads or int(even if asked.cpus is None else asked.cpus) // ranks
    return Share(cpus, gpus, max(1, threads))


def _even_cores(shards: int, cores: tuple[float, ...]) -> float:
    """Cores of the smallest node over the shards it will hold, when they are spread evenly."""
    shards_on_node = -(-shards // max(len(cores), 1))
    return min(cores, default=1.0) / shards_on_node
