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
from actors.shard_spec import ShardSpec
from cluster.binding import MemoryPolicy
from cluster.config import ResourcesConfig
from cluster.messages import ShardRef
from cluster.scheduling_config import SchedulingConfig
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

    async def load(self) -> None:
        self.pid = await pid_of(self.handle)
        await self.handle.load.remote()
        await until(self._has_turned)

    async def leave(self) -> None:
        ray.kill(self.handle)
        await until(self._has_gone)

    async def threads_computing(self) -> int:
        """What torch itself says."""
        count: int = await self.handle.__ray_call__.remote(lambda _: torch.get_num_threads())
        return count

    def affinity(self) -> list[int]:
        return sorted(os.sched_getaffinity(self.pid))

    def threads(self) -> list[int]:
        return [int(thread) for thread in os.listdir(f"/proc/{self.pid}/task")]

    def policies(self, thread: int) -> set[str]:
        """Of the thread's mappings: a memory policy is a thread's own."""
        maps = Path(f"/proc/{self.pid}/task/{thread}/numa_maps").read_text()
        return {line.split()[1] for line in maps.splitlines()}

    def shows_policies(self) -> bool:
        return os.access(f"/proc/{self.pid}/numa_maps", os.R_OK)

    async def _has_turned(self) -> bool:
        return bool((await self.handle.ping.remote()).turns > 0)

    async def _has_gone(self) -> bool:
        return is_gone(self.pid)


@pytest.fixture(scope="module")
def folder(session: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A model, and the scheduler that its shards report to, alive while its handle is held."""
    scheduler = create_scheduler(SchedulingConfig(), NAMESPACE)
    yield tiny_llama(tmp_path_factory.mktemp("tiny"))
    ray.kill(scheduler.handle)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alone(folder: Path) -> AsyncIterator[Tenant]:
    """A shard with one thread that lives as long as the tests; each leaves it as it found it."""
    tenant = Tenant(folder, threads=1, binding="auto")
    await tenant.load()
    yield tenant
    await tenant.leave()


async def test_a_shard_is_bound_to_as_many_cpus_as_it_has_threads(alone: Tenant) -> None:
    stats = await alone.stats()
    assert len(stats.binding.cpus) == stats.threads == await alone.threads_computing() == 1
    assert alone.affinity() == list(stats.binding.cpus)


async def test_every_thread_of_a_shard_is_bound(alone: Tenant) -> None:
    threads = alone.threads()
    assert len(threads) > 5
    sets = {tuple(sorted(os.sched_getaffinity(thread))) for thread in threads}
    assert sets == {(await alone.stats()).binding.cpus}


async def test_the_threads_that_load_and_compute_take_memory_of_the_numa_node(
    alone: Tenant,
) -> None:
    binding = (await alone.stats()).binding
    if binding.memory is not MemoryPolicy.BIND or not alone.shows_policies():
        pytest.skip("this kernel allows no memory policy, or does not show it")
    bound = [t for t in alone.threads() if f"bind:{binding.numa_node}" in alone.policies(t)]
    # Its event loop, which binds itself, and the engine's thread, which inherits that.
    assert len(bound) >= 2


@needs_two_cpus
async def test_a_shard_that_is_narrowed_makes_room_for_the_next(
    alone: Tenant, folder: Path
) -> None:
    await alone.handle.use_threads.remote(2)
    await until(lambda: has_threads(alone, 2))
    await alone.handle.use_threads.remote(1)
    second = Tenant(folder, threads=1, binding="auto")
    await second.load()
    assert len(alone.affinity()) == len(second.affinity()) == 1
    assert alone.affinity() != second.affinity()
    await second.leave()


@needs_two_cpus
async def test_a_shard_widens_by_itself_when_its_neighbour_has_gone(
    alone: Tenant, folder: Path
) -> None:
    second = Tenant(folder, threads=1, binding="auto")
    await second.load()
    await alone.handle.use_threads.remote(2)
    assert (await alone.stats()).threads == 1
    await second.leave()
    await until(lambda: has_threads(alone, 2))
    assert len(alone.affinity()) == 2
    await alone.handle.use_threads.remote(1)


async def test_with_binding_off_a_shard_may_use_every_cpu(alone: Tenant, folder: Path) -> None:
    shard = Tenant(folder, threads=1, binding="off")
    await shard.load()
    stats = await shard.stats()
    assert shard.affinity() == MINE
    assert (stats.threads, stats.binding.steps[0].reason) == (1, "binding is off")
    await shard.leave()


async def has_threads(shard: Tenant, count: int) -> bool:
    return (await shard.stats()).threads == count
