"""One real shard: its token stream, its doors, its books, its death."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import ray
from ray.exceptions import ActorDiedError, RayTaskError

from actors.creation import create_scheduler, create_shard, new_incarnation
from actors.shard_spec import ShardSpec
from cluster.config import ModelConfig
from cluster.errors import ModelUnavailable, ShardLost
from cluster.folder_config import FolderConfig
from cluster.messages import (
    Assignment,
    DeltaBatch,
    FinishReason,
    RequestFailed,
    ShardRef,
    TokenDelta,
)
from cluster.reports import HeldRequest
from cluster.scheduling_config import SchedulingConfig
from cluster.stats import ShardStats
from tests.actors.living import (
    TIMING,
    assignment,
    break_next_step,
    is_gone,
    pid_of,
    ray_session,
    tiny_llama,
    tiny_model,
    until,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMESPACE = "shard-tests"
BOOKS = f"shard-tests-{os.getpid()}"
LONG = 1500


class Shard:
    """A shard and the door at which a test stands."""

    def __init__(self, spec: ShardSpec) -> None:
        self.ref = spec.ref
        self.actor: Any = create_shard(spec, cpus=0.0).handle
        self.door = ""
        self.stand_anew()

    def stand_anew(self) -> None:
        """As a door does with each channel: one that was forgotten is not heard again."""
        self.door = f"door-{new_incarnation()}"

    async def assign(self, *assignments: Assignment, door: str | None = None) -> None:
        await self.actor.assign.remote(door or self.door, assignments)

    async def cancel(self, request_id: str, choice: int | None = None) -> None:
        await self.actor.cancel.remote(self.door, ((request_id, choice),))

    async def poll(self, acknowledged: int, door: str | None = None) -> DeltaBatch:
        batch: DeltaBatch = await self.actor.deltas.remote(door or self.door, acknowledged)
        return batch

    async def stats(self) -> ShardStats:
        stats: ShardStats = await self.actor.stats.remote()
        return stats

    async def is_empty(self) -> bool:
        stats = await self.stats()
        return stats.running + stats.waiting + stats.used_pages == 0

    async def is_running(self) -> bool:
        return (await self.stats()).running > 0

    async def read(self, acknowledged: int = 0, door: str | None = None) -> list[TokenDelta]:
        """All deltas until each choice of one request has ended; every batch is fetched twice."""
        deltas: list[TokenDelta] = []
        while not deltas or deltas[-1].finish is None:
            batch = await self.poll(acknowledged, door)
            if batch.number > acknowledged:
                assert await self.poll(acknowledged, door) == batch
                acknowledged = batch.number
            for delta in batch.deltas:
                assert isinstance(delta, TokenDelta), delta
                deltas.append(delta)
        return deltas


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return tiny_model(tiny_llama(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    with ray_session():
        yield


@pytest.fixture(scope="module")
def scheduler(session: None) -> Any:
    return create_scheduler(SchedulingConfig(), NAMESPACE).handle


def spec_of(model: ModelConfig, index: int, audit_s: float = 30.0) -> ShardSpec:
    name = f"{model.name}/shard-{index}"
    ref = ShardRef(name, model.name, name, new_incarnation())
    timing = replace(TIMING, audit_s=audit_s)
    return ShardSpec(ref, model, NAMESPACE, threads=1, timing=timing, claims=BOOKS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def loaded(model: ModelConfig, scheduler: Any) -> Shard:
    shard = Shard(spec_of(model, 0))
    await shard.actor.load.remote()
    await until(lambda: known(scheduler, shard.ref))
    return shard


@pytest_asyncio.fixture(loop_scope="module")
async def shard(loaded: Shard) -> AsyncIterator[Shard]:
    """The module's shard; its doors are forgotten and its books balance between two tests."""
    loaded.stand_anew()
    yield loaded
    await until(loaded.is_empty)
    await until(lambda: has_doors(loaded, 0))
    await loaded.actor.verify.remote()


async def known(scheduler: Any, ref: ShardRef) -> bool:
    return ref in (await scheduler.stats.remote()).shards


async def has_sampled(shard: Shard, before: int) -> bool:
    return (await shard.stats()).tokens_sampled > before


async def has_doors(shard: Shard, count: int) -> bool:
    return (await shard.stats()).doors == count


async def test_tokens_arrive_once_and_in_order_though_each_batch_is_sent_twice(
    shard: Shard,
) -> None:
    await shard.assign(assignment(shard.ref, max_tokens=40))
    first = await shard.read()
    await shard.assign(assignment(shard.ref, max_tokens=40), door="another")
    second = await shard.read(door="another")
    tokens = [[token for delta in deltas for token in delta.tokens] for deltas in (first, second)]
    assert len(tokens[0]) == 40
    assert tokens[0] == tokens[1]
    assert second[0].cached_tokens > 0
    assert second[-1].finish is FinishReason.LENGTH


