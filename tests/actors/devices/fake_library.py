"""The fake driver with all its symbols, to be loaded for good in a process of its own."""

from __future__ import annotations

import pynvml

from cluster.topology import Node
from tests.actors.devices import fake_health, fake_mig, fake_queries  # noqa: F401 - the symbols
from tests.actors.devices.fake_driver import FakeNvml


def load(node: Node) -> FakeNvml:
    """From now on NVML shows the GPUs of `node` to this process."""
    nvml = FakeNvml(node)
    pynvml.nvmlLib = nvml
    pynvml._nvmlGetFunctionPointer_cache.clear()
    return nvml
