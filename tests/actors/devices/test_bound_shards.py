"""Living shards of one node: each bound to CPUs of its own, with as many threads."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import pytest
import pytest_asyncio
import ray
import torch

from actors.creation import create_scheduler, create_shard, new_incarnation
from actors.shard import ShardSpec
from cluster.binding import MemoryPolicy
from cluster.config import ResourcesConfig, SchedulingConfig
from cluster.messages import ShardRef
from cluster.stats import ShardStats
from tests.actors.living import TIMING, is_gone, pid_of, ray_session, tiny_llama, tiny_model, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

Binds = Literal["auto", "off"]
NAMESPACE = "berths"
BOOKS = f"test-{uuid4().hex}"
MINE = sorted(os.sched_getaffinity(0))
needs_two_cpus = pytest.mark.skipif(len(MINE) < 2, reason="there is one CPU to be had")


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    with ray_session():
        yield


class Tenant:
    """A shard in its own process, loaded."""

    def __init__(self, folder: Path, threads: int, binding: Binds) -> None:
        name = f"tiny/shard-{uuid4().hex}"
        resources = ResourcesConfig(cpus=0, threads=threads, binding=binding)
        self.spec = ShardSpec(
            ShardRef(name, "tiny", name, new_incarnation()),
            tiny_model(folder, resources=resources),
            NAMESPACE,
            threads=threads,
            timing=replace(TIMING, settle_s=0.2),
            claims=BOOKS,
        )
        self.handle: Any = create_shard(self.spec, cpus=0).handle
        self.pid = 0

    async def stats(self) -> ShardStats:
        stats: ShardStats = await self.handle.stats.remote()
        return stats

    async def has_turned(self) -> bool:
        pulse = await self.handle.ping.remote()
        return bool(pulse.turns > 0)

    async def threads_computing(self) -> int:
        """What torch itself says, on the thread that computes."""
        count: int = await self.handle.__ray_call__.remote(lambda _: torch.get_num_threads())
        return count

    async def affinity(self) -> list[int]:
        return sorted(os.sched_getaffinity(self.pid))


@pytest.fixture(scope="module")
def folder(session: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    create_scheduler(SchedulingConfig(), NAMESPACE)
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest_asyncio.fixture(loop_scope="module")
async def move_in(folder: Path) -> AsyncIterator[Any]:
    """Loads shards beside each other; all are gone, and their CPUs free, after the test."""
    there: list[Tenant] = []

    async def move_in(threads: int, binding: Binds = "auto") -> Tenant:
        there.append(Tenant(folder, threads, binding))
        there[-1].pid = await pid_of(there[-1].handle)
        await there[-1].handle.load.remote()
        await until(there[-1].has_turned)
        return there[-1]

    yield move_in
    for tenant in there:
        ray.kill(tenant.handle)
    await until(lambda: all_gone([tenant.pid for tenant in there]))


async def all_gone(pids: list[int]) -> bool:
    return all(is_gone(pid) for pid in pids)


async def test_a_shard_is_bound_to_as_many_cpus_as_it_has_threads(move_in: Any) -> None:
    shard = await move_in(threads=1)
    stats = await shard.stats()
    assert len(stats.binding.cpus) == stats.threads == await shard.threads_computing() == 1
    assert await shard.affinity() == list(stats.binding.cpus)


async def test_every_thread_of_a_shard_is_bound(move_in: Any) -> None:
    shard = await move_in(threads=1)
    threads = [int(thread) for thread in os.listdir(f"/proc/{shard.pid}/task")]
    assert len(threads) > 5
    sets = {tuple(sorted(os.sched_getaffinity(thread))) for thread in threads}
    assert sets == {(await shard.stats()).binding.cpus}


async def test_the_pages_of_a_shard_are_bound_to_its_numa_node(move_in: Any) -> None:
    shard = await move_in(threads=1)
    binding = (await shard.stats()).binding
    maps = Path(f"/proc/{shard.pid}/numa_maps")
    if binding.memory is not MemoryPolicy.BIND or not os.access(maps, os.R_OK):
        pytest.skip("this kernel allows no memory policy, or does not show it")
    policies = {line.split()[1] for line in maps.read_text().splitlines()}
    assert f"bind:{binding.numa_node}" in policies


@needs_two_cpus
async def test_shards_of_one_node_have_cpus_of_their_own(move_in: Any) -> None:
    first, second = await move_in(threads=1), await move_in(threads=1)
    assert not set(await first.affinity()) & set(await second.affinity())


@needs_two_cpus
async def test_a_shard_that_is_narrowed_makes_room_for_the_next(move_in: Any) -> None:
    first = await move_in(threads=2)
    assert len(await first.affinity()) == 2
    await first.handle.use_threads.remote(1)
    second = await move_in(threads=1)
    assert len(await first.affinity()) == len(await second.affinity()) == 1
    assert (await first.stats()).threads == 1


@needs_two_cpus
async def test_a_shard_widens_by_itself_when_its_neighbour_has_gone(move_in: Any) -> None:
    stays, leaves = await move_in(threads=1), await move_in(threads=1)
    await stays.handle.use_threads.remote(2)
    assert (await stays.stats()).threads == 1
    ray.kill(leaves.handle)
    await until(lambda: has_threads(stays, 2))
    assert len(await stays.affinity()) == 2


async def test_with_binding_off_a_shard_may_use_every_cpu(move_in: Any) -> None:
    shard = await move_in(threads=1, binding="off")
    stats = await shard.stats()
    assert await shard.affinity() == MINE
    assert (stats.threads, stats.binding.steps[0].reason) == (1, "binding is off")


async def has_threads(shard: Tenant, count: int) -> bool:
    return (await shard.stats()).threads == count
