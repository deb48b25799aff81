"""Why a shard has no place, in words that say what would give it one."""

from __future__ import annotations

from cluster.placement.candidates import Candidates
from cluster.placement.wishes import Kind, Wish
from cluster.topology import Gpu, Topology

GIB = 2**30


def contradiction(wish: Wish) -> str | None:
    """What makes a wish impossible on any machines, None where nothing does."""
    if wish.tensor_parallel < 1 or wish.shards_per_device < 1:
        return "tensor_parallel and shards_per_device must be at least 1"
    slices_only = wish.profile is not None or wish.kinds == (Kind.SLICE,)
    if wish.tensor_parallel > 1 and slices_only:
        return (
            f"tensor_parallel {wish.tensor_parallel} over MIG slices: slices have no link to each"
            " other; ask for whole GPUs, or for a larger profile with tensor_parallel 1"
        )
    if wish.tensor_parallel > 1 and wish.shards_per_device > 1:
        return "shards of several ranks cannot share their devices: set shards_per_device to 1"
    return None


def why_no_place(wish: Wish, topology: Topology, candidates: Candidates) -> str:
    """The reason for each kind of device that the wish allows."""
    kinds = wish.allowed(topology)
    if not wish.kinds and Kind.GPU in kinds and not any(gpu.slices for gpu in _living(topology)):
        kinds = (Kind.GPU,)  # who did not ask for slices need not read that there are none
    return "; ".join(_why_not(wish, kind, topology, candidates) for kind in kinds)


def _why_not(wish: Wish, kind: Kind, topology: Topology, candidates: Candidates) -> str:
    match kind:
        case Kind.CPU:
            return _no_cpus(wish, topology)
        case Kind.SLICE:
            return _no_slice(wish, topology)
        case Kind.GPU:
            return _no_gpus(wish, topology, candidates)


def _no_cpus(wish: Wish, topology: Topology) -> str:
    sizes = ", ".join(
        f"{node.name} has {len(node.cpus)} CPUs and {node.memory_bytes / GIB:.1f} GiB"
        for node in topology.nodes
    )
    ranks = wish.tensor_parallel
    asked = f"{ranks} CPUs and {ranks * wish.memory_bytes / GIB:.1f} GiB"
    return f"no node has {asked} left ({sizes or 'there is no node'}): add a node"


def _no_slice(wish: Wish, topology: Topology) -> str:
    if wish.tensor_parallel > 1:
        return "tensor parallelism across MIG slices is refused"
    cuts = [cut for gpu in _living(topology) for cut in gpu.slices]
    fitting = [cut for cut in cuts if wish.profile in (None, cut.profile)]
    what = f"MIG slice {wish.profile}" if wish.profile else "MIG slice"
    if not fitting:
        there = ", ".join(sorted({cut.profile for cut in cuts})) or "none"
        return f"no {what} (there are: {there}): create one"
    sizes = [cut.memory_bytes // wish.shards_per_device for cut in fitting]
    return _too_small(wish, sizes, what) or f"all {len(fitting)} {what}s are taken: create more"


def _no_gpus(wish: Wish, topology: Topology, candidates: Candidates) -> str:
    whole = [gpu for gpu in _living(topology) if not gpu.mig_enabled]
    lost = [gpu.uuid for node in topology.nodes for gpu in node.gpus if not gpu.usable]
    aside = f" ({', '.join(lost)} out of order)" if lost else ""
    if not whole:
        cut = any(True for _ in _living(topology))
        return f"no whole GPU{', all are in MIG mode' if cut else ''}{aside}: add a node with GPUs"
    shares = [gpu.memory_bytes // wish.shards_per_device for gpu in whole]
    free = {node.name: len(candidates.free(wish, node, Kind.GPU)) for node in topology.nodes}
    most = max(free, key=lambda name: free[name])
    if wish.tensor_parallel == 1 or not sum(free.values()):
        taken = f"all {len(whole)} GPUs are taken{aside}: add GPUs or want fewer shards"
        return _too_small(wish, shares, "GPU") or taken
    return (
        f"{wish.tensor_parallel} GPUs of one make on one node are needed, and no node has so many"
        f" free (most: {free[most]} on {most}){aside}: move or stop shards there, or add a node"
    )


def _too_small(wish: Wish, shares: list[int], what: str) -> str | None:
    if max(shares) >= wish.memory_bytes:
        return None
    return (
        f"the largest share of a {what} is {max(shares) / GIB:.1f} GiB,"
        f" {wish.memory_bytes / GIB:.1f} GiB are needed: use more ranks or a larger device"
    )


def _living(topology: Topology) -> list[Gpu]:
    return [gpu for node in topology.nodes for gpu in node.gpus if gpu.usable]
