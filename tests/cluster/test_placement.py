"""The rules of placement, one at a time, on recorded machines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.placement import Kind, Placement, Wish, place, plan
from cluster.topology import Closeness, Topology
from tests.cluster.machines import GIB, cluster_of, recorded, seated, without_gpu


def places(wishes: list[Wish], topology: Topology) -> tuple[Placement, ...]:
    """Where all sit, when all find a place."""
    planned = plan(wishes, topology)
    assert planned.missing == ()
    seated(planned, topology)
    return planned.placements


def only_reason(wish: Wish, topology: Topology) -> str:
    """Why no shard of the wish has a place."""
    planned = plan([wish], topology)
    assert planned.placements == ()
    return planned.missing[0].reason


def test_replicas_of_a_model_spread_over_nodes() -> None:
    topology = cluster_of("dgx-a100", "dgx-a100", "dgx-a100")
    nodes = [one.node for one in places([Wish("m", 6)], topology)]
    assert sorted(nodes) == sorted([node.name for node in topology.nodes] * 2)


def test_a_gpu_that_has_to_be_reset_gets_no_shard_until_it_is() -> None:
    (node,) = cluster_of("pcie-4gpu").nodes
    sick = replace(node.gpus[0], defect="a bad row of its memory waits for a reset")
    topology = Topology((replace(node, gpus=(sick, *node.gpus[1:])),))
    used = {device for one in places([Wish("m", 3)], topology) for device in one.devices}
    assert used == {gpu.uuid for gpu in node.gpus[1:]}
    assert f"({sick.uuid} out of order)" in plan([Wish("m", 4)], topology).missing[0].reason
    assert len(places([Wish("m", 4)], Topology((node,)))) == 4


def test_packed_replicas_fill_one_node_first() -> None:
    topology = cluster_of("dgx-a100", "dgx-a100")
    assert len({one.node for one in places([Wish("m", 8, arrange="pack")], topology)}) == 1


def test_a_gang_stays_inside_one_nvlink_island() -> None:
    topology = cluster_of("pcie-4gpu", "dgx-h100")
    (gang,) = places([Wish("m", 1, tensor_parallel=4)], topology)
    assert gang.node == "dgx-h100-1"
    assert gang.closeness is Closeness.NVLINK


def test_inside_an_island_a_gang_huddles_on_one_numa_node() -> None:
    gangs = places([Wish("m", 2, tensor_parallel=4)], cluster_of("dgx-h100"))
    assert [{rank.numa_node for rank in gang.ranks} for gang in gangs] == [{0}, {1}]


def test_without_nvlink_a_gang_stays_behind_one_pcie_switch() -> None:
    gangs = places([Wish("m", 2, tensor_parallel=2)], cluster_of("pcie-4gpu"))
    assert [gang.closeness for gang in gangs] == [Closeness.SWITCH] * 2
    assert [{rank.numa_node for rank in gang.ranks} for gang in gangs] == [{0}, {1}]


def test_a_gang_too_large_for_a_switch_takes_the_node() -> None:
    (gang,) = places([Wish("m", 1, tensor_parallel=4)], cluster_of("pcie-4gpu"))
    assert gang.closeness is Closeness.NODE
    assert len(set(gang.devices)) == 4


def test_a_single_shard_leaves_whole_switches_to_gangs() -> None:
    single, other = places([Wish("single", 2, arrange="pack")], cluster_of("pcie-4gpu"))
    assert single.ranks[0].numa_node == other.ranks[0].numa_node


def test_a_gang_never_mixes_makes_of_gpu() -> None:
    node = recorded("pcie-4gpu")
    gpus = tuple(replace(gpu, name=f"make-{i % 2}") for i, gpu in enumerate(node.gpus))
    topology = Topology((replace(node, gpus=gpus),))
    gang, _ = places([Wish("m", 2, tensor_parallel=2)], topology)
    assert {"make-0"} == {gpu.name for gpu in gpus if gpu.uuid in gang.devices}
    assert "3 GPUs of one make" in only_reason(Wish("m", 1, tensor_parallel=3), topology)


def test_a_gang_is_not_spread_over_nodes() -> None:
    topology = cluster_of("pcie-4gpu", "pcie-4gpu")
    assert "most: 4 on pcie-4gpu-0" in only_reason(Wish("m", 1, tensor_parallel=8), topology)


def test_tensor_parallelism_over_slices_is_refused() -> None:
    wish = Wish("m", 1, tensor_parallel=2, profile="3g.20gb")
    assert "slices have no link to each other" in only_reason(wish, cluster_of("mig-a100"))


def test_a_gang_ignores_slices_even_where_they_are_allowed() -> None:
    wish = Wish("m", 1, tensor_parallel=2, kinds=(Kind.SLICE, Kind.GPU))
    (gang,) = places([wish], cluster_of("mig-a100", "pcie-4gpu"))
    assert gang.kind is Kind.GPU


def test_a_slice_holds_one_shard_with_the_memory_of_the_slice() -> None:
    shards = places([Wish("m", 3, profile="1g.5gb")], cluster_of("mig-a100"))
    assert len({one.devices for one in shards}) == 3
    assert {one.memory_bytes for one in shards} == {4864 * 2**20}


def test_a_slice_holds_several_shards_where_that_is_asked_for() -> None:
    wish = Wish("m", 2, profile="7g.40gb", shards_per_device=2)
    first, second = places([wish], cluster_of("mig-a100"))
    assert first.devices == second.devices
    assert first.memory_bytes + second.memory_bytes <= 40320 * 2**20


def test_the_smallest_slice_that_is_large_enough_is_taken() -> None:
    wish = Wish("m", 1, memory_bytes=8 * GIB)
    (shard,) = places([wish], cluster_of("mig-a100"))
    assert shard.memory_bytes == 9984 * 2**20


def test_tenants_never_share_a_device() -> None:
    wishes = [
        Wish("a", 1, profile="7g.40gb", tenant="acme", shards_per_device=2),
        Wish("b", 1, profile="7g.40gb", tenant="zeta", shards_per_device=2),
    ]
    planned = plan(wishes, cluster_of("mig-a100"))
    assert [one.model for one in planned.placements] == ["a"]
    assert planned.missing[0].model == "b"


def test_one_model_serves_everybody_and_a_tenant_apart() -> None:
    wishes = [Wish("m", 2, profile="1g.5gb"), Wish("m", 2, profile="3g.20gb", tenant="acme")]
    shards = places(wishes, cluster_of("mig-a100"))
    assert [one.name for one in shards] == ["m/0", "m/1", "m@acme/0", "m@acme/1"]
    assert len({device for one in shards for device in one.devices}) == 4


def test_two_wishes_for_the_same_shards_are_refused() -> None:
    with pytest.raises(ValueError, match="one wish for each model and tenant"):
        plan([Wish("m", 1), Wish("m", 2)], cluster_of("cpu-only"))


def test_a_gpu_in_mig_mode_is_no_whole_gpu() -> None:
    wish = Wish("m", 1, kinds=(Kind.GPU,))
    assert "all are in MIG mode" in only_reason(wish, cluster_of("mig-a100"))


def test_a_cluster_without_gpus_serves_on_cpus() -> None:
    shards = places([Wish("m", 4)], cluster_of("cpu-only", "cpu-only"))
    assert [one.kind for one in shards] == [Kind.CPU] * 4
    assert sorted(one.node for one in shards) == ["cpu-only-0"] * 2 + ["cpu-only-1"] * 2


def test_cpus_are_the_fallback_only_where_they_are_allowed() -> None:
    topology = cluster_of("pcie-4gpu")
    wish = Wish("m", 5, kinds=(Kind.GPU, Kind.CPU))
    assert [one.kind for one in places([wish], topology)].count(Kind.CPU) == 1
    planned = plan([Wish("m", 5)], topology)
    assert [missing.index for missing in planned.missing] == [4]


def test_a_worn_gpu_is_taken_last() -> None:
    node = recorded("dgx-a100")
    worn = replace(node.gpus[0], ecc_errors=3)
    topology = Topology((replace(node, gpus=(worn, *node.gpus[1:])),))
    assert worn.uuid not in {one.devices[0] for one in places([Wish("m", 7)], topology)}


def test_every_model_gets_a_first_shard_before_any_gets_a_second() -> None:
    planned = plan([Wish("a", 4), Wish("b", 4)], cluster_of("pcie-4gpu"))
    assert sorted(one.name for one in planned.placements) == ["a/0", "a/1", "b/0", "b/1"]


@pytest.mark.parametrize(
    ("wish", "machine", "reason"),
    [
        (Wish("m", 1, kinds=(Kind.GPU,)), "cpu-only", "no whole GPU: add a node with GPUs"),
        (Wish("m", 1, 60 * GIB), "pcie-4gpu", "the largest share of a GPU is 45.0 GiB, 60.0 GiB"),
        (Wish("m", 1, 90 * GIB), "cpu-only", "no node has 1 CPUs and 90.0 GiB left"),
        (
            Wish("m", 1, profile="2g.20gb"),
            "mig-a100",
            "no MIG slice 2g.20gb (there are: 1g.5gb, 2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb)",
        ),
        (
            Wish("m", 1, 60 * GIB, profile="3g.20gb"),
            "mig-a100",
            "the largest share of a MIG slice 3g.20gb is 19.6 GiB, 60.0 GiB are needed",
        ),
        (Wish("m", 1, tensor_parallel=0), "cpu-only", "must be at least 1"),
        (
            Wish("m", 1, tensor_parallel=2, shards_per_device=2),
            "dgx-a100",
            "cannot share their devices",
        ),
    ],
)
def test_a_wish_that_cannot_be_met_says_what_is_missing(
    wish: Wish, machine: str, reason: str
) -> None:
    assert reason in only_reason(wish, cluster_of(machine))


def test_a_lost_gpu_is_named_where_it_is_missed() -> None:
    topology = cluster_of("pcie-4gpu")
    lost = topology.nodes[0].gpus[0].uuid
    planned = plan([Wish("m", 4)], without_gpu(topology, lost))
    assert planned.missing[0].reason == (
        f"all 3 GPUs are taken ({lost} out of order): add GPUs or want fewer shards"
    )


def test_the_plan_tells_each_decision_in_a_line() -> None:
    topology = cluster_of("pcie-4gpu")
    before = plan([Wish("m", 2, tensor_parallel=2), Wish("old", 0)], topology)
    lost = before.placements[0].devices[0]
    after = plan([Wish("m", 2, tensor_parallel=2)], without_gpu(topology, lost), before.placements)
    kept = ", ".join(before.placements[1].devices)
    assert after.lines[0] == f"m/0 moves: {lost} lost, taken or unfit"
    assert after.lines[1] == f"m/1 stays on pcie-4gpu-0 [{kept}] with 45.0 GiB each"
    assert after.lines[2].startswith("m/0 has no place: 2 GPUs of one make on one node")


def test_the_shards_of_a_node_that_is_gone_move_to_the_others() -> None:
    both = cluster_of("dgx-a100", "dgx-h100")
    before = plan([Wish("m", 4)], both)
    after = plan([Wish("m", 4)], Topology(both.nodes[1:]), before.placements)
    assert {one.node for one in after.placements} == {"dgx-h100-1"}
    assert "m/0 moves: dgx-a100-0 is gone" in after.lines


def test_shards_wanted_no_more_leave_and_the_others_stay() -> None:
    topology = cluster_of("dgx-a100")
    before = plan([Wish("m", 3), Wish("n", 1)], topology)
    after = plan([Wish("m", 2)], topology, before.placements)
    assert [one.devices for one in after.placements] == [
        one.devices for one in before.placements[:2]
    ]
    assert "it is not wanted any more" in after.lines[2]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (Wish("m", 1, tensor_parallel=2), "it is to have 2 ranks"),
        (Wish("m", 1, shards_per_device=2), "how many share its device has changed"),
        (Wish("m", 1, kinds=(Kind.CPU,)), "it may not compute on gpu any more"),
    ],
)
def test_a_shard_whose_wish_has_changed_moves(changed: Wish, reason: str) -> None:
    topology = cluster_of("dgx-a100")
    before = plan([Wish("m", 1)], topology)
    after = plan([changed], topology, before.placements)
    assert after.lines[0] == f"m/0 moves: {reason}"
    assert len(after.placements) == 1


def test_one_shard_more_finds_a_place_beside_the_others_who_stay() -> None:
    topology = cluster_of("dgx-a100", "dgx-a100")
    wish = Wish("m", 3, kinds=(Kind.GPU,))
    first = plan([replace(wish, shards=1)], topology).placements
    [second] = place(wish, 7, topology, first).placements

    assert (second.index, second.node) == (7, "dgx-a100-1")
    assert place(wish, 7, topology, first).lines == (
        "m/7 goes to dgx-a100-1 [" + second.devices[0] + "] with "
        f"{second.memory_bytes / GIB:.1f} GiB each: 0 of m there, spread;"
        " 7 free devices left beside it",
    )


def test_one_shard_more_sits_beside_the_others_of_the_only_node() -> None:
    topology = cluster_of("dgx-a100")
    wish = Wish("m", 8, kinds=(Kind.GPU,))
    seven = plan([replace(wish, shards=7)], topology).placements
    [last] = place(wish, 7, topology, seven).placements

    assert len({*last.devices, *(one.devices[0] for one in seven)}) == 8
    assert place(wish, 8, topology, [*seven, last]).missing[0].name == "m/8"


def test_one_shard_more_finds_a_place_though_two_others_claim_one_device() -> None:
    topology = cluster_of("dgx-a100")
    wish = Wish("m", 3, kinds=(Kind.GPU,))
    [first] = plan([replace(wish, shards=1)], topology).placements
    [third] = place(wish, 2, topology, [first, replace(first, index=1)]).placements

    assert third.devices != first.devices