async def test_a_request_that_is_sent_twice_is_served_once(shard: Shard) -> None:
    request = assignment(shard.ref, max_tokens=5)
    before = (await shard.stats()).tokens_sampled
    await shard.assign(request, request)
    await shard.read()
    await shard.assign(request)
    await until(shard.is_empty)
    assert (await shard.stats()).tokens_sampled == before + 5


async def test_a_lease_of_an_earlier_life_is_refused(shard: Shard) -> None:
    await shard.assign(assignment(replace(shard.ref, incarnation="earlier")))
    (failed,) = (await shard.poll(0)).deltas
    assert isinstance(failed, RequestFailed)
    assert failed.kind == "StaleLease"


async def test_what_the_engine_refuses_is_told_to_the_door(shard: Shard) -> None:
    request = assignment(shard.ref)
    await shard.assign(replace(request, request=replace(request.request, prompt=())))
    (failed,) = (await shard.poll(0)).deltas
    assert isinstance(failed, RequestFailed)
    assert failed.kind == "InvalidRequest"


async def test_a_cancelled_request_frees_its_pages_within_one_step(shard: Shard) -> None:
    request = assignment(shard.ref, max_tokens=LONG)
    await shard.assign(request)
    await until(shard.is_running)
    await shard.cancel(request.request.request_id)
    at_cancel = (await shard.stats()).steps
    await until(shard.is_empty)
    assert (await shard.stats()).steps <= at_cancel + 1


async def test_a_cancelled_choice_leaves_the_others_alone(shard: Shard) -> None:
    request = assignment(shard.ref, max_tokens=300, choices=2)
    await shard.assign(request)
    await until(shard.is_running)
    await shard.cancel(request.request.request_id, choice=1)
    ends = [delta.choice for delta in await shard.read() if delta.finish is not None]
    assert ends == [0]


async def test_another_door_cannot_cancel_a_request(shard: Shard) -> None:
    request = assignment(shard.ref, max_tokens=60)
    await shard.assign(request)
    await shard.actor.cancel.remote("another", ((request.request.request_id, None),))
    assert (await shard.read())[-1].finish is FinishReason.LENGTH


async def test_a_door_that_disappears_loses_its_requests_and_its_outbox(shard: Shard) -> None:
    before = (await shard.stats()).tokens_sampled
    await shard.assign(assignment(shard.ref, max_tokens=LONG))
    number = (await shard.poll(0)).number
    await until(lambda: has_doors(shard, 0))
    await until(shard.is_empty)
    assert (await shard.stats()).tokens_sampled < before + LONG
    with pytest.raises(RayTaskError) as told:
        await shard.poll(number)
    assert isinstance(told.value.cause, ShardLost)


async def test_control_calls_are_answered_beside_many_long_polls(shard: Shard) -> None:
    polls = [asyncio.ensure_future(shard.poll(0, door=f"door {i}")) for i in range(200)]
    await shard.actor.ping.remote()
    await asyncio.gather(*polls)


async def test_an_idle_engine_does_not_turn(shard: Shard) -> None:
    await until(shard.is_empty)
    before = (await shard.actor.ping.remote()).turns
    assert (await shard.poll(0)).deltas == ()
    after = await shard.actor.ping.remote()
    assert (after.turns, after.busy) == (before, False)


async def test_the_scheduler_hears_of_cached_pages(shard: Shard, scheduler: Any) -> None:
    await shard.assign(assignment(shard.ref))
    await shard.read()
    cached = (await shard.stats()).cached_pages

    async def indexed() -> bool:
        return bool((await scheduler.stats.remote()).indexed_pages == cached)

    await until(indexed)


async def test_its_name_tells_model_index_and_device(shard: Shard) -> None:
    await shard.actor.use_threads.remote(1)
    name = await shard.actor.__ray_call__.remote(repr)
    assert name == "KVShard(tiny/0, cpu x1)"


async def test_threads_can_be_changed_while_it_lives(shard: Shard) -> None:
    await shard.actor.use_threads.remote(2)
    assert await shard.actor.__ray_call__.remote(repr) == "KVShard(tiny/0, cpu x2)"
    await shard.assign(assignment(shard.ref))
    await shard.read()
    await shard.actor.use_threads.remote(1)


async def test_weights_that_are_not_there_are_an_operators_error(
    model: ModelConfig, session: None, tmp_path: Path
) -> None:
    missing = model.model_copy(update={"source": str(tmp_path / "nowhere"), "name": "missing"})
    shard = Shard(spec_of(missing, 0))
    with pytest.raises(RayTaskError) as told:
        await shard.actor.load.remote()
    assert isinstance(told.value.cause, ModelUnavailable)
    assert "nowhere" in told.value.cause.message
    assert (await shard.actor.ping.remote()).turns == 0
    ray.kill(shard.actor)


