"""Cutting GPUs: MIG slices made and given up to fit a plan, and the layout found put back."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pynvml

from actors.devices.layout import Instance, Layout, become, living_instances, read_layout
from actors.devices.layout_book import LayoutBook
from actors.devices.nvml import FAILURES, Reader, driver, in_words
from actors.devices.slices import possible_spans, profile_infos, profile_name
from cluster.errors import DeviceUnavailable
from cluster.placement import NewSlice, Recut

logger = logging.getLogger(__name__)

_ADVICE = {
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "run Shoal as root, or give it read access to"
        " /proc/driver/nvidia/capabilities/mig/config and the device node that belongs to it"
    ),
    pynvml.NVML_ERROR_IN_USE: "a process still uses a slice: drain its shard first",
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: "its layout has changed: read it and plan again",
    pynvml.NVML_ERROR_NOT_FOUND: "it is not on this node: read the topology and plan again",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "this GPU cannot do MIG: ask for it whole",
    pynvml.NVML_ERROR_GPU_IS_LOST: "the GPU has to be reset, or replaced",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "the driver is too old to manage MIG: update it",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "install the NVIDIA driver",
}


class MigManager:
    """The one hand that cuts this node's GPUs. It remembers how it found each, in a `book` too if
    it has one, from which its successor goes on.

    It never touches a GPU on which a process runs that is not one of ours, nor one of which it
    cannot tell. A cut that fails is undone.
    """

    def __init__(self, book: LayoutBook | None = None) -> None:
        self._book = book
        self._found = book.pages() if book else {}

    def recut(self, recut: Recut, own_pids: Collection[int]) -> None:
        """Give up and create slices of one GPU, as planned.

        Raises DeviceUnavailable, the layout being as before, where the GPU may not or cannot be
        cut so; the message says what to do.
        """
        with _session(recut.gpu, own_pids) as gpu:
            before = read_layout(gpu)
            target = _planned(gpu, recut)
            self._remember(recut.gpu, before)
            _become(gpu, recut.gpu, before, target)

    def restore(self, own_pids: Collection[int]) -> tuple[str, ...]:
        """Put back the layout of every GPU that was cut; what went wrong, GPU by GPU.

        One GPU that cannot be restored does not keep the others from it; it can be tried again.
        """
        problems = []
        for uuid, found in tuple(self._found.items()):
            try:
                with _session(uuid, own_pids) as gpu:
                    _become(gpu, uuid, read_layout(gpu), found)
                self._forget(uuid)
            except DeviceUnavailable as error:
                logger.warning("the MIG layout is not restored: %s", error.message)
                problems.append(error.message)
        return tuple(problems)

    def _remember(self, uuid: str, layout: Layout) -> None:
        """As it was first found. Raises DeviceUnavailable where that cannot be written down."""
        if uuid in self._found:
            return
        try:
            if self._book is not None:
                self._book.enter(uuid, layout)
        except OSError as error:
            raise DeviceUnavailable(
                f"{uuid} is left alone: its layout could not be put back after a crash, since"
                f" {error.filename} cannot be written ({error.strerror})"
            ) from error
        self._found[uuid] = layout

    def _forget(self, uuid: str) -> None:
        """Raises DeviceUnavailable where it stays written down."""
        try:
            if self._book is not None:
                self._book.strike(uuid)
        except OSError as error:
            raise DeviceUnavailable(
                f"{uuid} has its layout again, and would be given it once more, since"
                f" {error.filename} cannot be removed ({error.strerror})"
            ) from error
        del self._found[uuid]


@contextmanager
def _session(uuid: str, own_pids: Collection[int]) -> Iterator[Any]:
    """The handle of a GPU that may be cut. Raises DeviceUnavailable for every other."""
    try:
        with driver():
            gpu = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            _check_mode(gpu, uuid)
            _check_processes(gpu, uuid, own_pids)
            yield gpu
    except FAILURES as error:
        raise DeviceUnavailable(
            f"{uuid} cannot be cut: {in_words(error)}{_advice(error)}"
        ) from error


def _check_mode(gpu: Any, uuid: str) -> None:
    current, _ = pynvml.nvmlDeviceGetMigMode(gpu)
    if current != pynvml.NVML_DEVICE_MIG_ENABLE:
        raise DeviceUnavailable(
            f"{uuid} is not in MIG mode: stop what runs on it, then"
            f" run `nvidia-smi -i {uuid} -mig 1`"
        )


def _check_processes(gpu: Any, uuid: str, own_pids: Collection[int]) -> None:
    """A process that is seen from inside a container bears another number there, so it counts as
    foreign: that errs on the safe side."""
    running = {pid for device in (gpu, *_mig_devices(gpu)) for pid in _processes(device)}
    foreign = sorted(running - set(own_pids))
    if foreign:
        raise DeviceUnavailable(
            f"{uuid} is left alone: processes {foreign} run there that are not Shoal's;"
            " stop them, or take the GPU out of the plan"
        )


def _processes(device: Any) -> set[int]:
    """Raises an NVML error where it cannot be known who computes there."""
    found = [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device)]
    # Few GPUs draw in MIG mode; the others, and older drivers, have no answer.
    with suppress(pynvml.NVMLError_NotSupported, pynvml.NVMLLibraryMismatchError):
        found += [process.pid for process in pynvml.nvmlDeviceGetGraphicsRunningProcesses(device)]
    return set(found)


def _mig_devices(gpu: Any) -> Iterator[Any]:
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        except pynvml.NVMLError_NotFound:
            continue


def _planned(gpu: Any, recut: Recut) -> Layout:
    """The layout that the recut leads to. Raises DeviceUnavailable where it fits no more."""
    numbers = {
        pynvml.nvmlDeviceGetUUID(device): pynvml.nvmlDeviceGetGpuInstanceId(device)
        for device in _mig_devices(gpu)
    }
    going = {numbers.get(uuid, -1) for uuid in recut.destroy}
    # Compute instances fall with their GPU instance, so all of them must be in the plan.
    if {uuid for uuid, number in numbers.items() if number in going} != set(recut.destroy):
        raise DeviceUnavailable(
            f"{recut.gpu} has been cut otherwise since the plan was made: read it and plan again"
        )
    staying = {one.instance for one in living_instances(gpu) if one.number not in going}
    made = {_new_instance(gpu, recut.gpu, new) for new in recut.create}
    return frozenset(staying | made)


def _new_instance(gpu: Any, uuid: str, new: NewSlice) -> Instance:
    memory = int(pynvml.nvmlDeviceGetMemoryInfo(gpu).total)
    infos = {profile_name(info, memory): info for info in profile_infos(gpu)}
    if new.profile not in infos:
        known = ", ".join(sorted(infos)) or "none"
        raise DeviceUnavailable(f"{uuid} knows no MIG profile {new.profile}; it knows: {known}")
    number = int(infos[new.profile].id)
    sizes = dict(possible_spans(gpu, number, Reader(uuid)))
    if new.start not in sizes:
        raise DeviceUnavailable(
            f"{uuid} allows {new.profile} at {sorted(sizes)}, not at {new.start}: plan again"
        )
    return Instance(number, new.start, sizes[new.start])


def _become(gpu: Any, uuid: str, before: Layout, target: Layout) -> None:
    """Change the layout, or else change it back and say what failed."""
    try:
        become(gpu, target)
    except FAILURES as error:
        try:
            become(gpu, before)
        except FAILURES as second:
            after = f"; nor could the layout before be put back: {in_words(second)}"
        else:
            after = "; the layout is as it was before"
        raise DeviceUnavailable(
            f"{uuid} cannot be cut as planned: {in_words(error)}{_advice(error)}{after}"
        ) from error


def _advice(error: BaseException) -> str:
    advice = _ADVICE.get(getattr(error, "value", -1))
    return f" ({advice})" if advice else ""
