"""Slices are given to shards by UUID, cut for them where that is allowed, and put back."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.carving import TRIES, MigKeeper
from actors.devices.discovery import discover
from actors.devices.mig import MigManager
from actors.lifecycle import Backoff, Event
from actors.sharing import Share
from actors.slice_book import Site
from actors.slicing import Slices
from actors.tasks import cancel_all
from cluster.config import ModelConfig, ResourcesConfig
from cluster.errors import DeviceUnavailable
from cluster.placement import NewSlice, Plan, Recut
from cluster.topology import Gpu, Topology
from tests.actors.devices.conftest import Install
from tests.actors.devices.fake_driver import FakeNvml
from tests.cluster.machines import recorded

NODE = recorded("mig-a100")
MIXED, WHOLE, HALVES, PARTLY = NODE.gpus
"""4g+2g+1g; one 7g; two 3g; two 1g and free room."""
SHARE = Share(cpus=1.0, gpus=0.0, threads=1)
HERE = "node"
ONE_MORE = Recut(HERE, PARTLY.uuid, (), (NewSlice("3g.20gb", 4),))
"""Cut of the free room."""


def open_gate() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate


class Machine:
    """One node whose GPUs are cut, and the places of shards on it: one model for each profile."""

    def __init__(self, manage_mig: bool) -> None:
        models = [
            ModelConfig(name=profile.name, resources=ResourcesConfig(mig_profile=profile.name))
            for profile in MIXED.profiles
        ]
        self.keeper = MigKeeper(float("inf"), "tests", MigManager())
        self.told: list[tuple[Event | None, str]] = []
        self.heard = asyncio.Event()
        self.carved = 0
        self.cuts, self.may_cut = asyncio.Event(), open_gate()
        self.looks, self.may_look = asyncio.Event(), open_gate()
        self.slices = Slices(
            models,
            carve=self._carve if manage_mig else None,
            nodes=self._nodes,
            look=self._look,
            backoff=Backoff(first_s=0.01, longest_s=0.01),
        )

    async def find(self, profile: str, index: int = 0) -> Site:
        async with asyncio.timeout(20.0):
            return await self.slices.find(profile, index, SHARE, self._tell)

    async def seeking(self, profile: str, index: int) -> asyncio.Task[Site]:
        """A shard that has been told why it has to wait."""
        task = asyncio.create_task(self.find(profile, index))
        async with asyncio.timeout(20.0):
            await self.heard.wait()
        assert not task.done()
        return task

    def _tell(self, event: Event | None, message: str) -> None:
        self.told.append((event, message))
        self.heard.set()

    async def _nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": HERE, "Resources": {"CPU": 8.0}}]

    async def _look(self, known: Topology) -> Topology:
        """What is seen is from before the gate."""
        seen = known if known.node(HERE) else Topology((discover(HERE),))
        self.looks.set()
        await self.may_look.wait()
        return seen

    async def _carve(self, plan: Plan) -> tuple[str, ...]:
        self.carved += 1
        self.cuts.set()
        await self.may_cut.wait()
        refused = []
        for recut in plan.recuts:
            try:
                await self.keeper.recut(recut, ())
            except DeviceUnavailable as error:
                refused.append(error.message)
        return tuple(refused)


@pytest.fixture
def nvml(install: Install) -> FakeNvml:
    return install(NODE)


def gpu_of(nvml: FakeNvml, site: Site) -> str:
    (uuid,) = site.devices
    return next(g.uuid for g in nvml.gpus if uuid in {device.uuid for device in g.mig_devices()})


def uuids(*gpus: Gpu, profile: str) -> set[str]:
    return {cut.uuid for gpu in gpus for cut in gpu.slices if cut.profile == profile}


def layout(nvml: FakeNvml) -> dict[str, Any]:
    return {gpu.uuid: nvml.cuts(gpu.uuid) for gpu in nvml.gpus}


async def test_each_shard_gets_a_slice_of_its_profile_by_uuid(nvml: FakeNvml) -> None:
    machine = Machine(manage_mig=False)
    sites = await asyncio.gather(*(machine.find("1g.5gb", index) for index in range(3)))
    assert {site.node for site in sites} == {HERE}
    given = {device for site in sites for device in site.devices}
    assert given == uuids(*NODE.gpus, profile="1g.5gb")


async def test_a_shard_waits_for_a_slice_and_gets_the_next_that_is_left(nvml: FakeNvml) -> None:
    machine = Machine(manage_mig=False)
    first = await machine.find("7g.40gb", 0)
    waiting = await machine.seeking("7g.40gb", 1)
    event, reason = machine.told[0]
    assert event is Event.CRAMPED
    assert "MIG slice 7g.40gbs are taken" in reason
    machine.slices.leave("7g.40gb", 0)
    assert await waiting == first


async def test_a_missing_slice_is_cut_of_free_room_first(nvml: FakeNvml) -> None:
    machine = Machine(manage_mig=True)
    sites = [await machine.find("3g.20gb", index) for index in range(3)]
    assert [gpu_of(nvml, site) for site in sites] == [HALVES.uuid, HALVES.uuid, PARTLY.uuid]
    assert nvml.cuts(PARTLY.uuid) == [("1g.5gb", 0, 1), ("1g.5gb", 1, 1), ("3g.20gb", 4, 1)]


async def test_nothing_is_cut_that_others_are_about_to_get(nvml: FakeNvml) -> None:
    machine = Machine(manage_mig=True)
    first, second, *small = await asyncio.gather(
        machine.find("7g.40gb", 0),
        machine.find("7g.40gb", 1),
        *(machine.find("1g.5gb", index) for index in range(3)),
    )
    assert {gpu_of(nvml, first), gpu_of(nvml, second)} == {WHOLE.uuid, HALVES.uuid}
    assert {one for site in small for one in site.devices} == uuids(*NODE.gpus, profile="1g.5gb")


async def test_a_slice_of_an_adopted_shard_is_neither_given_nor_cut(nvml: FakeNvml) -> None:
    machine = Machine(manage_mig=True)
    (whole,) = uuids(WHOLE, profile="7g.40gb")
    machine.slices.note("7g.40gb", 0, HERE, (whole,))
    site = await machine.find("7g.40gb", 1)
    assert gpu_of(nvml, site) != WHOLE.uuid
    assert nvml.cuts(WHOLE.uuid) == [("7g.40gb", 0, 1)]


async def test_while_a_living_shard_has_not_said_which_slice_it_has_none_is_given(
    nvml: FakeNvml,
) -> None:
    machine = Machine(manage_mig=True)
    (whole,) = uuids(WHOLE, profile="7g.40gb")
    machine.slices.expect("7g.40gb", 0)
    waiting = await machine.seeking("7g.40gb", 1)
    assert machine.told[0] == (None, "7g.40gb/shard-0 may have a slice, and has not said which")
    machine.slices.note("7g.40gb", 0, HERE, (whole,))
    assert gpu_of(nvml, await waiting) != WHOLE.uuid


async def test_a_shard_that_is_gone_is_not_waited_for_any_more(nvml: FakeNvml) -> None:
    machine = Machine(manage_mig=False)
    machine.slices.expect("7g.40gb", 0)
    waiting = await machine.seeking("7g.40gb", 1)
    machine.slices.leave("7g.40gb", 0)
    assert gpu_of(nvml, await waiting) == WHOLE.uuid


async def test_where_every_cut_is_refused_room_is_asked_for_and_the_reasons_are_said(
    nvml: FakeNvml,
) -> None:
    machine = Machine(manage_mig=True)
    for index in range(2):
        await machine.find("3g.20gb", index)
    for gpu in nvml.gpus:
        gpu.processes.append(4711)
    waiting = await machine.seeking("3g.20gb", 2)
    event, reason = machine.told[0]
    assert event is Event.CRAMPED
    assert "all 2 MIG slice 3g.20gbs are taken" in reason
    for cuttable in (MIXED, WHOLE, PARTLY):
        assert f"{cuttable.uuid} is left alone: processes [4711] run there" in reason
    for gpu in nvml.gpus:
        gpu.processes.clear()
    assert gpu_of(nvml, await waiting) == PARTLY.uuid


async def test_where_one_gpu_may_not_be_cut_the_next_is(nvml: FakeNvml) -> None:
    machine = Machine(manage_mig=True)
    for index in range(2):
        await machine.find("3g.20gb", index)
    nvml.gpu(PARTLY.uuid).processes.append(4711)
    site = await machine.find("3g.20gb", 2)
    assert gpu_of(nvml, site) not in (HALVES.uuid, PARTLY.uuid)
    assert machine.told == []


async def test_a_cut_ends_before_anybody_plans_even_where_its_seeker_is_not_wanted_any_more(
    nvml: FakeNvml,
) -> None:
    machine = Machine(manage_mig=True)
    for index in range(2):
        await machine.find("3g.20gb", index)
    machine.may_cut.clear()
    unwanted = asyncio.create_task(machine.find("3g.20gb", 2))
    await machine.cuts.wait()
    unwanted.cancel()
    other = asyncio.create_task(machine.find("3g.20gb", 3))
    await asyncio.sleep(0)  # it has been cancelled, and the other waits for its turn
    machine.may_cut.set()
    assert gpu_of(nvml, await other) == PARTLY.uuid
    assert unwanted.cancelled()
    assert machine.carved == 1


async def test_what_changes_while_somebody_looks_is_looked_at_again(nvml: FakeNvml) -> None:
    machine = Machine(manage_mig=False)
    (whole,) = uuids(WHOLE, profile="7g.40gb")
    machine.slices.note("7g.40gb", 0, HERE, (whole,))
    machine.may_look.clear()
    finding = asyncio.create_task(machine.find("7g.40gb", 1))
    await machine.looks.wait()
    nvml.gpu(WHOLE.uuid).rows = (0, 1, 1, 0)
    machine.slices.leave("7g.40gb", 0)
    machine.may_look.set()
    async with asyncio.timeout(20.0):
        await machine.heard.wait()
    assert machine.slices.taken == {}
    await cancel_all(finding)


async def test_who_turns_out_to_have_some_slice_while_somebody_looks_is_waited_for(
    nvml: FakeNvml,
) -> None:
    machine = Machine(manage_mig=False)
    machine.may_look.clear()
    finding = asyncio.create_task(machine.find("7g.40gb", 1))
    await machine.looks.wait()
    machine.slices.expect("7g.40gb", 0)
    machine.may_look.set()
    async with asyncio.timeout(20.0):
        await machine.heard.wait()
    assert machine.told[0] == (None, "7g.40gb/shard-0 may have a slice, and has not said which")
    machine.slices.leave("7g.40gb", 0)
    assert gpu_of(nvml, await finding) == WHOLE.uuid


async def test_the_layout_found_is_put_back(nvml: FakeNvml) -> None:
    before = layout(nvml)
    machine = Machine(manage_mig=True)
    await machine.find("7g.40gb", 0)
    await machine.find("7g.40gb", 1)
    await machine.find("4g.20gb", 0)
    assert layout(nvml) != before
    assert await machine.keeper.restore() == ()
    assert layout(nvml) == before


async def test_a_gpu_with_a_fault_gets_no_shard_until_it_reads_healthy(nvml: FakeNvml) -> None:
    machine = Machine(manage_mig=False)
    assert gpu_of(nvml, await machine.find("3g.20gb", 0)) == HALVES.uuid
    nvml.gpu(HALVES.uuid).rows = (0, 1, 1, 0)
    machine.slices.leave("3g.20gb", 0)
    waiting = await machine.seeking("3g.20gb", 0)
    nvml.gpu(HALVES.uuid).rows = (0, 1, 0, 0)
    assert gpu_of(nvml, await waiting) == HALVES.uuid


@settings(
    max_examples=30,
    # The fixture only puts a new library in place, which each example does for itself.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(
        st.tuples(st.sampled_from([one.name for one in MIXED.profiles]), st.booleans()), max_size=9
    )
)
def test_whoever_comes_and_goes_a_slice_has_one_shard_and_lives_as_long(
    install: Install, history: list[tuple[str, bool]]
) -> None:
    asyncio.run(come_and_go(install(NODE), history))


async def come_and_go(nvml: FakeNvml, history: list[tuple[str, bool]]) -> None:
    """Shards come one by one; after some of them, the first that is still there leaves."""
    before, machine = layout(nvml), Machine(manage_mig=True)
    tasks = []
    for index, (profile, one_leaves) in enumerate(history):
        machine.heard.clear()
        tasks.append(asyncio.create_task(machine.find(profile, index)))
        heard = asyncio.create_task(machine.heard.wait())
        await asyncio.wait({tasks[-1], heard}, return_when=asyncio.FIRST_COMPLETED)
        heard.cancel()
        if one_leaves and machine.slices.taken:
            machine.slices.leave(*next(iter(machine.slices.taken)))
        machine.slices.verify()
        there = {device.uuid for gpu in nvml.gpus for device in gpu.mig_devices()}
        assert {one for place in machine.slices.taken.values() for one in place.devices} <= there
    await cancel_all(*tasks)
    assert await machine.keeper.restore() == ()
    assert layout(nvml) == before


async def test_a_keeper_that_nobody_holds_puts_the_layout_back_and_goes(nvml: FakeNvml) -> None:
    before, gone = layout(nvml), asyncio.Event()
    keeper = MigKeeper(0.5, "tests", MigManager(), leave=gone.set)
    await keeper.recut(ONE_MORE, ())
    assert layout(nvml) != before
    async with asyncio.timeout(20.0):
        await gone.wait()
    assert layout(nvml) == before


async def test_what_cannot_be_put_back_at_once_is_tried_again(nvml: FakeNvml) -> None:
    before = layout(nvml)
    keeper = MigKeeper(float("inf"), "tests", MigManager(), pause_s=0.0)
    await keeper.recut(ONE_MORE, ())
    nvml.fail_once("nvmlDeviceGetMigMode", pynvml.NVML_ERROR_UNKNOWN, after=0)
    assert await keeper.restore() == ()
    assert layout(nvml) == before


class Stubborn(MigManager):
    """Tries in vain for so many times, or, for None, raises what nobody expects."""

    def __init__(self, in_vain: int | None) -> None:
        super().__init__()
        self.in_vain = in_vain
        self.tried = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def restore(self, own_pids: Collection[int]) -> tuple[str, ...]:
        self._loop.call_soon_threadsafe(self.tried.set)
        if self.in_vain is None:
            raise KeyError("a bug")
        self.in_vain -= 1
        return super().restore(own_pids) if self.in_vain < 0 else ("our shard runs there",)


async def test_a_keeper_adrift_tries_until_our_shards_may_have_ended_too(nvml: FakeNvml) -> None:
    before, gone = layout(nvml), asyncio.Event()
    manager = Stubborn(in_vain=TRIES + 9)
    keeper = MigKeeper(0.5, "tests", manager, leave=gone.set, pause_s=0.01)
    await keeper.recut(ONE_MORE, ())
    async with asyncio.timeout(20.0):
        await gone.wait()
    assert layout(nvml) == before


async def test_a_keeper_adrift_that_is_held_again_stays_until_it_is_not(nvml: FakeNvml) -> None:
    before, gone = layout(nvml), asyncio.Event()
    manager = Stubborn(in_vain=1000)
    keeper = MigKeeper(0.5, "tests", manager, leave=gone.set, pause_s=3600.0)
    await keeper.recut(ONE_MORE, ())
    async with asyncio.timeout(20.0):
        await manager.tried.wait()
        await keeper.recut(Recut(HERE, PARTLY.uuid, (), ()), ())  # has its turn at once
        assert layout(nvml) != before
        assert not gone.is_set()
        manager.in_vain = 0
        await gone.wait()
    assert layout(nvml) == before


async def test_a_keeper_adrift_leaves_whatever_goes_wrong(nvml: FakeNvml) -> None:
    gone = asyncio.Event()
    keeper = MigKeeper(0.5, "tests", Stubborn(in_vain=None), leave=gone.set)
    await keeper.hold()
    async with asyncio.timeout(20.0):
        await gone.wait()
