"""What the fake driver tells of GPUs: identity, memory, PCI, health, links and processes."""

from __future__ import annotations

from typing import Any

import pynvml

from cluster.topology import Closeness
from tests.actors.devices.fake_driver import (
    FakeCompute,
    FakeGpu,
    FakeNvml,
    Refusal,
    point,
    symbol,
)

Device = FakeGpu | FakeCompute

_ANCESTORS = {
    Closeness.SWITCH: pynvml.NVML_TOPOLOGY_SINGLE,
    Closeness.NUMA: pynvml.NVML_TOPOLOGY_NODE,
    Closeness.NODE: pynvml.NVML_TOPOLOGY_SYSTEM,
}


@symbol("nvmlInitWithFlags")
def init(nvml: FakeNvml, flags: int) -> None:
    """There is nothing to set up."""


@symbol("nvmlShutdown")
def shutdown(nvml: FakeNvml) -> None:
    """There is nothing to take down."""


@symbol("nvmlSystemGetDriverVersion")
def driver_version(nvml: FakeNvml, out: Any, length: int) -> None:
    out.value = (nvml.node.driver or "").encode()


@symbol("nvmlDeviceGetCount_v2")
def count(nvml: FakeNvml, out: Any) -> None:
    out.value = len(nvml.gpus)


@symbol("nvmlDeviceGetHandleByIndex_v2")
def by_index(nvml: FakeNvml, index: int, out: Any) -> None:
    if index >= len(nvml.gpus):
        raise Refusal(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    point(out, nvml.handle(nvml.gpus[index]))


@symbol("nvmlDeviceGetHandleByUUID")
def by_uuid(nvml: FakeNvml, uuid: bytes, out: Any) -> None:
    devices: list[Device] = [*nvml.gpus]
    devices += [device for gpu in nvml.gpus for device in gpu.mig_devices()]
    found = [device for device in devices if device.uuid == uuid.decode()]
    if not found:
        raise Refusal(pynvml.NVML_ERROR_NOT_FOUND)
    point(out, nvml.handle(found[0]))


@symbol("nvmlDeviceGetUUID")
def uuid_of(nvml: FakeNvml, device: Device, out: Any, length: int) -> None:
    out.value = device.uuid.encode()


@symbol("nvmlDeviceGetName")
def name_of(nvml: FakeNvml, device: Device, out: Any, length: int) -> None:
    if isinstance(device, FakeGpu):
        out.value = device.facts.name.encode()
        return
    profile, whole = device.instance.profile.name, len(device.instance.compute) == 1
    part = profile if whole else f"{device.slices}c.{profile}"
    out.value = f"{device.instance.gpu.facts.name} MIG {part}".encode()


@symbol("nvmlDeviceGetMemoryInfo")
def memory_of(nvml: FakeNvml, device: Device, out: Any) -> None:
    known = device.facts if isinstance(device, FakeGpu) else device.instance.profile
    out.total = known.memory_bytes
    out.free = out.total


@symbol("nvmlDeviceGetPciInfo_v3")
def pci_of(nvml: FakeNvml, gpu: FakeGpu, out: Any) -> None:
    out.busId = f"0000{gpu.facts.pci}".upper().encode()


@symbol("nvmlDeviceGetMemoryAffinity")
def memory_affinity(nvml: FakeNvml, gpu: FakeGpu, size: int, out: Any, scope: int) -> None:
    if gpu.facts.numa_node is not None:
        out[gpu.facts.numa_node // 64] = 1 << (gpu.facts.numa_node % 64)


@symbol("nvmlDeviceGetCudaComputeCapability")
def compute_capability(nvml: FakeNvml, gpu: FakeGpu, major: Any, minor: Any) -> None:
    major.value, minor.value = _told(gpu.facts.compute_capability)


@symbol("nvmlDeviceGetTotalEccErrors")
def ecc_errors(nvml: FakeNvml, gpu: FakeGpu, kind: int, counter: int, out: Any) -> None:
    out.value = _told(gpu.ecc_errors) if kind == 1 and counter == 0 else 10**6


@symbol("nvmlDeviceGetPcieReplayCounter")
def pcie_replays(nvml: FakeNvml, gpu: FakeGpu, out: Any) -> None:
    out.value = _told(gpu.facts.pcie_replays)


@symbol("nvmlDeviceGetTopologyCommonAncestor")
def common_ancestor(nvml: FakeNvml, a: FakeGpu, b: FakeGpu, out: Any) -> None:
    pair = {a.uuid, b.uuid}
    out.value = next(_ANCESTORS[one.pcie] for one in nvml.node.links if {one.a, one.b} == pair)


@symbol("nvmlDeviceGetNvLinkState")
def nvlink_state(nvml: FakeNvml, gpu: FakeGpu, link: int, out: Any) -> None:
    if not any(one.nvlinks for one in nvml.node.links):
        raise Refusal(pynvml.NVML_ERROR_NOT_SUPPORTED)
    out.value = int(link < len(far_ends(nvml, gpu)))


@symbol("nvmlDeviceGetNvLinkRemoteDeviceType")
def nvlink_remote_type(nvml: FakeNvml, gpu: FakeGpu, link: int, out: Any) -> None:
    switch = far_ends(nvml, gpu)[link] is None
    out.value = (
        pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if switch else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU
    )


@symbol("nvmlDeviceGetNvLinkRemotePciInfo_v2")
def nvlink_remote_pci(nvml: FakeNvml, gpu: FakeGpu, link: int, out: Any) -> None:
    peer = far_ends(nvml, gpu)[link]
    out.busId = b"00000000:FF:00.0" if peer is None else f"0000{peer.facts.pci}".upper().encode()


@symbol("nvmlDeviceGetComputeRunningProcesses_v3")
def compute_processes(nvml: FakeNvml, device: Device, size: Any, out: Any) -> None:
    _list_processes(device.processes, size, out)


@symbol("nvmlDeviceGetGraphicsRunningProcesses_v3")
def graphics_processes(nvml: FakeNvml, device: Device, size: Any, out: Any) -> None:
    if not isinstance(device, FakeGpu):
        raise Refusal(pynvml.NVML_ERROR_NOT_SUPPORTED)
    _list_processes(device.drawing, size, out)


def far_ends(nvml: FakeNvml, gpu: FakeGpu) -> list[FakeGpu | None]:
    """Where each NVLink leads: None is a switch, as there is where all see all by as many links."""
    mine = [link for link in nvml.node.links if gpu.uuid in (link.a, link.b) and link.nvlinks]
    if len(mine) > 2:
        return [None] * mine[0].nvlinks
    return [
        nvml.gpu(link.b if link.a == gpu.uuid else link.a)
        for link in mine
        for _ in range(link.nvlinks)
    ]


def _told(value: Any) -> Any:
    if value is None:
        raise Refusal(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return value


def _list_processes(pids: list[int], size: Any, out: Any) -> None:
    room, size.value = size.value if out is not None else 0, len(pids)
    if room < len(pids):
        raise Refusal(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    for place, pid in enumerate(pids):
        out[place].pid = pid
