"""The places that one shard could have, best first: nearest ranks, evenest spread, tightest fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from cluster.cores import nearest_with_cpus
from cluster.placement.seats import Seats
from cluster.placement.wishes import Kind, Wish
from cluster.topology import Closeness, Gpu, Node, Topology


@dataclass(frozen=True, slots=True)
class Device:
    """A free GPU, or a free slice of `gpu`: its place in the node's order, and a shard's share."""

    uuid: str
    gpu: Gpu
    numa_node: int | None
    order: int
    share: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """Devices of one node that one shard could have. `left`: free ones that its group would keep.

    `closeness` is None for one device. A CPU shard has no devices.
    """

    node: Node
    kind: Kind
    devices: tuple[Device, ...] = ()
    closeness: Closeness | None = None
    left: int = 0


Rank = tuple[int, int, tuple[int, int], int, int, int, int, str, tuple[int, ...]]


class Candidates:
    """Looks for places in a topology while its seats are being taken."""

    def __init__(self, topology: Topology, seats: Seats) -> None:
        self._topology = topology
        self._seats = seats
        self._groups = {
            node.name: {level: node.groups(level) for level in Closeness} for node in topology.nodes
        }
        # A node's best place stays the best until somebody sits down on the node.
        self._known: dict[tuple[Wish, str, int], tuple[Rank, Candidate] | None] = {}

    def best(self, wish: Wish) -> Candidate | None:
        """The best place for one more shard of the wish, None where there is none."""
        found = [best for node in self._topology.nodes if (best := self._best_on(node, wish))]
        return min(found, key=lambda ranked: ranked[0])[1] if found else None

    def free(self, wish: Wish, node: Node, kind: Kind) -> list[Device]:
        """What of the node's GPUs, or of their slices, one rank of the wish could have."""
        devices = []
        for order, (uuid, gpu) in enumerate(_gpus(node) if kind is Kind.GPU else _cuts(wish, node)):
            share = self._seats.share(uuid, wish)
            if share is not None:
                numa = nearest_with_cpus(node, gpu.numa_node)
                devices.append(Device(uuid, gpu, numa, order, share))
        return devices

    def _best_on(self, node: Node, wish: Wish) -> tuple[Rank, Candidate] | None:
        key = (wish, node.name, self._seats.shards(node.name))
        if key not in self._known:
            kinds = wish.allowed(self._topology)
            ranked = (
                (self._rank(one, wish, preference), one)
                for preference, kind in enumerate(kinds)
                for one in self._on_node(wish, node, kind)
            )
            self._known[key] = min(ranked, key=lambda pair: pair[0], default=None)
        return self._known[key]

    def _rank(self, candidate: Candidate, wish: Wish, preference: int) -> Rank:
        """Smaller is better: the rules of placement, the first that differs decides."""
        name, devices = candidate.node.name, candidate.devices
        replicas, shards = self._seats.replicas(name, wish.model), self._seats.shards(name)
        return (
            preference,
            candidate.closeness or 0,
            (replicas, shards) if wish.arrange == "spread" else (-shards, -replicas),
            max((device.share for device in devices), default=0),
            candidate.left,
            sum(device.gpu.ecc_errors or 0 for device in devices),
            sum(self._seats.numa_load(name, device.numa_node) for device in devices),
            name,
            tuple(device.order for device in devices),
        )

    def _on_node(self, wish: Wish, node: Node, kind: Kind) -> Iterator[Candidate]:
        if kind is Kind.CPU:
            if self._seats.cpu_room(node, wish):
                yield Candidate(node, kind)
            return
        free = self.free(wish, node, kind)
        if wish.tensor_parallel == 1:
            for device in free:
                left = self._left(node, kind, device, free)
                yield Candidate(node, kind, (device,), left=left)
        elif kind is Kind.GPU:
            yield from self._gangs(wish.tensor_parallel, node, free)

    def _left(self, node: Node, kind: Kind, device: Device, free: list[Device]) -> int:
        """Free devices whose company this one would break up: of its island, or of its GPU."""
        if kind is Kind.SLICE:
            return sum(other.gpu.uuid == device.gpu.uuid for other in free) - 1
        groups = (group for level in Closeness for group in self._groups[node.name][level])
        home = next((g for g in groups if device.uuid in g and len(g) > 1), {device.uuid})
        return sum(other.uuid in home for other in free) - 1

    def _gangs(self, size: int, node: Node, free: list[Device]) -> Iterator[Candidate]:
        """Groups of `size` GPUs of one make, from the nearest level that has any."""
        for level in Closeness:
            companies = [
                company
                for group in self._groups[node.name][level]
                for company in _by_make([device for device in free if device.uuid in group])
                if len(company) >= size
            ]
            for company in companies:
                chosen = self._huddle(size, node, company)
                yield Candidate(node, Kind.GPU, chosen, level, len(company) - size)
            if companies:
                return

    def _huddle(self, size: int, node: Node, company: list[Device]) -> tuple[Device, ...]:
        """`size` of the company: of one PCIe switch, else of one NUMA node, else of the fewest."""
        for level in (Closeness.SWITCH, Closeness.NUMA):
            groups = self._groups[node.name][level]
            huddles = [[d for d in company if d.uuid in group] for group in groups]
            enough = [huddle for huddle in huddles if len(huddle) >= size]
            if enough:
                return tuple(min(enough, key=len)[:size])
        apart = sorted(huddles, key=len, reverse=True)
        return tuple([device for huddle in apart for device in huddle][:size])


def _gpus(node: Node) -> Iterator[tuple[str, Gpu]]:
    return ((gpu.uuid, gpu) for gpu in node.gpus if gpu.usable and not gpu.mig_enabled)


def _cuts(wish: Wish, node: Node) -> Iterator[tuple[str, Gpu]]:
    for gpu in node.gpus:
        if gpu.mig_enabled and gpu.usable:
            for cut in gpu.slices:
                if wish.profile in (None, cut.profile):
                    yield cut.uuid, gpu


def _by_make(devices: list[Device]) -> list[list[Device]]:
    """A group of unlike GPUs would run at the pace, and hold the pages, of its weakest."""
    # sorted() keeps the order of equals, so each company stays in the order of the node.
    ordered = sorted(devices, key=lambda device: device.gpu.name)
    return [list(company) for _, company in groupby(ordered, key=lambda device: device.gpu.name)]
