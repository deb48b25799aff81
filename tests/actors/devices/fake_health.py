"""What the fake driver tells of a GPU's health: repairs that wait, and events that are heard."""

from __future__ import annotations

from typing import Any

import pynvml

from tests.actors.devices.fake_driver import (
    FakeCompute,
    FakeEvents,
    FakeGpu,
    FakeNvml,
    Refusal,
    point,
    symbol,
)


@symbol("nvmlDeviceGetDeviceHandleFromMigDeviceHandle")
def gpu_of(nvml: FakeNvml, device: FakeCompute | FakeGpu, out: Any) -> None:
    if isinstance(device, FakeGpu):
        raise Refusal(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    point(out, nvml.handle(device.instance.gpu))


@symbol("nvmlDeviceGetRemappedRows")
def remapped_rows(
    nvml: FakeNvml, gpu: FakeGpu, correctable: Any, uncorrectable: Any, waits: Any, failed: Any
) -> None:
    if gpu.rows is None:
        raise Refusal(pynvml.NVML_ERROR_NOT_SUPPORTED)
    correctable.value, uncorrectable.value, waits.value, failed.value = gpu.rows


@symbol("nvmlDeviceGetRetiredPagesPendingStatus")
def retired_pages(nvml: FakeNvml, gpu: FakeGpu, out: Any) -> None:
    if gpu.rows is not None:
        raise Refusal(pynvml.NVML_ERROR_NOT_SUPPORTED)
    out.value = int(gpu.page_waits)


@symbol("nvmlEventSetCreate")
def create_events(nvml: FakeNvml, out: Any) -> None:
    point(out, nvml.handle(FakeEvents()))


@symbol("nvmlDeviceRegisterEvents")
def register_events(nvml: FakeNvml, gpu: FakeGpu, kinds: int, events: FakeEvents) -> None:
    if isinstance(gpu, FakeCompute) or kinds != pynvml.nvmlEventTypeXidCriticalError:
        raise Refusal(pynvml.NVML_ERROR_NOT_SUPPORTED)
    gpu.listeners.append(events)


@symbol("nvmlEventSetWait_v2")
def wait_for_event(nvml: FakeNvml, events: FakeEvents, out: Any, timeout_ms: int) -> None:
    if not events.pending:
        raise Refusal(pynvml.NVML_ERROR_TIMEOUT)
    gpu, xid, instance = events.pending.pop(0)
    out.eventType = pynvml.nvmlEventTypeXidCriticalError
    out.eventData, out.gpuInstanceId = xid, instance
    point_device(nvml, out, gpu)


def point_device(nvml: FakeNvml, event: Any, gpu: Any) -> None:
    device = pynvml.c_nvmlDevice_t()
    point(device, nvml.handle(gpu))
    event.device = device
