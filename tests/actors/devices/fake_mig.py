"""How the fake driver cuts GPUs: profiles, instances, and the rules that a real one enforces."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import pynvml

from cluster.topology import MigProfile
from tests.actors.devices.fake_driver import (
    FakeCompute,
    FakeGpu,
    FakeInstance,
    FakeNvml,
    Refusal,
    point,
    slices_of,
    symbol,
)

MIB = 2**20
IDS = {0: 19, 1: 14, 2: 9, 3: 5, 4: 0, 5: 15}
"""Profile numbers as an A100 has them, by the place of the profile in the recording."""
COMPUTE_SLICES = (1, 2, 3, 4, 7)
"""Of the compute instance profiles, in NVML's order."""


@symbol("nvmlDeviceGetMigMode")
def mig_mode(nvml: FakeNvml, gpu: FakeGpu, current: Any, pending: Any) -> None:
    if gpu.facts.compute_capability == (8, 9):
        raise Refusal(pynvml.NVML_ERROR_NOT_SUPPORTED)
    current.value = pending.value = int(gpu.facts.mig_enabled)


@symbol("nvmlDeviceGetMaxMigDeviceCount")
def max_mig_devices(nvml: FakeNvml, gpu: FakeGpu, out: Any) -> None:
    out.value = 7


@symbol("nvmlDeviceGetMigDeviceHandleByIndex")
def mig_device(nvml: FakeNvml, gpu: FakeGpu, index: int, out: Any) -> None:
    devices = gpu.mig_devices()
    if index >= len(devices):
        raise Refusal(pynvml.NVML_ERROR_NOT_FOUND)
    point(out, nvml.handle(devices[index]))


@symbol("nvmlDeviceGetGpuInstanceId")
def gpu_instance_of(nvml: FakeNvml, device: FakeCompute, out: Any) -> None:
    out.value = device.instance.number


@symbol("nvmlDeviceGetComputeInstanceId")
def compute_instance_of(nvml: FakeNvml, device: FakeCompute, out: Any) -> None:
    out.value = device.number


@symbol("nvmlDeviceGetAttributes_v2")
def attributes(nvml: FakeNvml, device: FakeCompute, out: Any) -> None:
    out.gpuInstanceSliceCount = slices_of(device.instance.profile)
    out.computeInstanceSliceCount = device.slices
    out.memorySizeMB = device.instance.profile.memory_bytes // MIB


@symbol("nvmlDeviceGetGpuInstanceProfileInfoV")
def profile_info(nvml: FakeNvml, gpu: FakeGpu, index: int, out: Any) -> None:
    profile_info_v1(nvml, gpu, index, out)
    out.name = f"MIG {gpu.facts.profiles[index].name}".encode()


@symbol("nvmlDeviceGetGpuInstanceProfileInfo")
def profile_info_v1(nvml: FakeNvml, gpu: FakeGpu, index: int, out: Any) -> None:
    if index >= len(gpu.facts.profiles):
        raise Refusal(pynvml.NVML_ERROR_NOT_SUPPORTED)
    profile = gpu.facts.profiles[index]
    out.id = IDS[index]
    out.sliceCount = slices_of(profile)
    out.instanceCount = len(profile.starts)
    out.memorySizeMB = profile.memory_bytes // MIB


@symbol("nvmlDeviceGetGpuInstancePossiblePlacements_v2")
def possible_placements(nvml: FakeNvml, gpu: FakeGpu, number: int, out: Any, size: Any) -> None:
    profile = _profile(gpu, number)
    size.value = len(profile.starts)
    for place, start in enumerate(profile.starts if out is not None else ()):
        out[place].start, out[place].size = start, profile.size


@symbol("nvmlDeviceGetGpuInstances")
def gpu_instances(nvml: FakeNvml, gpu: FakeGpu, number: int, out: Any, size: Any) -> None:
    _need_permission(nvml)
    profile = _profile(gpu, number)
    _list(nvml, [one for one in gpu.instances.values() if one.profile == profile], out, size)


@symbol("nvmlDeviceGetGpuInstanceById")
def gpu_instance_by_id(nvml: FakeNvml, gpu: FakeGpu, number: int, out: Any) -> None:
    _need_permission(nvml)
    if number not in gpu.instances:
        raise Refusal(pynvml.NVML_ERROR_NOT_FOUND)
    point(out, nvml.handle(gpu.instances[number]))


@symbol("nvmlGpuInstanceGetInfo")
def gpu_instance_info(nvml: FakeNvml, instance: FakeInstance, out: Any) -> None:
    out.id = instance.number
    out.profileId = IDS[instance.gpu.facts.profiles.index(instance.profile)]
    out.placement.start, out.placement.size = instance.start, instance.profile.size


