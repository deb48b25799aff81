"""What befell a device between two readings of its health."""

from __future__ import annotations

import pytest

from cluster.health import APPLICATION_XIDS, DeviceHealth, faults

SOUND = DeviceHealth("GPU-1", ecc_errors=2)


@pytest.mark.parametrize(
    ("after", "found"),
    [
        (SOUND, ()),
        (DeviceHealth("GPU-1", lost=True), ("it has fallen off the bus",)),
        (DeviceHealth("GPU-1", ecc_errors=5), ("3 uncorrected ECC errors",)),
        (DeviceHealth("GPU-1", ecc_errors=2, defect="a bad row"), ("a bad row",)),
        (DeviceHealth("GPU-1", ecc_errors=2, xids=(79, 119)), ("XID 79", "XID 119")),
        (DeviceHealth("GPU-1", ecc_errors=3, xids=(48,)), ("1 uncorrected ECC errors", "XID 48")),
    ],
)
def test_a_fault_is_what_is_worse_than_before(after: DeviceHealth, found: tuple[str, ...]) -> None:
    assert faults(SOUND, after) == found


@pytest.mark.parametrize(
    "known",
    [
        DeviceHealth("GPU-1", lost=True),
        DeviceHealth("GPU-1", ecc_errors=7, defect="a bad row"),
    ],
)
def test_what_was_so_before_is_no_new_fault(known: DeviceHealth) -> None:
    assert faults(known, known) == ()


def test_errors_that_were_not_counted_before_are_not_new() -> None:
    assert faults(DeviceHealth("GPU-1"), DeviceHealth("GPU-1", ecc_errors=4)) == ()


def test_a_counter_that_is_not_told_any_more_or_was_reset_is_no_fault() -> None:
    assert faults(SOUND, DeviceHealth("GPU-1")) == ()
    assert faults(SOUND, DeviceHealth("GPU-1", ecc_errors=0)) == ()


def test_errors_that_a_program_brings_on_itself_do_not_condemn_the_device() -> None:
    assert faults(SOUND, DeviceHealth("GPU-1", ecc_errors=2, xids=tuple(APPLICATION_XIDS))) == ()
