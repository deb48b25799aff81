"""The book of who sits where while a plan is made: devices, their memory, CPUs and tenants."""

from __future__ import annotations

from collections import defaultdict

from cluster.errors import IllegalTransition, LedgerBroken
from cluster.placement.wishes import Kind, Placement, Wish
from cluster.topology import Node, Topology


class Seats:
    """Which shards sit on which device. `take` is the one way in."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._memory = _memory_of_devices(topology)
        self._on_device: dict[str, list[Placement]] = defaultdict(list)
        self._on_node: dict[str, list[Placement]] = defaultdict(list)

    def take(self, placement: Placement) -> None:
        """Sit down. Raises IllegalTransition, nothing changed, where a device has no room."""
        devices = placement.devices
        if len(set(devices)) != len(devices) or not all(
            self._fits(device, placement) for device in devices
        ):
            raise IllegalTransition(f"{placement.name} cannot have {devices}: they are taken")
        if placement.kind is Kind.CPU and not self._cpu_fits(placement):
            raise IllegalTransition(f"{placement.name} has no room on {placement.node}")
        self._on_node[placement.node].append(placement)
        for device in devices:
            self._on_device[device].append(placement)

    def share(self, device: str, wish: Wish) -> int | None:
        """Bytes of `device` that a shard of the wish could have, None where it cannot have any."""
        share = self._memory[device] // wish.shards_per_device
        there = self._on_device[device]
        shareable = len(there) < wish.shards_per_device and all(
            _may_share(one, wish.model, wish.tenant, wish.shards_per_device) for one in there
        )
        return share if shareable and share >= wish.memory_bytes else None

    def cpu_room(self, node: Node, wish: Wish) -> bool:
        """Whether a CPU shard of the wish still finds a CPU a rank and its memory on the node."""
        ranks, memory = self._cpu_use(node.name)
        return (
            ranks + wish.tensor_parallel <= len(node.cpus)
            and memory + wish.tensor_parallel * wish.memory_bytes <= node.memory_bytes
        )

    def replicas(self, node: str, model: str) -> int:
        return sum(placement.model == model for placement in self._on_node[node])

    def shards(self, node: str) -> int:
        return len(self._on_node[node])

    def numa_load(self, node: str, numa_node: int | None) -> int:
        """Ranks on the node's NUMA node."""
        ranks = [rank for placement in self._on_node[node] for rank in placement.ranks]
        return sum(rank.numa_node == numa_node for rank in ranks)

    def is_taken(self, device: str) -> bool:
        return bool(self._on_device[device])

    def verify(self) -> None:
        """Raises LedgerBroken unless each device has one owner, and memory for all it holds."""
        for device, there in self._on_device.items():
            owners = {(one.model, one.tenant) for one in there}
            limit = min((one.shards_per_device for one in there), default=0)
            if len(owners) > 1 or len(there) > limit:
                raise LedgerBroken(f"{device} is held by {[one.name for one in there]}")
            if sum(one.memory_bytes for one in there) > self._memory[device]:
                raise LedgerBroken(f"{device} has {self._memory[device]} bytes, more are promised")
        for node in self._topology.nodes:
            ranks, memory = self._cpu_use(node.name)
            if ranks > len(node.cpus) or memory > node.memory_bytes:
                raise LedgerBroken(f"{node.name} has too little for its {ranks} CPU ranks")

    def _fits(self, device: str, placement: Placement) -> bool:
        there = self._on_device[device]
        owner = (placement.model, placement.tenant, placement.shards_per_device)
        taken = sum(one.memory_bytes for one in there)
        return (
            len(there) < placement.shards_per_device
            and all(_may_share(one, *owner) for one in there)
            and taken + placement.memory_bytes <= self._memory.get(device, -1)
        )

    def _cpu_fits(self, placement: Placement) -> bool:
        node = self._topology.node(placement.node)
        ranks, memory = self._cpu_use(placement.node)
        return (
            node is not None
            and ranks + len(placement.ranks) <= len(node.cpus)
            and memory + len(placement.ranks) * placement.memory_bytes <= node.memory_bytes
        )

    def _cpu_use(self, node: str) -> tuple[int, int]:
        """Ranks that compute on the node's CPUs, and the memory promised to them."""
        here = [one for one in self._on_node[node] if one.kind is Kind.CPU]
        ranks = sum(len(one.ranks) for one in here)
        return ranks, sum(len(one.ranks) * one.memory_bytes for one in here)


def _may_share(one: Placement, model: str, tenant: str | None, shards_per_device: int) -> bool:
    """Only replicas of one model for one tenant share a device, and only if all were to."""
    return (one.model, one.tenant, one.shards_per_device) == (model, tenant, shards_per_device)


def _memory_of_devices(topology: Topology) -> dict[str, int]:
    """Of every device that a shard can sit on: whole GPUs, or the slices of those that are cut."""
    memory: dict[str, int] = {}
    for gpu in (gpu for node in topology.nodes for gpu in node.gpus if gpu.usable):
        if gpu.mig_enabled:
            memory.update({cut.uuid: cut.memory_bytes for cut in gpu.slices})
        else:
            memory[gpu.uuid] = gpu.memory_bytes
    return memory
