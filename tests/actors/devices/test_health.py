"""The devices of a shard are watched: a fault ends the watch, with the device and the reason."""

from __future__ import annotations

import asyncio

import pynvml
import pytest

from actors.devices.health import HealthReader, watch_devices
from cluster.errors import DeviceFault
from cluster.health import DeviceHealth
from tests.actors.devices.conftest import Install
from tests.actors.devices.fake_driver import FakeNvml
from tests.cluster.machines import recorded

LOST = pynvml.NVML_ERROR_GPU_IS_LOST
CUT = recorded("mig-a100")
GPU = CUT.gpus[0]
SLICE, SIBLING = GPU.slices[:2]
NOW = 0.0
"""Seconds between two readings."""


@pytest.fixture
def nvml(install: Install) -> FakeNvml:
    return install(CUT)


def test_a_gpu_that_is_sound_reads_as_sound(nvml: FakeNvml) -> None:
    assert HealthReader([GPU.uuid]).read() == (DeviceHealth(GPU.uuid, ecc_errors=0),)


def test_a_slice_is_as_healthy_as_its_gpu(nvml: FakeNvml) -> None:
    reader = HealthReader([SLICE.uuid])
    nvml.gpu(GPU.uuid).ecc_errors = 3
    nvml.gpu(GPU.uuid).rows = (0, 1, 1, 0)
    (health,) = reader.read()
    assert (health.uuid, health.ecc_errors) == (SLICE.uuid, 3)
    assert health.defect == "a bad row of its memory waits for a reset"


def test_xids_are_told_once(nvml: FakeNvml) -> None:
    reader = HealthReader([GPU.uuid])
    nvml.gpu(GPU.uuid).err(48)
    nvml.gpu(GPU.uuid).err(119)
    assert [reader.read()[0].xids for _ in range(2)] == [(48, 119), ()]


def test_an_xid_of_another_slice_is_not_ours_but_one_of_the_whole_gpu_is(nvml: FakeNvml) -> None:
    reader = HealthReader([SLICE.uuid])
    nvml.gpu(GPU.uuid).err(48, instance=SIBLING.gpu_instance)
    nvml.gpu(GPU.uuid).err(94, instance=SLICE.gpu_instance)
    nvml.gpu(GPU.uuid).err(79)
    assert reader.read()[0].xids == (94, 79)


def test_a_driver_that_repeats_itself_for_ever_does_not_hold_us(nvml: FakeNvml) -> None:
    reader = HealthReader([GPU.uuid])
    for _ in range(1000):
        nvml.gpu(GPU.uuid).err(48)
    assert 0 < len(reader.read()[0].xids) < 1000


@pytest.mark.parametrize(
    "name",
    [
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetRetiredPagesPendingStatus",
        "nvmlDeviceGetGpuInstanceId",
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
        "nvmlDeviceGetHandleByUUID",
        "nvmlEventSetCreate",
        "nvmlDeviceRegisterEvents",
        "nvmlEventSetWait_v2",
    ],
)
@pytest.mark.parametrize("missing", [True, False])
def test_what_a_library_lacks_or_a_device_does_not_support_is_unknown_and_no_fault(
    nvml: FakeNvml, name: str, missing: bool
) -> None:
    if missing:
        nvml.remove(name)
    else:
        nvml.fail(name, pynvml.NVML_ERROR_NOT_SUPPORTED)
    (health,) = HealthReader([SLICE.uuid]).read()
    assert (health.lost, health.defect, health.xids) == (False, "", ())


async def test_without_a_driver_the_watch_goes_on_and_sees_nothing(no_driver: None) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch_devices([GPU.uuid], NOW), 0.1)


async def watched(nvml: FakeNvml, fault: str) -> None:
    """A watch that has begun, and then ends with that fault."""
    with pytest.raises(DeviceFault, match=fault):
        async with asyncio.timeout(10.0):
            await watch_devices([SLICE.uuid], NOW)


async def test_a_gpu_that_falls_off_the_bus_ends_the_watch(nvml: FakeNvml) -> None:
    nvml.fail_once("nvmlDeviceGetTotalEccErrors", LOST, after=3)
    await watched(nvml, f"{SLICE.uuid}: it has fallen off the bus")


async def test_an_uncorrected_error_ends_the_watch(nvml: FakeNvml) -> None:
    gpu = nvml.gpu(GPU.uuid)

    async def strike() -> None:
        while nvml.calls.count("nvmlDeviceGetTotalEccErrors") < 2:  # noqa: ASYNC110 - of a thread
            await asyncio.sleep(0)
        gpu.ecc_errors = 1

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(strike())
        tasks.create_task(watched(nvml, "1 uncorrected ECC errors"))


async def test_a_critical_error_ends_the_watch(nvml: FakeNvml) -> None:
    async def strike() -> None:
        while not nvml.gpu(GPU.uuid).listeners:  # noqa: ASYNC110 - another thread has no event
            await asyncio.sleep(0)
        nvml.gpu(GPU.uuid).err(31)
        nvml.gpu(GPU.uuid).err(79)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(strike())
        tasks.create_task(watched(nvml, f"{SLICE.uuid}: XID 79$"))
