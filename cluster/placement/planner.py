"""Wishes and a topology become a plan: which shard sits on which devices of which node, and why.

The plan is a pure function of what goes in. A shard that sits well stays, so the loss of a device
moves only the shards that were on it. No living shard is moved to make room for another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cluster.cores import nearest_with_cpus
from cluster.errors import IllegalTransition
from cluster.placement.candidates import Candidate, Candidates
from cluster.placement.carving import carve
from cluster.placement.seats import Seats
from cluster.placement.shortfall import GIB, contradiction, why_no_place
from cluster.placement.wishes import Kind, Missing, Owner, Placement, Plan, Rank, Recut, Wish
from cluster.topology import Closeness, Gpu, Node, Topology

Name = tuple[str, str, int]
"""Model, tenant and index of a shard."""

_REACH = {
    Closeness.NVLINK: "one NVLink island",
    Closeness.SWITCH: "one PCIe switch",
    Closeness.NUMA: "one NUMA node",
    Closeness.NODE: "one node",
}


def plan(
    wishes: Sequence[Wish],
    topology: Topology,
    current: Iterable[Placement] = (),
    manage_mig: bool = False,
) -> Plan:
    """Places for all shards wished for, those of `current` first wherever they are still good.

    With `manage_mig`, slices that are missing are asked for as recuts of idle slices. Raises
    ValueError for two wishes of one model and tenant: they would have to be one.
    """
    owners = [wish.owner for wish in wishes]
    if len(set(owners)) != len(owners):
        raise ValueError(f"one wish for each model and tenant, got {owners}")
    return _Planner(topology).plan(wishes, tuple(current), manage_mig)


def place(
    wish: Wish,
    index: int,
    topology: Topology,
    current: Iterable[Placement] = (),
    manage_mig: bool = False,
) -> Plan:
    """A place for one shard more, beside those of `current`, who all stay where they are.

    Those that are on no node of the topology are not looked at. With `manage_mig`, a slice that is
    missing is asked for as a recut of idle ones.
    """
    return _Planner(topology).place(wish, index, current, manage_mig)


class _Planner:
    """One plan in the making."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._seats = Seats(topology)
        self._candidates = Candidates(topology, self._seats)
        self._placements: dict[Name, Placement] = {}
        self._missing: list[tuple[Wish, Missing]] = []
        self._lines: list[str] = []

    def plan(
        self, wishes: Sequence[Wish], current: tuple[Placement, ...], manage_mig: bool
    ) -> Plan:
        self._keep(current, {wish.owner: wish for wish in wishes})
        for wish, index in _in_order(wishes):
            if (*wish.owner, index) not in self._placements:
                self._seat(wish, index)
        recuts = self._recuts() if manage_mig else ()
        return Plan(
            placements=tuple(self._placements[name] for name in sorted(self._placements)),
            missing=tuple(missing for _, missing in self._missing),
            recuts=recuts,
            lines=tuple(self._lines),
        )

    def place(self, wish: Wish, index: int, current: Iterable[Placement], manage_mig: bool) -> Plan:
        for one in current:
            if self._topology.node(one.node) is not None:
                # Two on one device is a plan that reality has overtaken: one of them sits there.
                with contextlib.suppress(IllegalTransition):
                    self._seats.take(one)
        self._seat(wish, index)
        recuts = self._recuts() if manage_mig else ()
        return Plan(
            placements=tuple(self._placements.values()),
            missing=tuple(missing for _, missing in self._missing),
            recuts=recuts,
            lines=tuple(self._lines),
        )

    def _keep(self, current: Sequence[Placement], wishes: dict[Owner, Wish]) -> None:
        for old in current:
            wish = wishes.get(old.owner)
            reason = self._why_not_kept(old, wish)
            if reason is None and wish is not None:
                try:
                    self._sit(_refreshed(old, wish, self._topology))
                    reason = f"stays on {_where(old)}"
                except IllegalTransition:
                    reason = "moves: its place is taken"
            self._lines.append(f"{old.name} {reason}")

    def _why_not_kept(self, old: Placement, wish: Wish | None) -> str | None:
        if wish is None or old.index >= wish.shards:
            return f"leaves {_where(old)}: it is not wanted any more"
        if contradiction(wish) is not None:
            return "leaves: its wish cannot be met any more"
        node = self._topology.node(old.node)
        if node is None:
            return f"moves: {old.node} is gone"
        return self._unfit(old, wish, node)

    def _unfit(self, old: Placement, wish: Wish, node: Node) -> str | None:
        """What of the old place no longer suits the wish."""
        if old.kind not in wish.allowed(self._topology):
            return f"moves: it may not compute on {old.kind} any more"
        if old.shards_per_device != wish.shards_per_device:
            return "moves: how many share its device has changed"
        if len(old.ranks) != wish.tensor_parallel:
            return f"moves: it is to have {wish.tensor_parallel} ranks"
        if old.kind is Kind.CPU:
            return None
        usable = {device.uuid for device in self._candidates.free(wish, node, old.kind)}
        gone = sorted(set(old.devices) - usable)
        return f"moves: {', '.join(gone)} lost, taken or unfit" if gone else None

    def _seat(self, wish: Wish, index: int) -> None:
        reason = contradiction(wish)
        best = None if reason else self._candidates.best(wish)
        if best is not None:
            new = _placement(wish, index, best)
            self._lines.append(f"{new.name} goes to {_where(new)}: {self._why(wish, best)}")
            self._sit(new)
            return
        reason = reason or why_no_place(wish, self._topology, self._candidates)
        missing = Missing(wish.model, index, wish.tenant, reason)
        self._missing.append((wish, missing))
        self._lines.append(f"{missing.name} has no place: {reason}")

    def _why(self, wish: Wish, best: Candidate) -> str:
        replicas = self._seats.replicas(best.node.name, wish.model)
        words = [f"{replicas} of {wish.model} there, {wish.arrange}"]
        if best.closeness is not None:
            words.insert(0, f"ranks within {_REACH[best.closeness]}")
        if best.devices:
            words.append(f"{best.left} free devices left beside it")
        return "; ".join(words)

    def _sit(self, placement: Placement) -> None:
        self._seats.take(placement)
        self._placements[(*placement.owner, placement.index)] = placement

    def _recuts(self) -> tuple[Recut, ...]:
        """For the shards that miss a slice of a profile: GPU by GPU, as many as each can give.

        First of those with free room, then of those where an idle slice has to go.
        """
        waiting = [(w, m) for w, m in self._missing if w.profile and contradiction(w) is None]
        cuttable = [
            (node, gpu)
            for node in self._topology.nodes
            for gpu in node.gpus
            if gpu.mig_enabled and gpu.usable
        ]
        recuts: dict[str, Recut] = {}
        for sparing in (True, False):
            for node, gpu in cuttable:
                if waiting and gpu.uuid not in recuts:
                    recut = self._recut(node, gpu, waiting, sparing)
                    if recut is not None:
                        recuts[gpu.uuid] = recut
        return tuple(recuts.values())

    def _recut(
        self, node: Node, gpu: Gpu, waiting: list[tuple[Wish, Missing]], sparing: bool
    ) -> Recut | None:
        """Serves whom it can of those waiting, who then wait no more; `sparing` every slice."""
        in_use = frozenset(cut.uuid for cut in gpu.slices if self._seats.is_taken(cut.uuid))
        served: list[tuple[Wish, Missing]] = []
        cuts = None
        for one in waiting:
            more = carve(gpu, [wish.profile or "" for wish, _ in [*served, one]], in_use)
            fits = more is not None and not (sparing and more[0])
            if fits and _large_enough(gpu, one[0]):
                served, cuts = [*served, one], more
        if cuts is None:
            return None
        for wish, missing in served:
            waiting.remove((wish, missing))
            self._lines.append(
                f"{missing.name} will fit once {gpu.uuid} is cut to have {wish.profile}"
            )
        return Recut(node.name, gpu.uuid, *cuts)


