"""GPUs are cut to a plan and put back, foreign processes are never touched, failures are undone."""

from __future__ import annotations

import logging
from dataclasses import replace

import pynvml
import pytest

from actors.devices.discovery import discover
from actors.devices.mig import MigManager
from cluster.errors import DeviceUnavailable
from cluster.placement import NewSlice, Recut
from cluster.topology import Gpu
from tests.actors.devices.conftest import Install
from tests.actors.devices.fake_driver import FakeNvml
from tests.cluster.machines import recorded

NODE = recorded("mig-a100")
MIXED, WHOLE, HALVES, PARTLY = NODE.gpus
"""4g+2g+1g; one 7g; two 3g; two 1g and free room."""


SHARED = replace(
    NODE,
    links=(),
    gpus=(
        replace(
            HALVES,
            slices=(
                replace(HALVES.slices[0], uuid="MIG-2c", profile="2c.3g.20gb"),
                replace(HALVES.slices[0], uuid="MIG-1c", profile="1c.3g.20gb", compute_instance=1),
                HALVES.slices[1],
            ),
        ),
    ),
)
"""One GPU, whose first half is parted again, into compute instances."""


@pytest.fixture
def nvml(install: Install) -> FakeNvml:
    return install(NODE)


def cut(gpu: Gpu, *create: tuple[str, int], destroy: tuple[str, ...] = ()) -> Recut:
    return Recut(NODE.name, gpu.uuid, destroy, tuple(NewSlice(*one) for one in create))


def uuids(gpu: Gpu) -> tuple[str, ...]:
    return tuple(slice_.uuid for slice_ in gpu.slices)


def refused(manager: MigManager, recut: Recut, own_pids: tuple[int, ...] = ()) -> str:
    with pytest.raises(DeviceUnavailable) as caught:
        manager.recut(recut, own_pids)
    return caught.value.message


def test_a_slice_is_created_in_free_room_and_found_afterwards(nvml: FakeNvml) -> None:
    MigManager().recut(cut(PARTLY, ("3g.20gb", 4)), own_pids=())
    assert nvml.cuts(PARTLY.uuid) == [("1g.5gb", 0, 1), ("1g.5gb", 1, 1), ("3g.20gb", 4, 1)]
    found = discover("node").gpus[3]
    assert [one.profile for one in found.slices] == ["1g.5gb", "1g.5gb", "3g.20gb"]


def test_slices_are_destroyed_and_others_made_of_their_room(nvml: FakeNvml) -> None:
    MigManager().recut(
        cut(WHOLE, ("4g.20gb", 0), ("2g.10gb", 4), destroy=uuids(WHOLE)), own_pids=()
    )
    assert nvml.cuts(WHOLE.uuid) == [("2g.10gb", 4, 1), ("4g.20gb", 0, 1)]


def test_other_slices_of_the_gpu_keep_their_uuid(nvml: FakeNvml) -> None:
    big, two, one = uuids(MIXED)
    MigManager().recut(cut(MIXED, ("3g.20gb", 0), destroy=(big,)), own_pids=())
    assert {two, one} < {device.uuid for device in nvml.gpu(MIXED.uuid).mig_devices()}


def test_the_layout_found_is_restored(nvml: FakeNvml) -> None:
    before = {gpu.uuid: nvml.cuts(gpu.uuid) for gpu in NODE.gpus}
    manager = MigManager()
    manager.recut(cut(WHOLE, ("3g.20gb", 0), destroy=uuids(WHOLE)), own_pids=())
    manager.recut(cut(WHOLE, ("3g.20gb", 4)), own_pids=())
    manager.recut(cut(PARTLY, ("2g.10gb", 2)), own_pids=())
    assert nvml.cuts(WHOLE.uuid) != before[WHOLE.uuid]
    assert manager.restore(own_pids=()) == ()
    assert {gpu.uuid: nvml.cuts(gpu.uuid) for gpu in NODE.gpus} == before


def test_a_gpu_instance_of_several_compute_instances_is_restored_as_it_was(
    install: Install,
) -> None:
    nvml = install(SHARED)
    gpu = SHARED.gpus[0]
    before = nvml.cuts(gpu.uuid)
    manager = MigManager()
    manager.recut(cut(gpu, ("2g.10gb", 0), destroy=uuids(gpu)[:2]), own_pids=())
    assert manager.restore(own_pids=()) == ()
    assert nvml.cuts(gpu.uuid) == before == [("3g.20gb", 0, 2), ("3g.20gb", 4, 1)]


