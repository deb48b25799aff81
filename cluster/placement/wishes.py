"""What goes into a placement and what comes out: wishes, places, and what has no place."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from cluster.topology import Closeness, Topology

Owner = tuple[str, str]
"""Whose a shard is: its model, and the tenant it is kept for, "" for everybody."""


class Kind(StrEnum):
    """What a shard computes on."""

    GPU = "gpu"
    SLICE = "mig"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Wish:
    """So many shards of a model, and what one of them needs.

    `memory_bytes`: of each device, what weights and the smallest useful KV pool take.
    `kinds`: allowed, best first; empty: GPUs and slices where the cluster has any, else CPUs.
    `profile`: only MIG slices of that name, as `3g.40gb`. `tenant`: whose devices nobody else gets.
    """

    model: str
    shards: int
    memory_bytes: int = 0
    tensor_parallel: int = 1
    kinds: tuple[Kind, ...] = ()
    profile: str | None = None
    tenant: str | None = None
    arrange: Literal["spread", "pack"] = "spread"
    shards_per_device: int = 1

    @property
    def owner(self) -> Owner:
        return self.model, self.tenant or ""

    def allowed(self, topology: Topology) -> tuple[Kind, ...]:
        if self.profile is not None:
            return (Kind.SLICE,)
        if self.kinds:
            return self.kinds
        return (Kind.GPU, Kind.SLICE) if topology.has_accelerators else (Kind.CPU,)


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a shard: the UUID of its GPU or slice, and the NUMA node to run on."""

    device: str | None
    numa_node: int | None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one shard sits. `memory_bytes`: what each rank may use of its device.

    `closeness`: how near the ranks of a tensor-parallel group are, None for a single one.
    """

    model: str
    index: int
    tenant: str | None
    node: str
    kind: Kind
    ranks: tuple[Rank, ...]
    memory_bytes: int
    shards_per_device: int = 1
    closeness: Closeness | None = None

    @property
    def owner(self) -> Owner:
        return self.model, self.tenant or ""

    @property
    def name(self) -> str:
        return _shard_name(self.model, self.tenant, self.index)

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(rank.device for rank in self.ranks if rank.device is not None)


@dataclass(frozen=True, slots=True)
class Missing:
    """A shard that has no place, and what would give it one."""

    model: str
    index: int
    tenant: str | None
    reason: str

    @property
    def name(self) -> str:
        return _shard_name(self.model, self.tenant, self.index)


@dataclass(frozen=True, slots=True)
class NewSlice:
    """A slice to be made: `start` is the first memory slice it takes."""

    profile: str
    start: int


@dataclass(frozen=True, slots=True)
class Recut:
    """Of one GPU: the slices to be given up, by UUID, and those to be made of their room."""

    node: str
    gpu: str
    destroy: tuple[str, ...]
    create: tuple[NewSlice, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """`lines` tell it to a person, one decision a line. After `recuts` are made, plan again."""

    placements: tuple[Placement, ...]
    missing: tuple[Missing, ...] = ()
    recuts: tuple[Recut, ...] = ()
    lines: tuple[str, ...] = ()


def _shard_name(model: str, tenant: str | None, index: int) -> str:
    return f"{model}/{index}" if tenant is None else f"{model}@{tenant}/{index}"
