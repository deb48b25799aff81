"""What this machine is: read once from NVML and sysfs, degraded to what can be known."""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import replace
from pathlib import Path

import pynvml

from actors.devices.gpus import read_gpus
from actors.devices.nvml import FAILURES, Reader, driver, failed_with, in_words
from actors.devices.sysfs import Sysfs
from cluster.topology import Gpu, Link, Node

logger = logging.getLogger(__name__)

SYSFS = Path("/sys")
_NO_DRIVER = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)


def discover(name: str | None = None, sysfs: Path = SYSFS) -> Node:
    """This machine, called `name` (by default as the host is).

    Each thing that cannot be read is one warning, logged and kept; nothing is raised.
    """
    kernel = _kernel(sysfs)
    found: list[str] = []
    version, gpus, links = _read_nvml(kernel, found)
    warnings = tuple(dict.fromkeys(found))
    for warning in warnings:
        logger.warning("%s", warning)
    machine = _machine(kernel, name)
    return replace(machine, gpus=gpus, links=links, driver=version, warnings=warnings)


def read_machine(name: str | None = None, sysfs: Path = SYSFS) -> Node:
    """CPUs and memory alone: all that a process on the CPU needs to know, without NVML."""
    return _machine(_kernel(sysfs), name)


def _kernel(sysfs: Path) -> Sysfs:
    return Sysfs(sysfs, frozenset(os.sched_getaffinity(0)))


def _machine(kernel: Sysfs, name: str | None) -> Node:
    return Node(name or socket.gethostname(), kernel.numa_nodes, kernel.cores)


def _read_nvml(
    kernel: Sysfs, warnings: list[str]
) -> tuple[str | None, tuple[Gpu, ...], tuple[Link, ...]]:
    """The driver's version, its GPUs and their links; None and nothing without a driver."""
    try:
        with driver():
            reader = Reader("NVML", warnings)
            version = reader.ask("driver version", pynvml.nvmlSystemGetDriverVersion)
            return version or "unknown", *read_gpus(kernel, warnings)
    except FAILURES as error:
        if failed_with(error, *_NO_DRIVER):
            logger.info("no NVIDIA driver (%s): this node counts as CPU only", in_words(error))
        else:
            text = f"NVML does not start ({in_words(error)}): this node counts as CPU only"
            warnings.append(text)
        return None, (), ()
