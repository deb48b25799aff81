"""A fake driver in pynvml's place for its library, and a folder tree in the place of /sys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from cluster.topology import Node
from tests.actors.devices import fake_health, fake_mig, fake_queries  # noqa: F401 - the symbols
from tests.actors.devices.fake_driver import FakeNvml

Install = Callable[[Node], FakeNvml]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Load a fake library for the GPUs of a node."""

    def install(node: Node) -> FakeNvml:
        nvml = FakeNvml(node)
        monkeypatch.setattr(pynvml, "nvmlLib", nvml)
        # pynvml keeps the symbols it has found, and may have found some in another library.
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return nvml

    return install


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """No library to load, whatever this machine has."""

    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", missing)


def write_sysfs(root: Path, node: Node, with_pci: bool = True) -> Path:
    """What the kernel of such a machine shows: CPUs, NUMA nodes, and GPUs behind their bridges."""
    _write(root / "devices/system/cpu/online", ",".join(map(str, node.cpus)))
    for core in node.cores:
        for cpu in core:
            siblings = root / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
            _write(siblings, ",".join(map(str, core)))
    for numa in node.numa:
        folder = root / f"devices/system/node/node{numa.index}"
        _write(folder / "cpulist", ",".join(map(str, numa.cpus)))
        _write(folder / "distance", " ".join(map(str, numa.distances)))
        total = numa.memory_bytes // 1024
        _write(folder / "meminfo", f"Node {numa.index} MemTotal:  {total} kB\n")
    if with_pci:
        _write_gpus(root, node)
    return root


def _write_gpus(root: Path, node: Node) -> None:
    """GPUs whose links say that they share a switch get one root port."""
    for place, gpu in enumerate(node.gpus):
        near = {link.a for link in node.links if link.b == gpu.uuid and link.pcie.name == "SWITCH"}
        first = next((i for i, other in enumerate(node.gpus) if other.uuid in near), place)
        device = root / f"devices/pci0000:{first:02x}/0000:{first:02x}:01.0/{gpu.pci}"
        _write(device / "numa_node", "-1" if gpu.numa_node is None else str(gpu.numa_node))
        link = root / "bus/pci/devices" / gpu.pci
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(device)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
