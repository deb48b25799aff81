"""One node's GPUs as NVML tells of them, and what connects them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import pynvml

from actors.devices.health import defect_of, ecc_errors_of
from actors.devices.nvml import Reader
from actors.devices.slices import read_profiles, read_slices
from actors.devices.sysfs import Sysfs
from cluster.topology import Closeness, Gpu, Link

_NEAR = {
    pynvml.NVML_TOPOLOGY_INTERNAL: Closeness.SWITCH,
    pynvml.NVML_TOPOLOGY_SINGLE: Closeness.SWITCH,
    pynvml.NVML_TOPOLOGY_MULTIPLE: Closeness.SWITCH,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: Closeness.NUMA,
    pynvml.NVML_TOPOLOGY_NODE: Closeness.NUMA,
    pynvml.NVML_TOPOLOGY_SYSTEM: Closeness.NODE,
}


@dataclass(slots=True)
class Found:
    """A GPU, its handle, and where its NVLinks lead: PCI addresses, "" for a switch."""

    gpu: Gpu
    handle: Any
    reader: Reader
    peers: Counter[str] = field(default_factory=Counter)


def read_gpus(sysfs: Sysfs, warnings: list[str]) -> tuple[tuple[Gpu, ...], tuple[Link, ...]]:
    """All GPUs that the driver shows, in its order, and a link for each pair of them."""
    reader = Reader("NVML", warnings)
    count = reader.ask("number of GPUs", pynvml.nvmlDeviceGetCount) or 0
    found: dict[str, Found] = {}
    for index in range(count):
        one = _read_gpu(index, sysfs, warnings)
        if one is not None and one.gpu.uuid in found:
            warnings.append(f"{one.reader.label}: its UUID is that of another GPU; left out")
        elif one is not None:
            found[one.gpu.uuid] = one
    links = tuple(_link(a, b, sysfs) for a, b in combinations(found.values(), 2))
    # Only now, after the last question, is it known which of them were lost on the way.
    gpus = tuple(replace(one.gpu, lost=one.reader.lost) for one in found.values())
    return gpus, links


def _read_gpu(index: int, sysfs: Sysfs, warnings: list[str]) -> Found | None:
    """None where not even its name is known: nobody could ask for it."""
    reader = Reader(f"GPU {index}", warnings)
    handle = reader.ask("handle", pynvml.nvmlDeviceGetHandleByIndex, index)
    uuid = None if handle is None else reader.ask("UUID", pynvml.nvmlDeviceGetUUID, handle)
    if uuid == "":
        warnings.append(f"{reader.label}: it says no UUID; left out")
    if not uuid:
        return None
    reader.label = f"GPU {index} ({uuid})"
    gpu = replace(_facts(uuid, handle, sysfs, reader), index=index)
    return Found(gpu, handle, reader, _nvlinks(handle, reader))


def _facts(uuid: str, handle: Any, sysfs: Sysfs, reader: Reader) -> Gpu:
    ask = reader.ask
    memory = ask("memory", pynvml.nvmlDeviceGetMemoryInfo, handle)
    total = 0 if memory is None else int(memory.total)
    pci = ask("PCI address", _pci_address, handle) or ""
    mig = bool((ask("MIG mode", pynvml.nvmlDeviceGetMigMode, handle) or [0])[0])
    return Gpu(
        uuid=uuid,
        name=ask("name", pynvml.nvmlDeviceGetName, handle) or "unknown",
        memory_bytes=total,
        pci=pci,
        numa_node=_numa_node(handle, pci, sysfs, reader),
        compute_capability=ask(
            "compute capability", pynvml.nvmlDeviceGetCudaComputeCapability, handle
        ),
        mig_enabled=mig,
        slices=read_slices(handle, total, reader) if mig else (),
        profiles=read_profiles(handle, total, reader) if mig else (),
        defect=defect_of(handle, reader),
        ecc_errors=ecc_errors_of(handle, reader),
        pcie_replays=ask("PCIe replays", pynvml.nvmlDeviceGetPcieReplayCounter, handle),
    )


def _pci_address(handle: Any) -> str:
    return _as_in_sysfs(pynvml.nvmlDeviceGetPciInfo(handle).busId)


def _as_in_sysfs(address: str) -> str:
    """In small letters and with four digits of domain, where NVML has eight."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _numa_node(handle: Any, pci: str, sysfs: Sysfs, reader: Reader) -> int | None:
    """As the kernel says, else as NVML says; on a machine with one node there is no question."""
    node = sysfs.numa_node_of(pci)
    if node is None and sysfs.single_numa_node is not None:
        return sysfs.single_numa_node
    if node is None:
        ask, scope = pynvml.nvmlDeviceGetMemoryAffinity, pynvml.NVML_AFFINITY_SCOPE_NODE
        masks = reader.ask("NUMA node", ask, handle, 16, scope)
        bits = [i for i in range(1024) if masks and masks[i // 64] >> (i % 64) & 1]
        node = bits[0] if len(bits) == 1 else None
    return node


def _nvlinks(handle: Any, reader: Reader) -> Counter[str]:
    """Active NVLinks by the PCI address at their other end, "" for a switch."""
    peers: Counter[str] = Counter()
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            active = pynvml.nvmlDeviceGetNvLinkState(handle, link)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            break
        except pynvml.NVMLError:
            reader.ask("NVLinks", pynvml.nvmlDeviceGetNvLinkState, handle, link)
            break
        if active:
            peers[_far_end(handle, link, reader)] += 1
    return peers


def _far_end(handle: Any, link: int, reader: Reader) -> str:
    what, ask = "far ends of NVLinks", reader.ask
    kind = ask(what, pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
    if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
        return ""
    return ask(what, _peer_address, handle, link) or "unknown"


def _peer_address(handle: Any, link: int) -> str:
    return _as_in_sysfs(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)


def _link(a: Found, b: Found, sysfs: Sysfs) -> Link:
    """Links through switches count as far as both ends have them."""
    straight = a.peers[b.gpu.pci] if b.gpu.pci else 0
    nvlinks = straight + min(a.peers[""], b.peers[""])
    return Link(a.gpu.uuid, b.gpu.uuid, nvlinks, _pcie(a, b, sysfs))


def _pcie(a: Found, b: Found, sysfs: Sysfs) -> Closeness:
    """As NVML says, else from the kernel's tree of PCI bridges."""
    ask = pynvml.nvmlDeviceGetTopologyCommonAncestor
    level = None if b.reader.lost else a.reader.ask("PCIe topology", ask, a.handle, b.handle)
    if level is not None:
        return _NEAR.get(level, Closeness.NODE)
    if sysfs.share_bridge(a.gpu.pci, b.gpu.pci):
        return Closeness.SWITCH
    same = a.gpu.numa_node is not None and a.gpu.numa_node == b.gpu.numa_node
    return Closeness.NUMA if same else Closeness.NODE
