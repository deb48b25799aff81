"""The health of the devices that a process computes on, as NVML tells it, and the watch over it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pynvml

from actors.devices.nvml import FAILURES, Reader
from cluster.errors import DeviceFault
from cluster.health import DeviceHealth, faults

WHOLE_GPU = 0xFFFFFFFF
"""The GPU instance of an event that is about no single one."""
MOST_EVENTS = 64
"""Read at once: a driver that repeats itself must not keep us here."""


async def watch_devices(uuids: Sequence[str], every_s: float) -> None:
    """Read the health of these GPUs and MIG slices every so many seconds, for good.

    Raises DeviceFault once one has a fault; sees none where no driver answers. NVML may wait long
    for a device that hangs, so it is asked on another thread.
    """
    try:
        reader = await asyncio.to_thread(HealthReader, uuids)
    except FAILURES:
        await asyncio.Event().wait()
    before = tuple(DeviceHealth(uuid) for uuid in uuids)
    while True:
        after = await asyncio.to_thread(reader.read)
        for old, new in zip(before, after, strict=True):
            if found := faults(old, new):
                raise DeviceFault(f"{new.uuid}: {'; '.join(found)}")
        before = after
        await asyncio.sleep(every_s)


class HealthReader:
    """Reads the health of devices again and again, in one session with the driver that lasts as
    long as the process. Raises one of FAILURES where there is no driver to speak to."""

    def __init__(self, uuids: Sequence[str]) -> None:
        pynvml.nvmlInit()
        self._devices = [_Device(uuid) for uuid in uuids]

    def read(self) -> tuple[DeviceHealth, ...]:
        """Of each device, in the order they were given."""
        return tuple(device.health() for device in self._devices)


class _Device:
    """A GPU, or a slice, whose health is that of its GPU: what an error has spared is not known.

    What the driver does not tell stays unknown; the topology has warned of it.
    """

    def __init__(self, uuid: str) -> None:
        self._reader = Reader(uuid)
        self._instance: int | None = None
        ask = self._reader.ask
        self._gpu = ask("handle", pynvml.nvmlDeviceGetHandleByUUID, uuid)
        if self._gpu is not None and uuid.startswith("MIG-"):
            self._instance = ask("GPU instance", pynvml.nvmlDeviceGetGpuInstanceId, self._gpu)
            parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle
            self._gpu = ask("GPU", parent, self._gpu)
        self._events = None if self._gpu is None else ask("events", _listen, self._gpu)

    def health(self) -> DeviceHealth:
        uuid, reader = self._reader.label, self._reader
        if self._gpu is None:
            return DeviceHealth(uuid, reader.lost)
        errors, defect = ecc_errors_of(self._gpu, reader), defect_of(self._gpu, reader)
        xids = tuple(int(event.eventData) for event in self._heard())
        reader.warnings.clear()
        return DeviceHealth(uuid, reader.lost, errors, defect, xids)

    def _heard(self) -> Iterator[Any]:
        """The events since the last reading that are about it, or about its whole GPU."""
        if self._events is None:
            return
        # Whatever ends the reading, that there is nothing more or that it cannot be read.
        with suppress(*FAILURES):
            for _ in range(MOST_EVENTS):
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
                about = int(event.gpuInstanceId)
                if about == WHOLE_GPU or self._instance in (None, about):
                    yield event


def ecc_errors_of(gpu: Any, reader: Reader) -> int | None:
    """Uncorrected ones since the driver was loaded."""
    kind, counter = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    ask = pynvml.nvmlDeviceGetTotalEccErrors
    return reader.ask("ECC errors", ask, gpu, kind, counter)


def defect_of(gpu: Any, reader: Reader) -> str:
    """Why a GPU must be reset or replaced before it is used, "" where nothing is known against it.

    Rows that wait to be remapped for correctable errors alone are no reason: nothing was lost.
    """
    quiet = Reader(reader.label, lost=reader.lost)  # many a driver does not know these questions
    rows = quiet.ask("remapped rows", pynvml.nvmlDeviceGetRemappedRows, gpu)
    if rows is None:  # before Ampere there were pages instead
        ask = pynvml.nvmlDeviceGetRetiredPagesPendingStatus
        waits = quiet.ask("retired pages", ask, gpu)
        return "a bad page of its memory waits for a reset" if waits else ""
    _, uncorrectable, pending, failed = rows
    if failed:
        return "a bad row of its memory could not be remapped"
    return "a bad row of its memory waits for a reset" if pending and uncorrectable else ""


def _listen(gpu: Any) -> Any:
    """The driver's events about critical errors of a GPU. Raises an NVML error if it has none."""
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(gpu, pynvml.nvmlEventTypeXidCriticalError, events)
    return events
