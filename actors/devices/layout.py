"""How a GPU is cut, and how it becomes cut otherwise: GPU instances and their compute instances."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pynvml

from actors.devices.slices import profile_infos

Compute = tuple[int, int, int]
"""A compute instance: its profile's number, its first slice, and how many."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A GPU instance by its profile's number and its memory slices, and how it is cut in turn.

    `compute` is None for one that is to be made: a single compute instance of all of it.
    """

    profile: int
    start: int
    size: int
    compute: tuple[Compute, ...] | None = None


Layout = frozenset[Instance]


@dataclass(frozen=True, slots=True)
class Living:
    """An instance that there is: its number on the GPU, and NVML's handle."""

    number: int
    instance: Instance
    handle: Any


def read_layout(gpu: Any) -> Layout:
    """Raises an NVML error where the driver does not let us see it."""
    return frozenset(living.instance for living in living_instances(gpu))


def become(gpu: Any, target: Layout) -> None:
    """Destroy what is not in `target`, then create what is missing; the rest is not touched.

    Raises an NVML error half way: whoever calls knows what the layout was.
    """
    living = living_instances(gpu)
    for one in living:
        if one.instance not in target:
            _destroy(one.handle)
    missing = target - {one.instance for one in living}
    for instance in sorted(missing, key=lambda instance: (-instance.size, instance.start)):
        _create(gpu, instance)


def living_instances(gpu: Any) -> list[Living]:
    """Raises an NVML error where the driver does not let us see them."""
    ask, kind = pynvml.nvmlDeviceGetGpuInstances, pynvml.c_nvmlGpuInstance_t
    return [
        _living(handle) for info in profile_infos(gpu) for handle in _listed(ask, gpu, info, kind)
    ]


def _living(handle: Any) -> Living:
    info = pynvml.nvmlGpuInstanceGetInfo(handle)
    compute = tuple(sorted(_compute(one) for one in _compute_instances(handle)))
    place = info.placement
    instance = Instance(int(info.profileId), int(place.start), int(place.size), compute)
    return Living(int(info.id), instance, handle)


def _compute(handle: Any) -> Compute:
    info = pynvml.nvmlComputeInstanceGetInfo(handle)
    return int(info.profileId), int(info.placement.start), int(info.placement.size)


def _compute_instances(gpu_instance: Any) -> list[Any]:
    ask, kind = pynvml.nvmlGpuInstanceGetComputeInstances, pynvml.c_nvmlComputeInstance_t
    return [
        handle
        for info in _compute_profiles(gpu_instance)
        for handle in _listed(ask, gpu_instance, info, kind)
    ]


def _compute_profiles(gpu_instance: Any) -> Iterator[Any]:
    for index in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        with suppress(pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            yield _compute_profile(gpu_instance, index)


def _compute_profile(gpu_instance: Any, index: int) -> Any:
    ask = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
    shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    try:
        return ask(gpu_instance, index, shared)
    except pynvml.NVMLError_FunctionNotFound:
        return ask(gpu_instance, index, shared, version=1)


def _listed(ask: Callable[..., Any], owner: Any, profile: Any, kind: Any) -> list[Any]:
    """The owner's instances of a profile: NVML fills an array with room for all there can be."""
    array, count = (kind * max(int(profile.instanceCount), 1))(), ctypes.c_uint(0)
    ask(owner, profile.id, array, ctypes.byref(count))
    return list(array[: count.value])


def _destroy(gpu_instance: Any) -> None:
    for compute in _compute_instances(gpu_instance):
        pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(gpu_instance)


def _create(gpu: Any, instance: Instance) -> None:
    handle = _create_gpu_instance(gpu, instance)
    if instance.compute is None:
        largest = max(_compute_profiles(handle), key=lambda info: int(info.sliceCount))
        pynvml.nvmlGpuInstanceCreateComputeInstance(handle, largest.id)
    elif len(instance.compute) == 1:
        pynvml.nvmlGpuInstanceCreateComputeInstance(handle, instance.compute[0][0])
    else:
        for profile, start, size in instance.compute:
            where = pynvml.c_nvmlComputeInstancePlacement_t(start, size)
            pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(
                handle, profile, ctypes.byref(where)
            )


def _create_gpu_instance(gpu: Any, instance: Instance) -> Any:
    place = pynvml.c_nvmlGpuInstancePlacement_t(instance.start, instance.size)
    create_at = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement
    try:
        return create_at(gpu, instance.profile, ctypes.byref(place))
    except pynvml.NVMLError_FunctionNotFound:
        # An older driver chooses the place itself.
        return pynvml.nvmlDeviceCreateGpuInstance(gpu, instance.profile)
