"""What holds of every plan, whatever the machines and the wishes."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import assume, given
from hypothesis import strategies as st

from cluster.placement import Kind, Wish, plan
from cluster.topology import Topology
from tests.cluster.machines import seated, topologies, wish_lists, without_gpu


@given(topologies(), wish_lists())
def test_no_device_has_two_owners_or_promises_more_memory_than_it_has(
    topology: Topology, wishes: list[Wish]
) -> None:
    seated(plan(wishes, topology), topology)


@given(topologies(), wish_lists())
def test_every_shard_wished_for_is_placed_once_or_missing_once(
    topology: Topology, wishes: list[Wish]
) -> None:
    planned = plan(wishes, topology)
    told = [(one.model, one.index) for one in planned.placements]
    told += [(one.model, one.index) for one in planned.missing]
    assert Counter(told) == Counter((w.model, i) for w in wishes for i in range(w.shards))
    assert all(missing.reason for missing in planned.missing)


@given(topologies(), wish_lists())
def test_a_shard_gets_what_its_wish_asks_for(topology: Topology, wishes: list[Wish]) -> None:
    by_model = {wish.model: wish for wish in wishes}
    for one in plan(wishes, topology).placements:
        wish = by_model[one.model]
        node = topology.node(one.node)
        assert node is not None
        assert one.kind in wish.allowed(topology)
        assert one.memory_bytes >= wish.memory_bytes
        assert len(one.ranks) == wish.tensor_parallel
        assert len(one.devices) == (0 if one.kind is Kind.CPU else wish.tensor_parallel)
        assert one.tenant == wish.tenant
        gpus = [node.gpu(device) or node.parent(device) for device in one.devices]
        assert all(gpu is not None and not gpu.lost for gpu in gpus)
        assert len({gpu.name for gpu in gpus if gpu is not None}) <= 1
        if one.kind is Kind.SLICE:
            assert wish.tensor_parallel == 1


@given(topologies(), wish_lists(), st.randoms(use_true_random=False))
def test_the_order_of_nodes_changes_nothing(
    topology: Topology, wishes: list[Wish], shuffle: Random
) -> None:
    nodes = list(topology.nodes)
    shuffle.shuffle(nodes)
    assert plan(wishes, Topology(tuple(nodes))).placements == plan(wishes, topology).placements


@given(topologies(), wish_lists())
def test_a_plan_made_again_from_its_own_places_moves_nobody(
    topology: Topology, wishes: list[Wish]
) -> None:
    first = plan(wishes, topology)
    again = plan(wishes, topology, first.placements)
    assert again.placements == first.placements


@given(topologies(), wish_lists(), st.data())
def test_the_loss_of_a_device_moves_only_who_sat_on_it(
    topology: Topology, wishes: list[Wish], data: st.DataObject
) -> None:
    first = plan(wishes, topology)
    used = sorted({device for one in first.placements for device in one.devices})
    assume(used)
    device = data.draw(st.sampled_from(used))
    gpu = next(
        gpu
        for node in topology.nodes
        for gpu in node.gpus
        if device in (gpu.uuid, *(cut.uuid for cut in gpu.slices))
    )
    lost = {gpu.uuid, *(cut.uuid for cut in gpu.slices)}
    after = without_gpu(topology, gpu.uuid)
    second = plan(wishes, after, first.placements)
    seated(second, after)
    seats = {one.name: (one.node, one.devices) for one in second.placements}
    for one in first.placements:
        if not lost & set(one.devices):
            assert seats[one.name] == (one.node, one.devices)
        else:
            assert not lost & set(seats.get(one.name, ("", ()))[1])


@given(topologies(), st.integers(0, 20))
def test_single_shards_are_missing_only_when_no_device_is_left(
    topology: Topology, count: int
) -> None:
    whole = sum(not g.lost and not g.mig_enabled for node in topology.nodes for g in node.gpus)
    planned = plan([Wish("m", count, kinds=(Kind.GPU,))], topology)
    assert len(planned.placements) == min(count, whole)


@given(topologies(), st.integers(0, 12))
def test_replicas_are_spread_as_evenly_as_the_nodes_allow(topology: Topology, count: int) -> None:
    room = {
        node.name: sum(not gpu.lost and not gpu.mig_enabled for gpu in node.gpus)
        for node in topology.nodes
    }
    placed = Counter(
        one.node for one in plan([Wish("m", count, kinds=(Kind.GPU,))], topology).placements
    )
    most = max(placed.values(), default=0)
    assert all(placed[name] >= min(room[name], most - 1) for name in room)
