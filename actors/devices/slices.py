"""MIG as the driver shows it: the slices a GPU is cut into, and the cuts that it allows."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pynvml

from actors.devices.nvml import Reader
from cluster.topology import MigProfile, MigSlice

MIB = 2**20
GIB = 2**30


def read_slices(gpu: Any, memory_bytes: int, reader: Reader) -> tuple[MigSlice, ...]:
    """The MIG devices of a GPU of `memory_bytes`, in the driver's order.

    Compute instances of one GPU instance share its memory, so each counts with an even part.
    """
    count = reader.ask("number of MIG devices", pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0
    found = [
        cut
        for index in range(count)
        if (device := _device(gpu, index, reader)) is not None
        and (cut := _slice(gpu, device, memory_bytes, reader)) is not None
    ]
    sharing = Counter(cut.gpu_instance for cut in found if cut.gpu_instance >= 0)
    return tuple(
        replace(cut, memory_bytes=cut.memory_bytes // max(sharing[cut.gpu_instance], 1))
        for cut in found
    )


def read_profiles(gpu: Any, memory_bytes: int, reader: Reader) -> tuple[MigProfile, ...]:
    """The profiles that the GPU can be cut into, with the places where the driver allows each."""
    profiles = []
    for info in reader.ask("MIG profiles", profile_infos, gpu) or ():
        spans = possible_spans(gpu, info.id, reader)
        name = reader.ask("name of a MIG profile", profile_name, info, memory_bytes)
        if spans and name:
            starts = tuple(sorted(start for start, _ in spans))
            memory = int(info.memorySizeMB) * MIB
            profiles.append(MigProfile(name, memory, spans[0][1], starts))
    return tuple(profiles)


def profile_infos(gpu: Any) -> list[Any]:
    """What the driver says of each GPU instance profile that this GPU knows.

    Raises an NVML error: who cuts a GPU must not mistake a part of the truth for all of it.
    """
    found = []
    for index in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        with suppress(pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            found.append(_profile_info(gpu, index))
    return found


def profile_name(info: Any, memory_bytes: int) -> str:
    """As the driver calls the profile, or by the rule that it follows: `3g.20gb`."""
    told = str(getattr(info, "name", ""))
    return told.removeprefix("MIG ") or (
        f"{info.sliceCount}g.{_rounded_gb(info.memorySizeMB, memory_bytes)}gb"
    )


def possible_spans(gpu: Any, profile: int, reader: Reader) -> list[tuple[int, int]]:
    """Where instances of a profile may be, whether or not there is room: first slice and size."""
    count = ctypes.c_uint(0)
    ask = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
    what = "places of MIG profiles"
    if reader.ask(what, ask, gpu, profile, None, ctypes.byref(count)) is None:
        return []
    places = (pynvml.c_nvmlGpuInstancePlacement_t * max(count.value, 1))()
    if reader.ask(what, ask, gpu, profile, places, ctypes.byref(count)) is None:
        return []
    return [(int(place.start), int(place.size)) for place in places[: count.value]]


def _profile_info(gpu: Any, index: int) -> Any:
    try:
        return pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, index)
    except pynvml.NVMLError_FunctionNotFound:
        # An older driver has the first version only, which does not tell the name.
        return pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, index, version=1)


def _device(gpu: Any, index: int, reader: Reader) -> Any:
    """The MIG device at an index, None where the index is not in use."""
    try:
        return pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
    except pynvml.NVMLError_NotFound:
        return None
    except pynvml.NVMLError as error:
        reader.warnings.append(f"{reader.label}: MIG device {index} cannot be read: {error}")
        return None


def _slice(gpu: Any, device: Any, memory_bytes: int, reader: Reader) -> MigSlice | None:
    uuid = reader.ask("UUID of a MIG device", pynvml.nvmlDeviceGetUUID, device)
    if uuid is None:
        return None
    own = Reader(f"{reader.label}, {uuid}", reader.warnings)
    memory = own.ask("memory", pynvml.nvmlDeviceGetMemoryInfo, device)
    instance = own.ask("GPU instance", pynvml.nvmlDeviceGetGpuInstanceId, device)
    compute = own.ask("compute instance", pynvml.nvmlDeviceGetComputeInstanceId, device)
    start, size = (-1, 0) if instance is None else _span(gpu, instance)
    reader.lost = reader.lost or own.lost
    return MigSlice(
        uuid=uuid,
        profile=_profile_of(device, memory_bytes, own),
        memory_bytes=0 if memory is None else int(memory.total),
        gpu_instance=-1 if instance is None else instance,
        compute_instance=-1 if compute is None else compute,
        start=start,
        size=size,
    )


def _profile_of(device: Any, memory_bytes: int, reader: Reader) -> str:
    """From the device's name, `NVIDIA A100-SXM4-40GB MIG 1g.5gb`, else from its attributes."""
    name = reader.ask("name", pynvml.nvmlDeviceGetName, device) or ""
    if " MIG " in name:
        return str(name.rpartition(" MIG ")[2])
    facts = reader.ask("attributes", pynvml.nvmlDeviceGetAttributes, device)
    if facts is None:
        return "unknown"
    whole = f"{facts.gpuInstanceSliceCount}g.{_rounded_gb(facts.memorySizeMB, memory_bytes)}gb"
    part = facts.computeInstanceSliceCount
    return whole if part == facts.gpuInstanceSliceCount else f"{part}c.{whole}"


def _span(gpu: Any, instance: int) -> tuple[int, int]:
    """The memory slices of a GPU instance; unknown to who may not manage them, so no warning."""
    try:
        handle = pynvml.nvmlDeviceGetGpuInstanceById(gpu, instance)
        place = pynvml.nvmlGpuInstanceGetInfo(handle).placement
    except pynvml.NVMLError:
        return -1, 0
    return int(place.start), int(place.size)


def _rounded_gb(memory_mb: int, gpu_memory_bytes: int) -> int:
    """Gigabytes as MIG profiles are named: eighths of the GPU, rounded up, of its whole GiB.

    The rule of NVIDIA's go-nvlib, by which a 7g slice with 39.4 GiB of 40 is a `7g.40gb`.
    """
    if not gpu_memory_bytes:
        return round(memory_mb / 1024)
    eighths = math.ceil(8 * memory_mb * MIB / gpu_memory_bytes)
    return round(eighths / 8 * math.ceil(gpu_memory_bytes / GIB))
