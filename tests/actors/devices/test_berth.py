"""A process finds its berth: devices by UUID, CPUs of its own near them, threads as many."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from actors.devices.berth import Berth, Mode, assigned_berth
from actors.devices.claims import CpuClaims
from cluster.binding import MemoryPolicy
from cluster.errors import DeviceUnavailable
from cluster.topology import Node
from tests.actors.devices.conftest import Install
from tests.actors.devices.kernels import Strict
from tests.cluster.machines import recorded

ALL = frozenset(range(256))
DGX = recorded("dgx-a100")
TWO_SOCKETS = recorded("pcie-4gpu")


class Neighbourhood:
    """Berths of several processes on one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._scope = f"test-{uuid4().hex}"
        self._claims: list[CpuClaims] = []

    def berth(self, *devices: str, mode: Mode = "auto", kernel: Strict | None = None) -> Berth:
        self._claims.append(CpuClaims(self._scope))
        kernel = kernel or Strict(able=ALL, now=ALL)
        return Berth(mode, self._node, devices, self._claims[-1], kernel)

    def close(self) -> None:
        for claims in self._claims:
            claims.verify()
            claims.release()


@pytest.fixture
def neighbours() -> Iterator[Callable[[Node], Neighbourhood]]:
    """Makes neighbourhoods whose books are checked at the end."""
    made: list[Neighbourhood] = []

    def make(node: Node) -> Neighbourhood:
        made.append(Neighbourhood(node))
        return made[-1]

    yield make
    for one in made:
        one.close()


Make = Callable[[Node], Neighbourhood]


def test_the_shards_of_a_dgx_have_cpus_of_their_own_beside_their_gpus(neighbours: Make) -> None:
    there = neighbours(DGX)
    berths = [there.berth(gpu.uuid) for gpu in DGX.gpus]
    assert [berth.settle(32) for berth in berths] == [16] * 8
    for gpu, berth in zip(DGX.gpus, berths, strict=True):
        assert set(berth.binding.cpus) <= set(DGX.numa[gpu.numa_node or 0].cpus)
        assert berth.binding.numa_node == gpu.numa_node
        assert berth.binding.memory is MemoryPolicy.BIND
    cpus = [cpu for berth in berths for cpu in berth.binding.cpus]
    assert len(cpus) == len(set(cpus))


def test_cpu_shards_take_a_numa_node_each(neighbours: Make) -> None:
    there = neighbours(TWO_SOCKETS)
    first, second = there.berth(), there.berth()
    assert (first.settle(32), second.settle(32)) == (32, 32)
    assert (first.binding.numa_node, second.binding.numa_node) == (0, 1)
    assert first.binding.memory is MemoryPolicy.PREFER


def test_a_single_cpu_shard_has_all_cpus_and_memory_of_anywhere(neighbours: Make) -> None:
    berth = neighbours(TWO_SOCKETS).berth()
    assert berth.settle(64) == 64
    assert berth.binding.memory is MemoryPolicy.ANY


def test_a_shard_that_joins_finds_room_once_the_other_is_narrowed(neighbours: Make) -> None:
    there = neighbours(TWO_SOCKETS)
    first, second = there.berth(), there.berth()
    first.settle(64)
    assert second.settle(32) == 32
    assert second.binding.steps[0].reason == "no 32 CPUs are left for it"
    first.settle(32)
    second.settle(32)
    assert not set(first.binding.cpus) & set(second.binding.cpus)


def test_a_shard_widens_when_its_neighbour_has_gone(neighbours: Make) -> None:
    there = neighbours(TWO_SOCKETS)
    first, second = there.berth(), there.berth()
    first.settle(32)
    second.settle(32)
    assert first.settle(64) == 32
    there.close()
    assert first.settle(64) == 64


def test_with_binding_off_nothing_is_claimed_or_bound(neighbours: Make) -> None:
    there = neighbours(TWO_SOCKETS)
    kernel = Strict(able=ALL, now=ALL)
    berth = there.berth(mode="off", kernel=kernel)
    assert berth.settle(4) == 4
    assert kernel.now == ALL
    assert berth.binding.steps[0].reason == "binding is off"


def test_a_berth_that_the_kernel_refuses_gives_its_claims_back(neighbours: Make) -> None:
    there = neighbours(TWO_SOCKETS)
    refused = there.berth(kernel=Strict(able=frozenset({999}), now=ALL))
    assert refused.settle(64) == 64
    assert there.berth().settle(64) == 64
    assert refused.settle(64) == 64
    assert "Invalid argument" in refused.binding.summary


def test_where_no_claim_can_be_made_nothing_is_bound() -> None:
    kernel = Strict(able=ALL, now=ALL)
    # A name too long for a socket is refused as a sandbox without sockets would refuse any.
    berth = Berth("auto", TWO_SOCKETS, (), CpuClaims("x" * 200), kernel)
    assert berth.settle(4) == 4
    assert kernel.now == ALL
    assert "no CPU can be claimed here" in berth.binding.summary


def test_a_measured_berth_says_what_the_probe_found(neighbours: Make) -> None:
    berth = neighbours(TWO_SOCKETS).berth(mode="measured")
    berth.settle(8)
    assert berth.binding.steps[-1].what == "keep"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")


def test_cuda_is_told_of_the_assigned_gpu_by_uuid(install: Install, environment: None) -> None:
    install(DGX)
    assigned_berth("off", ["3"], "test")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == DGX.gpus[3].uuid


def test_a_cpu_shard_sees_no_gpu_and_asks_no_driver(install: Install, environment: None) -> None:
    nvml = install(DGX)
    assigned_berth("off", [], "test")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert nvml.calls == []


def test_without_a_driver_rays_word_stands(no_driver: None, environment: None) -> None:
    assigned_berth("off", ["0"], "test")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"


def test_a_slice_that_the_fleet_gave_wins_over_rays_word(
    install: Install, environment: None
) -> None:
    cut = recorded("mig-a100").gpus[0].slices[1]
    install(recorded("mig-a100"))
    assert assigned_berth("off", [], "test", given=[cut.uuid]).devices == (cut.uuid,)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == cut.uuid


def test_a_slice_that_the_fleet_gave_needs_a_driver(no_driver: None, environment: None) -> None:
    with pytest.raises(DeviceUnavailable, match="MIG-a cannot be had: no driver answers here"):
        assigned_berth("off", [], "test", given=["MIG-a"])


def test_an_assignment_that_means_no_device_is_refused(install: Install, environment: None) -> None:
    install(recorded("mig-a100"))
    with pytest.raises(DeviceUnavailable, match="is in MIG mode"):
        assigned_berth("off", ["1"], "test")
