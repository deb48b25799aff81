"""What this machine is: read once from NVML and sysfs, degraded to what can be known."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

import pynvml

from actors.devices.gpus import read_gpus
from actors.devices.nvml import FAILURES, Reader, driver, failed_with, in_words
from actors.devices.sysfs import Sysfs
from cluster.topology import Gpu, Link, Node

logger = logging.getLogger(__name__)

_NO_DRIVER = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)


def discover(name: str | None = None, sysfs: Path = Path("/sys")) -> Node:
    """This machine, called `name` (by default as the host is).

    Each thing that cannot be read is one warning, logged and kept; nothing is raised.
    """
    kernel = Sysfs(sysfs, frozenset(os.sched_getaffinity(0)))
    warnings: list[str] = []
    version, gpus, links = _read_nvml(kernel, warnings)
    warnings = list(dict.fromkeys(warnings))
    for warning in warnings:
        logger.warning("%s", warning)
    return Node(
        name=name or socket.gethostname(),
        numa=kernel.numa_nodes,
        cores=kernel.cores,
        gpus=gpus,
        links=links,
        driver=version,
        warnings=tuple(warnings),
    )


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
