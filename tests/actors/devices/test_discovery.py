"""A node is read once from NVML and sysfs; what is broken is named, what can be known is kept."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from actors.devices.discovery import discover
from cluster.topology import Node
from tests.actors.devices.conftest import Install, write_sysfs
from tests.actors.devices.fake_driver import FakeNvml
from tests.cluster.machines import RECORDED, recorded

LOST = pynvml.NVML_ERROR_GPU_IS_LOST
OPTIONAL = (
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetName",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetGpuInstanceById",
    "nvmlGpuInstanceGetInfo",
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
    "nvmlShutdown",
)
"""Symbols without which a node is still worth knowing."""


@pytest.fixture(autouse=True)
def all_cpus_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as any recorded machine has: this one has fewer."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(1024)))


def found(node: Node, tmp_path: Path, with_pci: bool = True) -> Node:
    return discover(node.name, write_sysfs(tmp_path, node, with_pci))


@pytest.mark.parametrize("name", [name for name in RECORDED if name != "cpu-only"])
def test_a_recorded_machine_is_read_as_it_was_recorded(
    name: str, install: Install, tmp_path: Path
) -> None:
    node = recorded(name)
    install(node)
    assert found(node, tmp_path) == node


def test_a_node_without_driver_counts_as_cpu_only_and_says_so_once(
    no_driver: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = recorded("cpu-only")
    with caplog.at_level(logging.INFO):
        assert found(node, tmp_path) == node
    assert caplog.messages == [
        "no NVIDIA driver (NVML Shared Library Not Found): this node counts as CPU only"
    ]


def test_a_driver_that_does_not_start_is_warned_of(install: Install, tmp_path: Path) -> None:
    node = recorded("dgx-h100")
    install(node).fail("nvmlInitWithFlags", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    read = found(node, tmp_path)
    assert (read.gpus, read.driver) == ((), None)
    assert read.warnings == (
        "NVML does not start (RM has detected an NVML/RM version mismatch.):"
        " this node counts as CPU only",
    )


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_library_that_lacks_a_symbol_still_shows_its_gpus(
    name: str, install: Install, tmp_path: Path
) -> None:
    node = recorded("mig-a100")
    install(node).remove(name)
    assert [gpu.uuid for gpu in found(node, tmp_path).gpus] == [gpu.uuid for gpu in node.gpus]


def test_a_library_that_lacks_nearly_everything_shows_uuids(
    install: Install, tmp_path: Path
) -> None:
    node = recorded("dgx-a100")
    install(node).remove(*OPTIONAL)
    read = found(node, tmp_path)
    assert [gpu.uuid for gpu in read.gpus] == [gpu.uuid for gpu in node.gpus]
    assert {gpu.memory_bytes for gpu in read.gpus} == {0}
    assert any(f"({node.gpus[3].uuid}): memory cannot be read" in text for text in read.warnings)


@pytest.mark.parametrize("name", ["nvmlDeviceGetCount_v2", "nvmlDeviceGetUUID"])
def test_a_library_that_cannot_name_gpus_leaves_a_warning(
    name: str, install: Install, tmp_path: Path
) -> None:
    node = recorded("dgx-a100")
    install(node).remove(name)
    read = found(node, tmp_path)
    assert read.gpus == ()
    assert "Function Not Found" in read.warnings[0]


@pytest.mark.parametrize(
    "name",
    ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetPcieReplayCounter", "nvmlDeviceGetNvLinkState"],
)
def test_a_gpu_lost_while_it_is_read_is_kept_as_lost_and_named(
    name: str, install: Install, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = recorded("dgx-a100")
    lost = node.gpus[5].uuid
    install(node).fail(name, LOST, lost)
    read = found(node, tmp_path)
    assert [gpu.uuid for gpu in read.gpus if gpu.lost] == [lost]
    assert len(read.gpus) == 8
    assert len(read.warnings) == 1
    assert f"GPU 5 ({lost})" in read.warnings[0]
    assert caplog.messages == list(read.warnings)


def test_a_gpu_that_needs_a_reset_says_why(install: Install, tmp_path: Path) -> None:
    node = recorded("pcie-4gpu")
    nvml = install(node)
    correctable, uncorrectable, failed, old = nvml.gpus
    correctable.rows, uncorrectable.rows, failed.rows = (3, 0, 1, 0), (0, 1, 1, 0), (0, 2, 0, 1)
    old.rows, old.page_waits = None, True
    assert [gpu.defect for gpu in found(node, tmp_path).gpus] == [
        "",
        "a bad row of its memory waits for a reset",
        "a bad row of its memory could not be remapped",
        "a bad page of its memory waits for a reset",
    ]


def test_an_older_library_that_knows_no_repairs_is_not_complained_of(
    install: Install, tmp_path: Path
) -> None:
    node = recorded("dgx-a100")
    install(node).remove("nvmlDeviceGetRemappedRows", "nvmlDeviceGetRetiredPagesPendingStatus")
    assert found(node, tmp_path) == node


def test_a_lost_gpu_is_not_asked_again(install: Install, tmp_path: Path) -> None:
    node = recorded("pcie-4gpu")
    nvml = install(replace(node, gpus=node.gpus[:1], links=()))
    nvml.fail("nvmlDeviceGetMemoryInfo", LOST)
    found(nvml.node, tmp_path)
    after = nvml.calls[nvml.calls.index("nvmlDeviceGetMemoryInfo") + 1 :]
    assert [name for name in after if name.startswith("nvmlDevice")] == ["nvmlDeviceGetNvLinkState"]


def test_a_gpu_lost_before_it_says_its_name_is_left_out(install: Install, tmp_path: Path) -> None:
    node = recorded("pcie-4gpu")
    install(node).fail("nvmlDeviceGetUUID", LOST, node.gpus[0].uuid)
    read = found(node, tmp_path)
    assert [gpu.index for gpu in read.gpus] == [1, 2, 3]
    assert read.warnings == ("GPU 0: UUID cannot be read: GPU is lost",)


def test_a_gpu_that_says_an_empty_name_is_left_out_with_a_warning(
    install: Install, tmp_path: Path
) -> None:
    node = recorded("pcie-4gpu")
    install(replace(node, gpus=(replace(node.gpus[0], uuid=""),), links=()))
    read = found(replace(node, gpus=(), links=()), tmp_path)
    assert (read.gpus, read.warnings) == ((), ("GPU 0: it says no UUID; left out",))


def test_two_gpus_of_one_uuid_are_one(install: Install, tmp_path: Path) -> None:
    node = recorded("pcie-4gpu")
    twin = replace(node.gpus[1], uuid=node.gpus[0].uuid)
    install(replace(node, gpus=(node.gpus[0], twin), links=()))
    read = found(node, tmp_path)
    assert len(read.gpus) == 1
    assert "its UUID is that of another GPU" in read.warnings[0]


def test_slices_are_read_without_leave_to_manage_them(install: Install, tmp_path: Path) -> None:
    node = recorded("mig-a100")
    install(node).permitted = False
    read = found(node, tmp_path)
    for gpu, known in zip(read.gpus, node.gpus, strict=True):
        assert [(cut.uuid, cut.profile, cut.memory_bytes, cut.start) for cut in gpu.slices] == [
            (cut.uuid, cut.profile, cut.memory_bytes, -1) for cut in known.slices
        ]
    assert read.warnings == ()


def test_a_slice_whose_name_tells_no_profile_is_named_by_its_attributes(
    install: Install, tmp_path: Path
) -> None:
    node = recorded("mig-a100")
    install(node).fail("nvmlDeviceGetName", pynvml.NVML_ERROR_NOT_SUPPORTED)
    read = found(node, tmp_path)
    assert [cut.profile for gpu in read.gpus for cut in gpu.slices] == [
        cut.profile for gpu in node.gpus for cut in gpu.slices
    ]


def test_profiles_without_names_are_named_by_rule(install: Install, tmp_path: Path) -> None:
    node = recorded("mig-a100")
    install(node).remove("nvmlDeviceGetGpuInstanceProfileInfoV")
    assert found(node, tmp_path) == node


def test_compute_instances_of_one_gpu_instance_share_its_memory(
    install: Install, tmp_path: Path
) -> None:
    node = recorded("mig-a100")
    whole = node.gpus[2].slices[0]
    halves = tuple(
        replace(whole, uuid=f"MIG-half-{i}", profile=f"{2 - i}c.3g.20gb", compute_instance=i)
        for i in (0, 1)
    )
    gpu = replace(node.gpus[2], slices=halves, index=0)
    install(replace(node, gpus=(gpu,), links=()))
    read = found(replace(node, gpus=(gpu,), links=()), tmp_path).gpus[0].slices
    assert [cut.profile for cut in read] == ["2c.3g.20gb", "1c.3g.20gb"]
    assert [cut.memory_bytes for cut in read] == [whole.memory_bytes // 2] * 2


def test_slices_whose_gpu_instance_is_unknown_are_not_taken_for_one(
    install: Install, tmp_path: Path
) -> None:
    node = recorded("mig-a100")
    install(node).remove("nvmlDeviceGetGpuInstanceId")
    for gpu, known in zip(found(node, tmp_path).gpus, node.gpus, strict=True):
        assert [c.memory_bytes for c in gpu.slices] == [c.memory_bytes for c in known.slices]


def test_gpus_linked_straight_to_each_other_have_their_own_islands(
    install: Install, tmp_path: Path
) -> None:
    node = recorded("pcie-4gpu")
    pairs = ({0, 1}, {2, 3})
    place = {gpu.uuid: gpu.index for gpu in node.gpus}
    links = tuple(
        replace(link, nvlinks=4 if {place[link.a], place[link.b]} in pairs else 0)
        for link in node.links
    )
    bridged = replace(node, links=links)
    install(bridged)
    assert found(bridged, tmp_path) == bridged


def test_without_the_ancestor_symbol_pcie_is_read_from_the_kernel(
    install: Install, tmp_path: Path
) -> None:
    node = recorded("pcie-4gpu")
    install(node).remove("nvmlDeviceGetTopologyCommonAncestor")
    read = found(node, tmp_path)
    assert read.links == node.links
    assert "PCIe topology cannot be read" in read.warnings[0]


def test_the_numa_node_comes_from_nvml_where_the_kernel_hides_it(
    install: Install, tmp_path: Path
) -> None:
    node = recorded("dgx-a100")
    install(node)
    read = found(node, tmp_path, with_pci=False)
    assert [gpu.numa_node for gpu in read.gpus] == [gpu.numa_node for gpu in node.gpus]


def test_a_machine_whose_kernel_hides_everything_is_one_numa_node(
    no_driver: None, tmp_path: Path
) -> None:
    read = discover("hidden", tmp_path)
    assert [numa.index for numa in read.numa] == [0]
    assert read.cpus
    assert read.memory_bytes > 0


def test_only_cpus_that_this_process_may_use_are_counted(
    no_driver: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = recorded("cpu-only")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 8, 9})
    read = found(node, tmp_path)
    assert read.cpus == (0, 8, 9)
    assert read.cores == ((0, 8), (9,))


def test_the_fake_library_lets_nothing_through_that_it_does_not_export() -> None:
    with pytest.raises(AttributeError):
        FakeNvml(recorded("cpu-only")).nvmlDeviceSetPersistenceMode  # noqa: B018
