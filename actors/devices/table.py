"""A node as a person reads it, and as `ray start --labels` takes it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cluster.topology import Closeness, Gpu, Node

GIB = 2**30
_MARKS = {Closeness.SWITCH: "switch", Closeness.NUMA: "numa", Closeness.NODE: "node"}


def lines(node: Node) -> Iterator[str]:
    """CPUs and memory, GPUs and slices, what connects the GPUs, and what could not be read."""
    driver = f"driver {node.driver}" if node.driver else "no NVIDIA driver: CPU only"
    yield f"{node.name}: {len(node.cpus)} CPUs, {node.memory_bytes / GIB:.0f} GiB, {driver}"
    for numa in node.numa:
        distances = " ".join(map(str, numa.distances))
        yield (
            f"  NUMA {numa.index}: CPUs {ranges(numa.cpus)}, {numa.memory_bytes / GIB:.0f} GiB,"
            f" distances {distances or 'unknown'}"
        )
    for gpu in node.gpus:
        yield f"  {_gpu(gpu)}"
        for cut in gpu.slices:
            yield f"    {cut.profile:10} {cut.memory_bytes / GIB:6.1f} GiB  {cut.uuid}"
    yield from _matrix(node)
    for warning in node.warnings:
        yield f"  warning: {warning}"


def labels(node: Node) -> dict[str, str]:
    """Ray node labels to place shards by: the make of the GPUs, their memory, their cuts."""
    whole = [gpu for gpu in node.gpus if not gpu.mig_enabled and gpu.usable]
    cuts = {cut.profile for gpu in node.gpus for cut in gpu.slices}
    island = max((len(group) for group in node.groups(Closeness.NVLINK)), default=0)
    found = {
        "shoal.io/gpu": whole[0].name if len({gpu.name for gpu in whole}) == 1 else "",
        "shoal.io/gpu-memory-gib": str(min((g.memory_bytes // GIB for g in whole), default="")),
        "shoal.io/nvlink-island": str(island) if island > 1 else "",
        **{f"shoal.io/mig-{_label(profile)}": "true" for profile in sorted(cuts)},
    }
    return {key: _label(value) for key, value in found.items() if value}


def ranges(numbers: tuple[int, ...]) -> str:
    """As the kernel writes lists: `0-3,8`."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def _gpu(gpu: Gpu) -> str:
    capability = ".".join(map(str, gpu.compute_capability or ())) or "?"
    health = f"ECC errors {_known(gpu.ecc_errors)}, PCIe replays {_known(gpu.pcie_replays)}"
    mode = " MIG," if gpu.mig_enabled else ""
    lost = " LOST," if gpu.lost else f" {gpu.defect.upper()}," if gpu.defect else ""
    return (
        f"GPU {gpu.index}: {gpu.name}, {gpu.memory_bytes / GIB:.1f} GiB, sm {capability},"
        f"{mode}{lost} {gpu.pci or 'PCI ?'}, NUMA {_known(gpu.numa_node)}, {health}, {gpu.uuid}"
    )


def _matrix(node: Node) -> Iterator[str]:
    """Each pair of GPUs: how many NVLinks, else how far by PCIe."""
    if len(node.gpus) < 2:
        return
    near = {
        frozenset((link.a, link.b)): f"NV{link.nvlinks}" if link.nvlinks else _MARKS[link.pcie]
        for link in node.links
    }
    yield "  " + "".join(f"{name:>8}" for name in ("", *(f"GPU{g.index}" for g in node.gpus)))
    for a in node.gpus:
        marks = [near.get(frozenset((a.uuid, b.uuid)), "-") for b in node.gpus]
        yield "  " + "".join(f"{cell:>8}" for cell in (f"GPU{a.index}", *marks))


def _known(value: int | None) -> str:
    return "?" if value is None else str(value)


def _label(text: str) -> str:
    """What Kubernetes, and so Ray, allows in a label: letters, digits and -_. within 63."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-_.")[:63]
