"""Where this process computes: the devices that Ray assigned, CPUs near them, their memory."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Literal

from actors.devices.assignment import assigned_devices, visible
from actors.devices.binding import Kernel, Linux, bind, bind_if_it_pays
from actors.devices.claims import CpuClaims
from actors.devices.discovery import discover, read_machine
from actors.devices.probe import copy_and_compute
from cluster.binding import Binding, BindingStep, MemoryPolicy
from cluster.cores import fair_count, home_of, numa_of, orders
from cluster.errors import DeviceUnavailable
from cluster.topology import Node

logger = logging.getLogger(__name__)

Mode = Literal["auto", "measured", "off"]
"""Bind; bind if a probe finds that it pays; leave it to the kernel."""


class Berth:
    """The place of one process on its node. `settle` is the one way to change it."""

    def __init__(
        self,
        mode: Mode,
        node: Node,
        devices: Sequence[str],
        claims: CpuClaims,
        kernel: Kernel | None = None,
    ) -> None:
        self._mode = mode
        self._node = node
        self.devices = tuple(devices)
        self._claims = claims
        self._kernel = kernel or Linux()
        self._refused = False
        self._fresh = True
        self.binding = self._unbound("binding is off" if mode == "off" else "not bound yet")

    def settle(self, threads: int) -> int:
        """Claim CPUs for `threads`, or as many as are fair, and bind to them; how many are held.

        Without a claim, or where the kernel refuses, nothing is bound, and it is `threads` again.
        Call it first before the model is loaded; later calls move the CPUs, not the memory.
        """
        if self._mode == "off" or self._refused:
            return threads
        count = fair_count(self._node, threads, self.devices)
        if len(self._claims.cpus) != count:
            try:
                self._claim(count)
            except OSError as error:
                self.binding = self._unbound(f"no CPU can be claimed here: {error.strerror}")
        return len(self._claims.cpus) or threads

    @property
    def _home(self) -> int | None:
        return home_of(self._node, self.devices)

    def _claim(self, count: int) -> None:
        before = self._claims.cpus
        cpus = self._claims.resize(count, orders(self._node, self._home))
        if cpus != before:
            self._bind(cpus)
        elif not cpus:
            self.binding = self._unbound(f"no {count} CPUs are left for it")

    def _bind(self, cpus: tuple[int, ...]) -> None:
        numa = numa_of(self._node, cpus)
        # With a device, the large things are there; without, the KV pool is in this memory.
        strict = bool(self.devices) or len(self._node.numa) == 1
        # Only while nothing else runs here does the probe tell anything.
        first, self._fresh = self._fresh, False
        if first and self._mode == "measured":
            self.binding = bind_if_it_pays(cpus, numa, self._kernel, copy_and_compute, strict)
        else:
            self.binding = bind(cpus, numa, self._kernel, strict)
        if set(self.binding.cpus) != set(cpus):
            self._refused = True
            self._claims.release()
        logger.info("bound to %s", self.binding.summary)

    def _unbound(self, reason: str) -> Binding:
        step = BindingStep("cpus", False, reason)
        return Binding(tuple(sorted(self._kernel.cpus())), None, MemoryPolicy.ANY, (step,))


def assigned_berth(
    mode: Mode, assigned: Sequence[str], scope: str, given: Sequence[str] = ()
) -> Berth:
    """The berth of a process to which Ray assigned these GPU ids, or to which the fleet has `given`
    slices, whatever Ray says; CUDA is told of them by UUID.

    To be made before CUDA is. Without a driver that could tell which GPUs are meant, Ray's own
    word to CUDA stands. Raises DeviceUnavailable for ids that mean no device that can be had.
    """
    ids = given or assigned
    node = discover() if ids else read_machine()
    if given and not node.driver:
        raise DeviceUnavailable(f"{', '.join(given)} cannot be had: no driver answers here")
    devices = assigned_devices(ids, node) if node.driver else ()
    if devices or not ids:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible(devices)
    return Berth(mode, node, [device.uuid for device in devices], CpuClaims(scope))
