"""Machines to place shards on: recorded ones from tests/data, and random ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

from hypothesis import strategies as st

from cluster.placement import Kind, Plan, Seats, Wish
from cluster.plain import from_json
from cluster.topology import Closeness, Gpu, Link, MigSlice, Node, NumaNode, Topology

GIB = 2**30
DATA = Path(__file__).parent.parent / "data"
RECORDED = ("dgx-a100", "dgx-h100", "pcie-4gpu", "mig-a100", "cpu-only")


def recorded(name: str) -> Node:
    return from_json(Topology, (DATA / f"{name}.json").read_text()).nodes[0]


def cluster_of(*names: str) -> Topology:
    """Recorded machines as one cluster; the same machine twice gets two names and other GPUs."""
    return Topology(
        tuple(renamed(recorded(name), f"{name}-{place}") for place, name in enumerate(names))
    )


def renamed(node: Node, name: str) -> Node:
    """Another machine of the same build."""

    def own(uuid: str) -> str:
        return f"{uuid}@{name}"

    return replace(
        node,
        name=name,
        gpus=tuple(
            replace(
                gpu,
                uuid=own(gpu.uuid),
                slices=tuple(replace(cut, uuid=own(cut.uuid)) for cut in gpu.slices),
            )
            for gpu in node.gpus
        ),
        links=tuple(replace(link, a=own(link.a), b=own(link.b)) for link in node.links),
    )


def without_gpu(topology: Topology, uuid: str) -> Topology:
    """The same cluster after a GPU was lost."""
    return Topology(
        tuple(
            replace(
                node,
                gpus=tuple(
                    replace(gpu, lost=True) if gpu.uuid == uuid else gpu for gpu in node.gpus
                ),
            )
            for node in topology.nodes
        )
    )


def seated(plan: Plan, topology: Topology) -> Seats:
    """The plan's places taken and checked: raises where two want one device, or too much of it."""
    seats = Seats(topology)
    for placement in plan.placements:
        seats.take(placement)
    seats.verify()
    return seats


def _slices(uuid: str, sizes: list[int]) -> tuple[MigSlice, ...]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(
        MigSlice(f"MIG-{uuid}-{start}", f"{size}g.{5 * size}gb", 5 * size * GIB, i, 0, start, size)
        for i, (start, size) in enumerate(zip(starts, sizes, strict=True))
        if start + size <= 8
    )


@st.composite
def _nodes(draw: st.DrawFn, name: str) -> Node:
    sockets = draw(st.integers(1, 2))
    numa = tuple(
        NumaNode(i, tuple(range(4 * i, 4 * i + 4)), 32 * GIB, (10, 20)[:sockets] or (10,))
        for i in range(sockets)
    )
    gpus = []
    for i in range(draw(st.integers(0, 4))):
        uuid = f"GPU-{name}-{i}"
        cut = draw(st.lists(st.sampled_from((1, 2, 4)), max_size=4))
        mig = draw(st.booleans())
        gpus.append(
            Gpu(
                uuid,
                draw(st.sampled_from(("big", "small"))),
                draw(st.sampled_from((24, 40, 80))) * GIB,
                numa_node=draw(st.sampled_from((None, *range(sockets)))),
                mig_enabled=mig,
                slices=_slices(uuid, cut) if mig else (),
                lost=draw(st.integers(0, 9)) == 0,
            )
        )
    links = tuple(
        Link(
            a.uuid,
            b.uuid,
            draw(st.sampled_from((0, 0, 4))),
            draw(st.sampled_from((Closeness.SWITCH, Closeness.NUMA, Closeness.NODE))),
        )
        for a, b in combinations(gpus, 2)
    )
    return Node(name, numa, gpus=tuple(gpus), links=links)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """One to three nodes of every kind: linked and not, cut and whole, sound and lost."""
    count = draw(st.integers(1, 3))
    return Topology(tuple(draw(_nodes(f"node-{i}")) for i in range(count)))


@st.composite
def wish_lists(draw: st.DrawFn) -> list[Wish]:
    """Wishes for up to three models, some of which nobody can meet."""
    return [
        Wish(
            f"model-{i}",
            draw(st.integers(0, 5)),
            memory_bytes=draw(st.sampled_from((0, 4, 20, 60))) * GIB,
            tensor_parallel=draw(st.sampled_from((1, 1, 1, 2, 3))),
            kinds=draw(st.sampled_from(((), (Kind.GPU,), (Kind.SLICE, Kind.GPU), (Kind.CPU,)))),
            profile=draw(st.sampled_from((None, None, None, "1g.5gb", "2g.10gb"))),
            tenant=draw(st.sampled_from((None, "acme"))),
            arrange=draw(st.sampled_from(("spread", "pack"))),
            shards_per_device=draw(st.sampled_from((1, 1, 2))),
        )
        for i in range(draw(st.integers(1, 3)))
    ]