def test_a_compute_instance_that_is_not_in_the_plan_protects_its_sibling(
    install: Install,
) -> None:
    nvml = install(SHARED)
    gpu = SHARED.gpus[0]
    message = refused(MigManager(), cut(gpu, destroy=uuids(gpu)[:1]))
    assert "has been cut otherwise since the plan was made" in message
    assert ("3g.20gb", 0, 2) in nvml.cuts(gpu.uuid)


def test_gpus_that_were_not_cut_are_not_restored(nvml: FakeNvml) -> None:
    assert MigManager().restore(own_pids=()) == ()
    assert nvml.calls == []


@pytest.mark.parametrize("on_a_slice", [False, True])
def test_a_gpu_with_a_foreign_process_is_left_alone(nvml: FakeNvml, on_a_slice: bool) -> None:
    gpu = nvml.gpu(PARTLY.uuid)
    (gpu.mig_devices()[0] if on_a_slice else gpu).processes.append(4711)
    before = nvml.cuts(PARTLY.uuid)
    message = refused(MigManager(), cut(PARTLY, ("3g.20gb", 4)), own_pids=(12,))
    assert "processes [4711] run there that are not Shoal's" in message
    assert nvml.cuts(PARTLY.uuid) == before


def test_our_own_shards_on_other_slices_do_not_hinder(nvml: FakeNvml) -> None:
    nvml.gpu(PARTLY.uuid).mig_devices()[0].processes.append(12)
    MigManager().recut(cut(PARTLY, ("3g.20gb", 4)), own_pids=(12,))
    assert ("3g.20gb", 4, 1) in nvml.cuts(PARTLY.uuid)


def test_a_gpu_whose_processes_cannot_be_seen_is_left_alone(nvml: FakeNvml) -> None:
    nvml.remove("nvmlDeviceGetComputeRunningProcesses_v3")
    before = nvml.cuts(PARTLY.uuid)
    assert "cannot be cut" in refused(MigManager(), cut(PARTLY, ("3g.20gb", 4)))
    assert nvml.cuts(PARTLY.uuid) == before


def test_a_foreign_process_also_keeps_the_layout_from_being_restored(
    nvml: FakeNvml, caplog: pytest.LogCaptureFixture
) -> None:
    manager = MigManager()
    manager.recut(cut(PARTLY, ("3g.20gb", 4)), own_pids=())
    manager.recut(cut(WHOLE, ("3g.20gb", 0), destroy=uuids(WHOLE)), own_pids=())
    newcomer = nvml.gpu(PARTLY.uuid).processes
    newcomer.append(4711)
    with caplog.at_level(logging.WARNING):
        (problem,) = manager.restore(own_pids=())
    assert PARTLY.uuid in problem
    assert nvml.cuts(WHOLE.uuid) == [("7g.40gb", 0, 1)]
    newcomer.clear()
    assert manager.restore(own_pids=()) == ()
    assert nvml.cuts(PARTLY.uuid) == [("1g.5gb", 0, 1), ("1g.5gb", 1, 1)]


def test_a_cut_that_fails_half_way_is_undone(nvml: FakeNvml) -> None:
    before = nvml.cuts(WHOLE.uuid)
    create, calls = "nvmlDeviceCreateGpuInstanceWithPlacement", len(nvml.calls)
    nvml.fail_once(create, pynvml.NVML_ERROR_UNKNOWN, after=1)
    message = refused(
        MigManager(), cut(WHOLE, ("3g.20gb", 0), ("3g.20gb", 4), destroy=uuids(WHOLE))
    )
    assert nvml.calls[calls:].count(create) == 3
    assert "the layout is as it was before" in message
    assert nvml.cuts(WHOLE.uuid) == before


def test_a_failure_that_cannot_be_undone_says_so(nvml: FakeNvml) -> None:
    nvml.fail("nvmlDeviceCreateGpuInstanceWithPlacement", pynvml.NVML_ERROR_GPU_IS_LOST)
    message = refused(MigManager(), cut(WHOLE, ("3g.20gb", 0), destroy=uuids(WHOLE)))
    assert "the GPU has to be reset, or replaced" in message
    assert "nor could the layout before be put back: GPU is lost" in message