@symbol("nvmlDeviceCreateGpuInstanceWithPlacement")
def create_gpu_instance(nvml: FakeNvml, gpu: FakeGpu, number: int, where: Any, out: Any) -> None:
    _need_permission(nvml)
    profile = _profile(gpu, number)
    if where.start not in profile.starts:
        raise Refusal(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    taken = {
        place
        for one in gpu.instances.values()
        for place in range(one.start, one.start + one.profile.size)
    }
    if taken & set(range(where.start, where.start + profile.size)):
        raise Refusal(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
    free = next(number for number in range(1, 99) if number not in gpu.instances)
    gpu.instances[free] = FakeInstance(gpu, free, profile, where.start)
    point(out, nvml.handle(gpu.instances[free]))


@symbol("nvmlDeviceCreateGpuInstance")
def create_gpu_instance_anywhere(nvml: FakeNvml, gpu: FakeGpu, number: int, out: Any) -> None:
    for start in reversed(_profile(gpu, number).starts):
        place = pynvml.c_nvmlGpuInstancePlacement_t(start, 0)
        with suppress(Refusal):
            return create_gpu_instance(nvml, gpu, number, place, out)
    raise Refusal(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)


@symbol("nvmlGpuInstanceDestroy")
def destroy_gpu_instance(nvml: FakeNvml, instance: FakeInstance) -> None:
    _need_permission(nvml)
    if instance.compute:
        raise Refusal(pynvml.NVML_ERROR_IN_USE)
    del instance.gpu.instances[instance.number]


@symbol("nvmlGpuInstanceGetComputeInstanceProfileInfoV")
def compute_profile(
    nvml: FakeNvml, instance: FakeInstance, index: int, engine: int, out: Any
) -> None:
    if index >= len(COMPUTE_SLICES) or COMPUTE_SLICES[index] > slices_of(instance.profile):
        raise Refusal(pynvml.NVML_ERROR_NOT_SUPPORTED)
    out.id = index
    out.sliceCount = COMPUTE_SLICES[index]
    out.instanceCount = slices_of(instance.profile) // COMPUTE_SLICES[index]


@symbol("nvmlGpuInstanceGetComputeInstanceProfileInfo")
def compute_profile_v1(
    nvml: FakeNvml, instance: FakeInstance, index: int, engine: int, out: Any
) -> None:
    compute_profile(nvml, instance, index, engine, out)


@symbol("nvmlGpuInstanceGetComputeInstances")
def compute_instances(
    nvml: FakeNvml, instance: FakeInstance, number: int, out: Any, size: Any
) -> None:
    wanted = COMPUTE_SLICES[number]
    _list(nvml, [one for one in instance.compute.values() if one.slices == wanted], out, size)


@symbol("nvmlComputeInstanceGetInfo_v2")
def compute_instance_info(nvml: FakeNvml, compute: FakeCompute, out: Any) -> None:
    out.id = compute.number
    out.profileId = COMPUTE_SLICES.index(compute.slices)
    out.placement.start, out.placement.size = compute.start, compute.slices


@symbol("nvmlGpuInstanceCreateComputeInstance")
def create_compute_instance(nvml: FakeNvml, instance: FakeInstance, number: int, out: Any) -> None:
    start = sum(one.slices for one in instance.compute.values())
    _create_compute(nvml, instance, COMPUTE_SLICES[number], start, out)


@symbol("nvmlGpuInstanceCreateComputeInstanceWithPlacement")
def create_compute_instance_at(
    nvml: FakeNvml, instance: FakeInstance, number: int, where: Any, out: Any
) -> None:
    _create_compute(nvml, instance, COMPUTE_SLICES[number], where.start, out)


@symbol("nvmlComputeInstanceDestroy")
def destroy_compute_instance(nvml: FakeNvml, compute: FakeCompute) -> None:
    _need_permission(nvml)
    if compute.processes:
        raise Refusal(pynvml.NVML_ERROR_IN_USE)
    del compute.instance.compute[compute.number]


def _create_compute(
    nvml: FakeNvml, instance: FakeInstance, slices: int, start: int, out: Any
) -> None:
    _need_permission(nvml)
    if sum(one.slices for one in instance.compute.values()) + slices > slices_of(instance.profile):
        raise Refusal(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
    number = next(number for number in range(8) if number not in instance.compute)
    where = f"{instance.gpu.uuid}/{instance.number}/{number}"
    compute = FakeCompute(instance, number, slices, start, f"MIG-{uuid5(NAMESPACE_OID, where)}")
    instance.compute[number] = compute
    point(out, nvml.handle(compute))


def _profile(gpu: FakeGpu, number: int) -> MigProfile:
    return gpu.facts.profiles[next(place for place, one in IDS.items() if one == number)]


def _list(nvml: FakeNvml, things: list[Any], out: Any, size: Any) -> None:
    size.value = len(things)
    for place, thing in enumerate(things):
        out[place] = ctypes.cast(nvml.handle(thing), type(out)._type_)


def _need_permission(nvml: FakeNvml) -> None:
    if not nvml.permitted:
        raise Refusal(pynvml.NVML_ERROR_NO_PERMISSION)
