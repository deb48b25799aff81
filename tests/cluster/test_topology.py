"""A topology is plain data: it survives being written down, and tells what is near what."""

from __future__ import annotations

import pytest
from hypothesis import given

from cluster.plain import from_json, to_json
from cluster.topology import Closeness, Topology
from tests.cluster.machines import RECORDED, cluster_of, recorded, topologies


@given(topologies())
def test_a_topology_survives_being_written_down(topology: Topology) -> None:
    assert from_json(Topology, to_json(topology)) == topology


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_machine_survives_being_written_down(name: str) -> None:
    topology = cluster_of(name)
    assert from_json(Topology, to_json(topology, indent=2)) == topology


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"nodes": [{"name": 3, "numa": []}]}', r"nodes\[0\]\.name must be str, got 3"),
        ('{"nodes": [{"nane": "a"}]}', r"nodes\[0\] has no field 'nane'; it has name, numa"),
        ('{"nodes": [{"name": "a"}]}', r"nodes\[0\]: .*missing.*'numa'"),
        ('{"nodes": {}}', r"nodes must be list, got \{\}"),
        (
            '{"nodes": [{"name": "a", "numa": [], "links":'
            ' [{"a": "x", "b": "y", "nvlinks": 0, "pcie": "NEAR"}]}]}',
            r"links\[0\]\.pcie must be one of NVLINK, SWITCH, NUMA, NODE, got 'NEAR'",
        ),
    ],
)
def test_a_record_that_is_wrong_is_refused_by_the_name_of_its_field(
    text: str, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        from_json(Topology, text)


@pytest.mark.parametrize(
    ("name", "level", "sizes"),
    [
        ("dgx-a100", Closeness.NVLINK, [8]),
        ("dgx-a100", Closeness.SWITCH, [2, 2, 2, 2]),
        ("dgx-h100", Closeness.SWITCH, [1] * 8),
        ("dgx-h100", Closeness.NUMA, [4, 4]),
        ("pcie-4gpu", Closeness.NVLINK, [1, 1, 1, 1]),
        ("pcie-4gpu", Closeness.SWITCH, [2, 2]),
        ("pcie-4gpu", Closeness.NODE, [4]),
        ("cpu-only", Closeness.NODE, []),
    ],
)
def test_gpus_are_grouped_by_what_lies_between_them(
    name: str, level: Closeness, sizes: list[int]
) -> None:
    assert [len(group) for group in recorded(name).groups(level)] == sizes


def test_a_slice_knows_the_gpu_it_is_a_part_of() -> None:
    node = recorded("mig-a100")
    for gpu in node.gpus:
        assert all(node.parent(cut.uuid) is gpu for cut in gpu.slices)
    assert node.parent("MIG-unknown") is None


def test_the_memory_of_slices_is_never_more_than_their_gpu_has() -> None:
    for gpu in recorded("mig-a100").gpus:
        assert 0 < sum(cut.memory_bytes for cut in gpu.slices) <= gpu.memory_bytes
