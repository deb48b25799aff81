"""Which CPUs a shard asks for: near its device, whole cores, no more than its fair part."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.cores import fair_count, home_of, nearest_with_cpus, numa_of, orders
from cluster.topology import Node, NumaNode
from tests.cluster.machines import recorded

DGX = recorded("dgx-a100")
WITH_HBM = Node(
    "with-hbm",
    (
        NumaNode(0, (0, 1), 2**30, (10, 20, 40)),
        NumaNode(1, (2, 3), 2**30, (20, 10, 17)),
        NumaNode(2, (), 2**30, (40, 17, 10)),
    ),
)


def test_the_gpus_of_a_numa_node_part_its_cpus_among_them() -> None:
    assert fair_count(DGX, 64, [DGX.gpus[0].uuid]) == 16
    assert fair_count(DGX, 64, [gpu.uuid for gpu in DGX.gpus[:2]]) == 32
    assert fair_count(DGX, 4, [DGX.gpus[0].uuid]) == 4


def test_the_slices_of_a_numa_node_part_its_cpus_among_them() -> None:
    node = recorded("mig-a100")
    # Four slices of the two GPUs at home on a NUMA node of 48 CPUs.
    assert fair_count(node, 64, [node.gpus[0].slices[0].uuid]) == 12


def test_a_shard_without_device_may_have_the_whole_machine() -> None:
    assert fair_count(DGX, 999, []) == 256
    assert fair_count(DGX, 3, []) == 3


def test_devices_of_several_numa_nodes_have_no_home() -> None:
    assert home_of(DGX, [gpu.uuid for gpu in DGX.gpus[:2]]) == 3
    assert home_of(DGX, [gpu.uuid for gpu in DGX.gpus[:3]]) is None
    assert home_of(DGX, []) is None


def test_the_home_comes_first_and_then_what_is_near_it() -> None:
    alone, whole = orders(DGX, 3)
    assert set(alone) == set(DGX.numa[3].cpus)
    assert whole[:32] == alone
    assert set(whole[32:64]) <= {cpu for numa in DGX.numa[:4] for cpu in numa.cpus}


def test_without_a_home_each_numa_node_is_tried_alone_before_all_together() -> None:
    *alone, whole = orders(DGX, None)
    assert [numa_of(DGX, order) for order in alone] == list(range(8))
    assert set(whole) == set(DGX.cpus)


def test_the_threads_of_a_core_follow_each_other() -> None:
    assert orders(DGX, 3)[0][:4] == (48, 176, 49, 177)


def test_cpus_whose_cores_are_unknown_are_still_tried() -> None:
    node = replace(recorded("cpu-only"), cores=((0, 8),))
    assert orders(node, None)[0][:3] == (0, 8, 1)
    assert set(orders(node, None)[0]) == set(range(16))


@pytest.mark.parametrize(("index", "nearest"), [(0, 0), (2, 1), (None, None), (7, None)])
def test_memory_without_cpus_is_served_by_the_nearest(
    index: int | None, nearest: int | None
) -> None:
    assert nearest_with_cpus(WITH_HBM, index) == nearest


def test_cpus_of_two_numa_nodes_are_of_none() -> None:
    assert numa_of(WITH_HBM, (2, 3)) == 1
    assert numa_of(WITH_HBM, (1, 2)) is None
