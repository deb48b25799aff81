"""What Ray assigned is found by UUID, whatever order CUDA or the environment would number it in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.devices.assignment import assigned_devices, visible
from cluster.errors import DeviceUnavailable
from tests.cluster.machines import recorded

DGX = recorded("dgx-a100")
CUT = recorded("mig-a100")


def test_a_uuid_is_that_gpu() -> None:
    assert assigned_devices([DGX.gpus[6].uuid], DGX) == (DGX.gpus[6],)


def test_the_beginning_of_a_uuid_is_enough() -> None:
    assert assigned_devices([DGX.gpus[6].uuid[:12]], DGX) == (DGX.gpus[6],)


def test_a_number_is_the_drivers_own_and_no_position() -> None:
    thinned = replace(DGX, gpus=DGX.gpus[4:])
    assert assigned_devices(["5"], thinned) == (DGX.gpus[5],)


def test_a_slice_is_found_by_its_uuid_with_its_own_memory() -> None:
    (cut,) = assigned_devices([CUT.gpus[0].slices[1].uuid], CUT)
    assert cut.memory_bytes == 9984 * 2**20


def test_cuda_is_told_uuids() -> None:
    devices = assigned_devices(["1", "0"], DGX)
    assert visible(devices) == f"{DGX.gpus[1].uuid},{DGX.gpus[0].uuid}"
    assert visible(()) == ""


@pytest.mark.parametrize(
    ("assigned", "reason"),
    [
        ("GPU-unknown", "'GPU-unknown' is no device of dgx-a100; there are: GPU-"),
        ("GPU-", "'GPU-' is several devices"),
        ("", "'' is no device"),
        ("8", "Ray assigned GPU 8 of dgx-a100, and the driver shows: 0, 1, 2, 3, 4, 5, 6, 7"),
    ],
)
def test_an_id_that_means_no_single_device_is_refused(assigned: str, reason: str) -> None:
    with pytest.raises(DeviceUnavailable, match=reason):
        assigned_devices([assigned], DGX)


def test_a_gpu_in_mig_mode_is_refused_with_its_slices_named() -> None:
    with pytest.raises(DeviceUnavailable, match=CUT.gpus[1].slices[0].uuid):
        assigned_devices(["1"], CUT)


def test_a_gpu_that_is_out_of_order_is_refused_and_so_are_its_slices() -> None:
    whole = replace(DGX, gpus=(replace(DGX.gpus[0], defect="a bad row"),))
    with pytest.raises(DeviceUnavailable, match=r"out of order \(a bad row\): it has to be reset"):
        assigned_devices(["0"], whole)
    cut = replace(CUT, gpus=(replace(CUT.gpus[0], defect="a bad row"),))
    with pytest.raises(DeviceUnavailable, match="out of order"):
        assigned_devices([CUT.gpus[0].slices[1].uuid], cut)


def test_a_lost_gpu_is_refused() -> None:
    lost = replace(DGX, gpus=(replace(DGX.gpus[0], lost=True),))
    with pytest.raises(DeviceUnavailable, match="is lost"):
        assigned_devices(["0"], lost)
