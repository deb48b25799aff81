"""Binding this very process: its CPUs, and the NUMA node of the memory that it will touch.

To be called before threads are started and memory is touched: threads inherit the policy of the
thread that starts them, and pages stay where they were first touched.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Callable, Collection
from typing import Protocol

from cluster.binding import Binding, BindingStep, MemoryPolicy

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
"""Numbers of the system call, from the kernel's tables of each architecture."""
_MODES = {MemoryPolicy.ANY: 0, MemoryPolicy.PREFER: 1, MemoryPolicy.BIND: 2}
"""MPOL_DEFAULT, MPOL_PREFERRED and MPOL_BIND of <numaif.h>."""
_MASK_BITS = 1024


class Kernel(Protocol):
    """What binding asks of the operating system. Each call raises OSError where it refuses."""

    def cpus(self) -> frozenset[int]: ...

    def set_cpus(self, cpus: Collection[int]) -> None: ...

    def set_memory(self, policy: MemoryPolicy, numa_node: int | None) -> None: ...


class Linux:
    """The kernel that this process runs on."""

    def cpus(self) -> frozenset[int]:
        return frozenset(os.sched_getaffinity(0))

    def set_cpus(self, cpus: Collection[int]) -> None:
        """For every thread that there is; those to come inherit it from who starts them."""
        os.sched_setaffinity(0, cpus)
        for thread in os.listdir("/proc/self/task"):
            try:
                os.sched_setaffinity(int(thread), cpus)
            except ProcessLookupError:
                continue  # it has ended since it was listed

    def set_memory(self, policy: MemoryPolicy, numa_node: int | None) -> None:
        """For the calling thread, and for threads that it starts from now on."""
        number = _SET_MEMPOLICY.get(platform.machine())
        if number is None:
            raise OSError(errno.ENOSYS, f"unknown architecture {platform.machine()}")
        width = 8 * ctypes.sizeof(ctypes.c_ulong)
        mask = (ctypes.c_ulong * (_MASK_BITS // width))()
        if numa_node is not None:
            mask[numa_node // width] = 1 << numa_node % width
        libc = ctypes.CDLL(None, use_errno=True)
        # The kernel looks at one bit less than it is told there are.
        if libc.syscall(number, _MODES[policy], mask, _MASK_BITS + 1):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))


def bind(
    cpus: Collection[int], numa_node: int | None, kernel: Kernel, strict: bool = True
) -> Binding:
    """Bind this process to `cpus`, and its memory to `numa_node` as strictly as the kernel allows.

    Not `strict`, memory is only preferred there: bound to a node that runs full, a process would
    be killed while others have room. Never raises: a process that cannot be bound runs unbound,
    and its steps say why.
    """
    steps: list[BindingStep] = []
    if not _bind_cpus(cpus, kernel, steps):
        return Binding(tuple(sorted(kernel.cpus())), None, MemoryPolicy.ANY, tuple(steps))
    policy = _bind_memory(numa_node, kernel, strict, steps)
    home = None if policy is MemoryPolicy.ANY else numa_node
    return Binding(tuple(sorted(kernel.cpus())), home, policy, tuple(steps))


def bind_if_it_pays(
    cpus: Collection[int],
    numa_node: int | None,
    kernel: Kernel,
    probe: Callable[[], float],
    strict: bool = True,
    tolerance: float = 0.05,
) -> Binding:
    """Bind, measure before and after by `probe` (seconds), and undo it where it got slower.

    By more than `tolerance`, a fraction: two measurements of the same thing differ a little.
    """
    at_first, before = kernel.cpus(), probe()
    bound = bind(cpus, numa_node, kernel, strict)
    after = probe()
    pays = after <= before * (1 + tolerance)
    found = f"the probe took {before * 1e3:.1f} ms before and {after * 1e3:.1f} ms after"
    steps = (*bound.steps, BindingStep("keep", pays, found))
    if pays:
        return Binding(bound.cpus, bound.numa_node, bound.memory, steps)
    kernel.set_cpus(at_first)
    if bound.memory is not MemoryPolicy.ANY:
        kernel.set_memory(MemoryPolicy.ANY, None)
    return Binding(tuple(sorted(kernel.cpus())), None, MemoryPolicy.ANY, steps)


def _bind_cpus(cpus: Collection[int], kernel: Kernel, steps: list[BindingStep]) -> bool:
    if not cpus:
        steps.append(BindingStep("cpus", False, "no CPUs are known for it"))
        return False
    try:
        kernel.set_cpus(cpus)
    except OSError as error:
        steps.append(BindingStep("cpus", False, f"the kernel refuses: {error.strerror}"))
        return False
    steps.append(BindingStep("cpus", True, f"{len(cpus)} of its own"))
    return True


def _bind_memory(
    numa_node: int | None, kernel: Kernel, strict: bool, steps: list[BindingStep]
) -> MemoryPolicy:
    """Down the ladder: bind, prefer, CPUs only."""
    if numa_node is None:
        steps.append(BindingStep("memory", False, "its CPUs are not of one NUMA node"))
        return MemoryPolicy.ANY
    if not strict:
        steps.append(BindingStep("bind", False, "its KV pool may outgrow the NUMA node"))
    ladder = (MemoryPolicy.BIND, MemoryPolicy.PREFER) if strict else (MemoryPolicy.PREFER,)
    for policy in ladder:
        try:
            kernel.set_memory(policy, numa_node)
        except OSError as error:
            steps.append(BindingStep(policy, False, f"the kernel refuses: {error.strerror}"))
        else:
            steps.append(BindingStep(policy, True, f"NUMA node {numa_node}"))
            return policy
    return MemoryPolicy.ANY
