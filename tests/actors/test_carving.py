"""The fleet's word to the keepers of MIG layouts: real actors, over a driver that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pynvml
import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.carving import PREFIX, Carver, MigKeeper
from actors.creation import create_shard, new_incarnation
from actors.devices.mig import MigManager
from actors.fleet import Fleet
from actors.identity import Identity
from actors.shard_spec import ShardSpec
from cluster.config import ModelConfig, ResourcesConfig, ShoalConfig
from cluster.fleet_config import FleetConfig
from cluster.messages import ShardRef
from cluster.placement import NewSlice, Plan, Recut
from tests.actors.devices.fake_library import load
from tests.actors.living import pid_of, ray_session, tiny_model, until
from tests.cluster.machines import recorded

pytestmark = pytest.mark.asyncio(loop_scope="module")

NODE = recorded("mig-a100")
PARTLY = NODE.gpus[3]
"""Two slices 1g.5gb, and free room."""
FOUND = [("1g.5gb", 0, 1), ("1g.5gb", 1, 1)]


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    with ray_session():
        yield


@pytest.fixture
def namespace() -> str:
    return f"carving-{uuid4().hex}"


def here() -> str:
    return str(ray.nodes()[0]["NodeID"])


def one_more() -> Plan:
    """Of a slice 3g.20gb, in the free room."""
    return Plan((), recuts=(Recut(here(), PARTLY.uuid, (), (NewSlice("3g.20gb", 4),)),))


def carver(namespace: str, *pids: int) -> Carver:
    """Of a fleet whose shards these are."""
    made = Carver(namespace, slack_s=60.0)
    for index, pid in enumerate(pids):
        made.stands(f"m/shard-{index}", Identity("stamp", node=here(), pid=pid))
    return made


async def keeper_of(namespace: str, *pids: int) -> Any:
    """A keeper whose driver shows the recorded GPUs, with these processes on one of them."""

    def install(keeper: MigKeeper) -> None:
        load(NODE).gpu(PARTLY.uuid).mig_devices()[0].processes.extend(pids)
        keeper._manager = MigManager()

    there = NodeAffinitySchedulingStrategy(here(), soft=False)
    actor: Any = ray.remote(MigKeeper)
    options = {"name": PREFIX + here(), "namespace": namespace, "scheduling_strategy": there}
    keeper = actor.options(num_cpus=0, **options).remote(60.0, namespace)
    await keeper.__ray_call__.remote(install)
    return keeper


async def layout(keeper: Any) -> Any:
    return await keeper.__ray_call__.remote(lambda _: pynvml.nvmlLib.cuts(PARTLY.uuid))


def actors_of(namespace: str) -> list[str]:
    entries = ray.util.list_named_actors(all_namespaces=True)
    return [one["name"] for one in entries if one["namespace"] == namespace]


async def test_a_plan_is_cut_and_a_later_fleet_puts_it_back(namespace: str) -> None:
    keeper = await keeper_of(namespace)
    assert await carver(namespace).carve(one_more()) == ()
    assert await layout(keeper) == [*FOUND, ("3g.20gb", 4, 1)]
    assert await keeper.restore.remote() == ()
    assert await layout(keeper) == FOUND
    await carver(namespace).restore()
    await until(lambda: has_actors(namespace, []))


async def test_a_gpu_with_a_foreign_process_is_left_alone_and_one_with_our_shards_is_not(
    namespace: str, tmp_path: Path
) -> None:
    ref = ShardRef("m/shard-0", "m", "m/shard-0", new_incarnation())
    ours = create_shard(ShardSpec(ref, tiny_model(tmp_path), namespace, threads=1), cpus=0.0)
    identity: Identity = await ours.handle.identity.remote()
    assert (identity.node, identity.pid) == (here(), await pid_of(ours.handle))
    keeper = await keeper_of(namespace, identity.pid)
    (refused,) = await carver(namespace).carve(one_more())
    assert "run there that are not Shoal's" in refused
    assert await layout(keeper) == FOUND
    assert await carver(namespace, identity.pid).carve(one_more()) == ()
    assert await layout(keeper) == [*FOUND, ("3g.20gb", 4, 1)]


async def test_where_there_is_no_keeper_one_is_made_and_ended(namespace: str) -> None:
    (refused,) = await carver(namespace).carve(one_more())
    assert refused.startswith(f"DeviceUnavailable: {PARTLY.uuid} cannot be cut: ")
    assert actors_of(namespace) == [PREFIX + here()]
    await carver(namespace).restore()
    await until(lambda: has_actors(namespace, []))


async def test_a_shard_that_wants_a_slice_where_there_is_none_says_so(namespace: str) -> None:
    model = ModelConfig(name="tiny", resources=ResourcesConfig(cpus=0, mig_profile="1g.5gb"))
    fleet = Fleet(ShoalConfig(models=(model,), fleet=FleetConfig(manage_mig=True)), namespace)
    fleet.start()

    async def says_so() -> bool:
        messages = [member.message for member in fleet.status().members]
        return any("no MIG slice 1g.5gb (there are: none)" in message for message in messages)

    await until(says_so)
    await fleet.stop()
    assert actors_of(namespace) == []


async def has_actors(namespace: str, names: list[str]) -> bool:
    return actors_of(namespace) == names
