"""A driver that is not there: libnvidia-ml as pynvml calls it, over recorded GPUs.

It stands where pynvml keeps its library, so all of pynvml runs as it does with a driver: arguments
come as ctypes passes them, answers go into the caller's memory, errors are NVML's codes, and states
change as a driver's do. A function that no module registers, or that a test removes, is a missing
symbol. The functions themselves are in fake_queries, fake_mig and fake_health.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml

from cluster.topology import Gpu, MigProfile, Node

Function = Callable[..., None]
SYMBOLS: dict[str, Function] = {}
"""What the library exports."""

_HANDLES = (
    pynvml.c_nvmlDevice_t,
    pynvml.c_nvmlGpuInstance_t,
    pynvml.c_nvmlComputeInstance_t,
    pynvml.c_nvmlEventSet_t,
)
WHOLE_GPU = 0xFFFFFFFF


class Refusal(Exception):
    """An NVML error code on its way to the caller."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(eq=False)
class FakeEvents:
    """An event set: of each event its GPU, its XID and its GPU instance."""

    pending: list[tuple[FakeGpu, int, int]] = field(default_factory=list)


@dataclass(eq=False)
class FakeGpu:
    """A GPU: what was recorded of it, how it is cut now, and who computes or draws on it.

    `rows` are those remapped, correctable and not, whether any waits for a reset, and whether it
    failed; None for a GPU that retires pages, of which one may wait.
    """

    facts: Gpu
    instances: dict[int, FakeInstance] = field(default_factory=dict)
    processes: list[int] = field(default_factory=list)
    drawing: list[int] = field(default_factory=list)
    ecc_errors: int | None = None
    rows: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    page_waits: bool = False
    listeners: list[FakeEvents] = field(default_factory=list)

    @property
    def uuid(self) -> str:
        return self.facts.uuid

    def err(self, xid: int, instance: int = WHOLE_GPU) -> None:
        """A critical error, told to all who listen."""
        for events in self.listeners:
            events.pending.append((self, xid, instance))

    def mig_devices(self) -> list[FakeCompute]:
        return [part for one in self.instances.values() for part in one.compute.values()]


@dataclass(eq=False)
class FakeInstance:
    """A GPU instance, and the compute instances that it is cut into."""

    gpu: FakeGpu
    number: int
    profile: MigProfile
    start: int
    compute: dict[int, FakeCompute] = field(default_factory=dict)

    @property
    def uuid(self) -> str:
        return self.gpu.uuid


@dataclass(eq=False)
class FakeCompute:
    """A compute instance of `slices` from `start` on: to CUDA, a MIG device."""

    instance: FakeInstance
    number: int
    slices: int
    start: int
    uuid: str
    processes: list[int] = field(default_factory=list)


class FakeNvml:
    """The library, loaded. `permitted`: whether the caller may manage MIG."""

    def __init__(self, node: Node, permitted: bool = True) -> None:
        self.node = node
        self.permitted = permitted
        self.calls: list[str] = []
        self.gpus = [FakeGpu(gpu, ecc_errors=gpu.ecc_errors) for gpu in node.gpus]
        self._handles: list[Any] = [None]
        self._failing: dict[tuple[str, str | None], int] = {}
        self._once: dict[str, tuple[int, int]] = {}
        self._removed: set[str] = set()
        for gpu in self.gpus:
            _cut_as_recorded(gpu)

    def __getattr__(self, name: str) -> Callable[..., int]:
        """A symbol: as a C function it answers by reference, and gives back an error code."""
        if name not in SYMBOLS or name in self._removed:
            raise AttributeError(name)

        def function(*arguments: Any) -> int:
            things = [self._behind(argument) for argument in arguments]
            self.calls.append(name)
            try:
                self._fail_if_told(name, things)
                SYMBOLS[name](self, *things)
            except Refusal as refusal:
                return refusal.code
            return int(pynvml.NVML_SUCCESS)

        return function

    def remove(self, *names: str) -> None:
        """This library is older than those symbols."""
        self._removed |= set(names)

    def fail(self, name: str, code: int, uuid: str | None = None) -> None:
        """From now on a function answers `code`: of one GPU or slice, or of all."""
        self._failing[name, uuid] = code

    def fail_once(self, name: str, code: int, after: int) -> None:
        """A function answers `code` one single time, after so many calls that went well."""
        self._once[name] = (code, after)

    def gpu(self, uuid: str) -> FakeGpu:
        return next(gpu for gpu in self.gpus if gpu.uuid == uuid)

    def cuts(self, uuid: str) -> list[tuple[str, int, int]]:
        """How a GPU is cut now: profile, first slice, and in how many compute instances."""
        instances = self.gpu(uuid).instances.values()
        return sorted((one.profile.name, one.start, len(one.compute)) for one in instances)

    def handle(self, thing: Any) -> ctypes.c_void_p:
        """An opaque pointer that stands for the thing."""
        if thing not in self._handles:
            self._handles.append(thing)
        return ctypes.c_void_p(self._handles.index(thing))

    def _behind(self, argument: Any) -> Any:
        """The thing that a handle stands for, the number in a C integer, the target of byref."""
        if isinstance(argument, _HANDLES):
            return self._handles[ctypes.cast(argument, ctypes.c_void_p).value or 0]
        if isinstance(argument, ctypes.c_uint | ctypes.c_ulonglong | ctypes.c_char_p):
            return argument.value
        return getattr(argument, "_obj", argument)

    def _fail_if_told(self, name: str, things: list[Any]) -> None:
        uuid = getattr(things[0], "uuid", None) if things else None
        for key in ((name, uuid), (name, None)):
            if key in self._failing:
                raise Refusal(self._failing[key])
        code, left = self._once.get(name, (0, 0))
        if code and left:
            self._once[name] = (code, left - 1)
        elif code:
            del self._once[name]
            raise Refusal(code)


def symbol(name: str) -> Callable[[Function], Function]:
    """Export a function of the library under NVML's name."""

    def register(function: Function) -> Function:
        SYMBOLS[name] = function
        return function

    return register


def point(out: Any, handle: ctypes.c_void_p) -> None:
    """Write a handle where the caller wants it."""
    ctypes.memmove(ctypes.byref(out), ctypes.byref(handle), ctypes.sizeof(handle))


def slices_of(profile: MigProfile) -> int:
    """Compute slices: the 3 of 3g.20gb."""
    return int(profile.name.partition("g.")[0])


def _cut_as_recorded(gpu: FakeGpu) -> None:
    profiles = {profile.name: profile for profile in gpu.facts.profiles}
    for cut in gpu.facts.slices:
        part, _, whole = cut.profile.rpartition("c.")
        instance = gpu.instances.setdefault(
            cut.gpu_instance, FakeInstance(gpu, cut.gpu_instance, profiles[whole], cut.start)
        )
        start = sum(one.slices for one in instance.compute.values())
        slices = int(part) if part else slices_of(instance.profile)
        instance.compute[cut.compute_instance] = FakeCompute(
            instance, cut.compute_instance, slices, start, cut.uuid
        )
