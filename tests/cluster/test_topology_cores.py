"""CPUs are divided: disjoint, by whole cores, near the device."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cluster.cores import core_sets, divide, nearest_with_cpus
from cluster.topology import Node, NumaNode
from tests.cluster.machines import recorded


@given(st.integers(1, 20), st.integers(1, 2), st.integers(1, 50))
def test_parts_are_disjoint_and_even_while_there_are_cpus_for_all(
    count: int, threads: int, parts: int
) -> None:
    cores = [tuple(range(i, count * threads, count)) for i in range(count)]
    sets = divide(cores, parts)
    cpus = [cpu for part in sets for cpu in part]
    assert len(sets) == parts
    assert all(sets)
    if parts <= count * threads:
        assert sorted(cpus) == list(range(count * threads))
        assert max(map(len, sets)) - min(map(len, sets)) <= threads


@given(st.integers(1, 20), st.integers(1, 20))
def test_the_threads_of_a_core_stay_together_while_there_are_cores_for_all(
    count: int, parts: int
) -> None:
    cores = [(i, count + i) for i in range(count)]
    for part in divide(cores, parts) if parts <= count else ():
        assert {cpu % count for cpu in part if cpu < count} == {
            cpu % count for cpu in part if cpu >= count
        }


def test_more_processes_than_cpus_share_them() -> None:
    assert divide([(0,), (1,)], 3) == ((0,), (1,), (0,))


def test_the_shards_of_a_dgx_have_disjoint_cpus_on_the_numa_nodes_of_their_gpus() -> None:
    node = recorded("dgx-a100")
    sets = core_sets(node, [gpu.numa_node for gpu in node.gpus])
    for gpu, cpus in zip(node.gpus, sets, strict=True):
        home = node.numa[gpu.numa_node or 0]
        assert set(cpus) <= set(home.cpus)
        assert len(cpus) == 16
    assert len({cpu for cpus in sets for cpu in cpus}) == 8 * 16


def test_a_cpu_shard_keeps_off_the_numa_nodes_that_devices_need() -> None:
    node = recorded("pcie-4gpu")
    device, free = core_sets(node, [0, None])
    assert set(device) == set(node.numa[0].cpus)
    assert set(free) == set(node.numa[1].cpus)


def test_a_single_cpu_shard_has_the_whole_machine() -> None:
    node = recorded("pcie-4gpu")
    (cpus,) = core_sets(node, [None])
    assert set(cpus) == set(node.cpus)


def test_a_node_without_processes_divides_nothing() -> None:
    assert core_sets(recorded("cpu-only"), []) == ()


def test_a_device_beside_memory_alone_goes_to_the_nearest_cpus() -> None:
    numa = (
        NumaNode(0, (0, 1), 2**30, (10, 20, 40)),
        NumaNode(1, (2, 3), 2**30, (20, 10, 17)),
        NumaNode(2, (), 2**30, (40, 17, 10)),
    )
    node = Node("with-hbm", numa)
    assert nearest_with_cpus(node, 2) == 1
    assert core_sets(node, [2]) == ((2, 3),)
    assert nearest_with_cpus(node, None) is None


def test_a_node_whose_cores_are_unknown_divides_its_cpus() -> None:
    node = replace(recorded("cpu-only"), cores=())
    sets = core_sets(node, [None, None])
    assert [len(cpus) for cpus in sets] == [8, 8]