def test_a_slice_in_use_is_not_destroyed(nvml: FakeNvml) -> None:
    nvml.gpu(WHOLE.uuid).mig_devices()[0].processes.append(12)
    message = refused(
        MigManager(), cut(WHOLE, ("3g.20gb", 0), destroy=uuids(WHOLE)), own_pids=(12,)
    )
    assert "drain its shard first" in message
    assert nvml.cuts(WHOLE.uuid) == [("7g.40gb", 0, 1)]


def test_room_that_somebody_took_meanwhile_is_said(nvml: FakeNvml) -> None:
    message = refused(MigManager(), cut(WHOLE, ("3g.20gb", 4)))
    assert "its layout has changed: read it and plan again" in message


@pytest.mark.parametrize(
    ("recut", "advice"),
    [
        (cut(PARTLY, ("1g.20gb", 4)), "knows no MIG profile 1g.20gb; it knows: 1g.10gb, 1g.5gb"),
        (cut(PARTLY, ("3g.20gb", 2)), "allows 3g.20gb at [0, 4], not at 2: plan again"),
        (cut(PARTLY, destroy=("MIG-nobody",)), "read it and plan again"),
        (Recut("node", "GPU-nobody", (), ()), "it is not on this node"),
    ],
)
def test_a_plan_that_does_not_fit_the_gpu_says_what_to_do(
    nvml: FakeNvml, recut: Recut, advice: str
) -> None:
    assert advice in refused(MigManager(), recut)


def test_without_permission_the_error_says_how_to_get_it(nvml: FakeNvml) -> None:
    nvml.permitted = False
    message = refused(MigManager(), cut(PARTLY, ("3g.20gb", 4)))
    assert "/proc/driver/nvidia/capabilities/mig/config" in message


def test_a_gpu_that_is_not_in_mig_mode_says_how_to_switch_it(install: Install) -> None:
    gpu = recorded("dgx-a100").gpus[0]
    install(recorded("dgx-a100"))
    message = refused(MigManager(), cut(gpu, ("1g.5gb", 0)))
    assert f"nvidia-smi -i {gpu.uuid} -mig 1" in message


def test_a_gpu_that_knows_no_mig_says_so(install: Install) -> None:
    gpu = recorded("pcie-4gpu").gpus[0]
    install(recorded("pcie-4gpu"))
    assert "this GPU cannot do MIG" in refused(MigManager(), cut(gpu, ("1g.5gb", 0)))


def test_without_driver_the_error_says_to_install_one(no_driver: None) -> None:
    message = refused(MigManager(), cut(PARTLY, ("1g.5gb", 2)))
    assert "install the NVIDIA driver" in message


def test_an_older_library_without_versioned_profiles_cuts_too(nvml: FakeNvml) -> None:
    nvml.remove(
        "nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlGpuInstanceGetComputeInstanceProfileInfoV"
    )
    MigManager().recut(cut(PARTLY, ("3g.20gb", 4)), own_pids=())
    assert ("3g.20gb", 4, 1) in nvml.cuts(PARTLY.uuid)


def test_a_driver_that_cannot_be_told_the_place_chooses_it(nvml: FakeNvml) -> None:
    nvml.remove("nvmlDeviceCreateGpuInstanceWithPlacement")
    MigManager().recut(cut(PARTLY, ("2g.10gb", 2)), own_pids=())
    assert ("2g.10gb", 4, 1) in nvml.cuts(PARTLY.uuid)


def test_a_process_that_draws_is_foreign_too(nvml: FakeNvml) -> None:
    nvml.gpu(PARTLY.uuid).drawing.append(4712)
    assert "[4712]" in refused(MigManager(), cut(PARTLY, ("3g.20gb", 4)))


def test_a_driver_that_does_not_know_of_drawing_is_good_enough(nvml: FakeNvml) -> None:
    nvml.remove("nvmlDeviceGetGraphicsRunningProcesses_v3")
    MigManager().recut(cut(PARTLY, ("3g.20gb", 4)), own_pids=())
    assert ("3g.20gb", 4, 1) in nvml.cuts(PARTLY.uuid)


def test_a_layout_that_can_be_seen_in_part_only_is_not_touched(nvml: FakeNvml) -> None:
    nvml.fail_once("nvmlDeviceGetGpuInstanceProfileInfoV", pynvml.NVML_ERROR_UNKNOWN, after=2)
    before = nvml.cuts(MIXED.uuid)
    assert "cannot be cut" in refused(MigManager(), cut(MIXED, ("1g.5gb", 6)))
    assert nvml.cuts(MIXED.uuid) == before