def _refreshed(old: Placement, wish: Wish, topology: Topology) -> Placement:
    """The same place with what the topology now says of it: memory and NUMA nodes."""
    node = topology.node(old.node)
    if node is None or old.kind is Kind.CPU:
        return replace(old, memory_bytes=wish.memory_bytes)
    homes = [_home(node, rank.device or "") for rank in old.ranks]
    ranks = tuple(
        Rank(rank.device, nearest_with_cpus(node, gpu.numa_node if gpu else None))
        for rank, (gpu, _) in zip(old.ranks, homes, strict=True)
    )
    memory = min(memory for _, memory in homes) // wish.shards_per_device
    return replace(old, ranks=ranks, memory_bytes=memory)


def _home(node: Node, device: str) -> tuple[Gpu | None, int]:
    """The GPU that a device is or is a part of, and the device's own memory."""
    gpu = node.gpu(device)
    if gpu is not None:
        return gpu, gpu.memory_bytes
    parent = node.parent(device)
    cuts = parent.slices if parent else ()
    return parent, next((cut.memory_bytes for cut in cuts if cut.uuid == device), 0)


def _in_order(wishes: Sequence[Wish]) -> list[tuple[Wish, int]]:
    """Every model's first shard before any second; among those, the hardest to place first."""

    def urgency(item: tuple[int, Wish, int]) -> tuple[int, int, bool, int, int]:
        position, wish, index = item
        return index, -wish.tensor_parallel, wish.profile is None, -wish.memory_bytes, position

    shards = [(i, wish, index) for i, wish in enumerate(wishes) for index in range(wish.shards)]
    return [(wish, index) for _, wish, index in sorted(shards, key=urgency)]


def _placement(wish: Wish, index: int, best: Candidate) -> Placement:
    ranks = tuple(Rank(device.uuid, device.numa_node) for device in best.devices)
    return Placement(
        model=wish.model,
        index=index,
        tenant=wish.tenant,
        node=best.node.name,
        kind=best.kind,
        ranks=ranks or (Rank(None, None),) * wish.tensor_parallel,
        memory_bytes=min((d.share for d in best.devices), default=wish.memory_bytes),
        shards_per_device=wish.shards_per_device,
        closeness=best.closeness,
    )


def _where(placement: Placement) -> str:
    devices = ", ".join(placement.devices) or f"{len(placement.ranks)} CPU ranks"
    return f"{placement.node} [{devices}] with {placement.memory_bytes / GIB:.1f} GiB each"


def _large_enough(gpu: Gpu, wish: Wish) -> bool:
    sizes = {profile.name: profile.memory_bytes for profile in gpu.profiles}
    return sizes[wish.profile or ""] // wish.shards_per_device >= wish.memory_bytes