async def test_a_shard_whose_step_fails_says_so_and_exits(
    model: ModelConfig, scheduler: Any
) -> None:
    shard = Shard(spec_of(model, 7))
    await shard.actor.load.remote()
    pid = await pid_of(shard.actor)
    watch = shard.actor.watch.remote()
    await shard.assign(assignment(shard.ref, max_tokens=LONG))
    await until(shard.is_running)
    number = (await shard.poll(0)).number
    await shard.actor.__ray_call__.remote(break_next_step)
    with pytest.raises(RayTaskError) as told:
        await watch
    assert "device is on fire" in str(told.value.cause)
    failed = (await shard.poll(number)).deltas[-1]
    assert isinstance(failed, RequestFailed)
    assert failed.kind == "StepFailed"

    async def exited() -> bool:
        return is_gone(pid)

    await until(exited)
    with pytest.raises(ActorDiedError):
        await shard.actor.ping.remote()


@pytest.mark.parametrize("kind", ["shard", "scheduler"])
async def test_who_is_not_held_by_an_owner_ends_by_itself(
    model: ModelConfig, session: None, kind: str
) -> None:
    if kind == "shard":
        life = create_shard(replace(spec_of(model, 8), tether_s=1.0), cpus=0.0)
    else:
        life = create_scheduler(SchedulingConfig(), "tether-tests", tether_s=1.0)
    pid = await pid_of(life.handle)
    for _ in range(15):
        await life.handle.ping.remote()
        await asyncio.sleep(0.1)
    assert not is_gone(pid)

    async def exited() -> bool:
        return is_gone(pid)

    await until(exited)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def audited(model: ModelConfig, scheduler: Any) -> Shard:
    """A shard that compares its books several times a second."""
    shard = Shard(spec_of(model, 9, audit_s=0.3))
    await shard.actor.load.remote()
    await until(lambda: known(scheduler, shard.ref))
    return shard


async def mended(shard: Shard, kind: str) -> bool:
    return bool((await shard.stats()).mended.get(kind))


async def test_what_no_door_waits_for_is_ended_by_the_audit(audited: Shard) -> None:
    request = assignment(audited.ref, max_tokens=LONG)
    await audited.assign(request)
    await until(audited.is_running)
    lost = (request.request.request_id,)
    await audited.actor.__ray_call__.remote(lambda shard: shard._doors.leave(lost))
    await until(lambda: mended(audited, "unowned"))
    await until(audited.is_empty)


async def test_a_door_is_told_of_what_the_engine_has_not(audited: Shard) -> None:
    def note(shard: Any) -> None:
        shard._doors.enter("haunted", "ghost", shard._loop.time())

    await audited.actor.__ray_call__.remote(note)
    await until(lambda: mended(audited, "forgotten"))
    (failed,) = (await audited.poll(0, door="haunted")).deltas
    assert isinstance(failed, RequestFailed)
    assert (failed.request_id, failed.kind) == ("ghost", "Displaced")


async def test_a_lease_that_nobody_knows_is_over_once_the_shard_has_reported_in_full(
    audited: Shard, scheduler: Any
) -> None:
    number = audited.ref.shard

    def lease(actor: Any) -> None:
        held = HeldRequest("ghost", 8, 8, 1)
        shard = actor._brain._books.leases._shards[number]
        actor._brain._books.leases._hold(shard, held, actor._clock())

    await scheduler.__ray_call__.remote(lease)
    assert "ghost" in await scheduler.leases_on.remote(audited.ref)
    await until(lambda: mended(audited, "unheld"))

    async def over() -> bool:
        return "ghost" not in await scheduler.leases_on.remote(audited.ref)

    await until(over)


async def test_what_a_door_has_dropped_is_ended_and_what_it_misses_is_told(audited: Shard) -> None:
    before = (await audited.stats()).tokens_sampled
    await audited.assign(assignment(audited.ref, max_tokens=LONG), door="forgetful")
    await until(lambda: has_sampled(audited, before))
    for _ in range(2):
        await audited.actor.wants.remote("forgetful", ("another",))
    assert await mended(audited, "unwanted")
    await until(audited.is_empty)
    assert not await mended(audited, "unknown")  # while the door has not fetched all there is


def folders(path: Path) -> list[Path]:
    return list(path.glob("shoal-pages-*/"))


async def test_a_shard_that_leaves_takes_its_files_with_it(
    model: ModelConfig, scheduler: Any, tmp_path: Path
) -> None:
    pytest.importorskip("lz4")
    kept = {"host_gib": 0.001, "folder": FolderConfig(path=str(tmp_path), gib=0.01)}
    cache = model.cache.model_copy(update=kept)
    shard = Shard(spec_of(model.model_copy(update={"cache": cache}), 5))
    await shard.actor.load.remote()
    assert len(folders(tmp_path)) == 1
    await shard.actor.drain.remote()
    assert folders(tmp_path) == []
    ray.kill(shard.actor)
