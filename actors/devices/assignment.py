"""From what Ray assigned to devices by UUID, so that no position in a list ever decides."""

from __future__ import annotations

from collections.abc import Sequence

import ray

from cluster.errors import DeviceUnavailable
from cluster.topology import Gpu, MigSlice, Node


def assigned_ids() -> tuple[str, ...]:
    """The GPU ids that Ray gave to this actor: numbers or UUIDs, as its node was started with.

    In order, since Ray keeps them in a set.
    """
    ids = ray.get_runtime_context().get_accelerator_ids().get("GPU", ())
    return tuple(sorted(map(str, ids), key=lambda one: (len(one), one)))


def assigned_devices(assigned: Sequence[str], node: Node) -> tuple[Gpu | MigSlice, ...]:
    """The devices of `node` that Ray means by the ids it `assigned` to an actor.

    An id is a UUID, the beginning of one, or the number that the driver gives a GPU. Raises
    DeviceUnavailable where it means nothing, several things, a GPU in MIG mode, or one that is lost
    or out of order, or a slice of one.
    """
    return tuple(_device(one.strip(), node) for one in assigned)


def visible(devices: Sequence[Gpu | MigSlice]) -> str:
    """For CUDA_VISIBLE_DEVICES: by UUID, since CUDA may number devices otherwise than the driver.

    Empty for a process that computes on the CPU, which then cannot open a GPU by mistake.
    """
    return ",".join(device.uuid for device in devices)


def _device(one: str, node: Node) -> Gpu | MigSlice:
    if one.isdecimal():
        return _whole(_numbered(int(one), node))
    devices: list[Gpu | MigSlice] = [*node.gpus, *(cut for gpu in node.gpus for cut in gpu.slices)]
    found = [device for device in devices if device.uuid.startswith(one)] if one else []
    if len(found) != 1:
        there = ", ".join(device.uuid for device in devices) or "none"
        many = "several devices" if found else "no device"
        raise DeviceUnavailable(f"{one!r} is {many} of {node.name}; there are: {there}")
    if isinstance(found[0], Gpu):
        return _whole(found[0])
    _check_usable(node.parent(found[0].uuid))
    return found[0]


def _numbered(number: int, node: Node) -> Gpu:
    gpu = next((gpu for gpu in node.gpus if gpu.index == number), None)
    if gpu is None:
        there = ", ".join(str(gpu.index) for gpu in node.gpus) or "none"
        raise DeviceUnavailable(
            f"Ray assigned GPU {number} of {node.name}, and the driver shows: {there};"
            " start Ray with --num-gpus as there are, or repair the driver"
        )
    return gpu


def _check_usable(gpu: Gpu | None) -> None:
    if gpu is not None and not gpu.usable:
        what = "lost" if gpu.lost else f"out of order ({gpu.defect})"
        raise DeviceUnavailable(f"{gpu.uuid} is {what}: it has to be reset, or replaced")


def _whole(gpu: Gpu) -> Gpu:
    _check_usable(gpu)
    if gpu.mig_enabled:
        cuts = ", ".join(cut.uuid for cut in gpu.slices) or "none"
        raise DeviceUnavailable(
            f"{gpu.uuid} is in MIG mode and cannot be had whole: give the model"
            " resources.mig_profile, or start Ray without this GPU (--num-gpus,"
            f" CUDA_VISIBLE_DEVICES); its slices: {cuts}"
        )
    return gpu
