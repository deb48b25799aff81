"""A real fleet: what it brings up, what it brings back, and that it leaves nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import ray
from ray.exceptions import RayError

from actors.channel import Channels
from actors.creation import create_shard
from actors.fleet import Fleet
from actors.fleet_status import MemberStatus
from actors.fleet_timing import FleetTiming, timing_of
from actors.identity import Identity
from actors.lifecycle import Backoff, State
from actors.lives import Patience
from actors.shard_spec import ShardSpec
from cluster.batching_config import BatchingConfig
from cluster.config import ModelConfig, ResourcesConfig, ShoalConfig
from cluster.errors import Displaced, ModelNotFound, ShardLost, StepFailed
from cluster.fleet_config import FleetConfig
from cluster.messages import ShardRef
from cluster.scheduling_config import SchedulingConfig
from cluster.stats import SchedulerStats
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
    wedge_next_step,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUICK = FleetTiming(
    tick_s=0.1,
    backoff=Backoff(first_s=0.1, longest_s=0.5),
    patience=Patience(place_s=0.5, ping_every_s=0.1),
    shards=TIMING,
)


class Sea:
    """A fleet and its namespace."""

    def __init__(
        self,
        namespace: str,
        *models: ModelConfig,
        timing: FleetTiming | None = None,
        drain_s: float = 0.5,
    ) -> None:
        self.namespace = namespace
        self._timing = timing or QUICK
        self._drain_s = drain_s
        self.begin(*models)

    def begin(self, *models: ModelConfig) -> None:
        config = ShoalConfig(models=models, fleet=FleetConfig(drain_s=self._drain_s))
        self.fleet = Fleet(config, self.namespace, self._timing)
        self.fleet.start()

    async def succeed(self, *models: ModelConfig) -> None:
        """The owner goes, and another one comes."""
        await self.fleet.let_go()
        self.begin(*models)

    def settled(self) -> bool:
        """Whether every actor that is wanted is READY, and none else is there."""
        status = self.fleet.status()
        ready = [member for member in status.members if member.state is State.READY]
        return len(ready) == len(status.members) == 1 + sum(status.wanted.values())

    def actor(self, name: str) -> Any:
        return ray.get_actor(name, self.namespace)

    def member(self, name: str) -> MemberStatus:
        return next(one for one in self.fleet.status().members if one.name == name)

    async def says(self, words: str) -> bool:
        """Whether that is what last went wrong with the first shard."""
        return words in self.member("tiny/shard-0").message

    async def scheduler(self) -> SchedulerStats:
        stats: SchedulerStats = await self.actor("scheduler").stats.remote()
        return stats

    async def shards(self) -> tuple[ShardRef, ...]:
        """As the scheduler knows them, in the order of their names."""
        known = (await self.scheduler()).shards
        return tuple(sorted(known, key=lambda ref: ref.shard))

    async def knows(self, count: int) -> bool:
        """Whether all is ready, and the scheduler, if it lives, knows so many shards."""
        try:
            return self.settled() and len(await self.shards()) == count
        except (RayError, ValueError):
            return False

    async def has_replaced(self, before: ShardRef) -> bool:
        """Until that life is buried, it may report again, and be known once more."""
        return await self.knows(1) and before not in (known := await self.shards()) and bool(known)

    async def ask(self, shard: ShardRef, max_tokens: int = 8) -> list[int]:
        channels = Channels(self.namespace, "door")
        try:
            stream = channels.open(assignment(shard, max_tokens))
            return [token async for delta in stream for token in delta.tokens]
        finally:
            await channels.close()

    async def kill(self, name: str) -> None:
        os.kill(await pid_of(self.actor(name)), signal.SIGKILL)

    def names(self) -> list[str]:
        actors = ray.util.list_named_actors(all_namespaces=True)
        return sorted(one["name"] for one in actors if one["namespace"] == self.namespace)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with ray_session():
        yield tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_sea(folder: Path) -> AsyncIterator[Sea]:
    sea = Sea("fleet-tests", tiny_model(folder, resources=ResourcesConfig()))
    yield sea
    await sea.fleet.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def sea(module_sea: Sea) -> Sea:
    """One shard, ready and known to the scheduler, before each test."""
    module_sea.fleet.scale({"tiny": 1})
    await until(lambda: module_sea.knows(1))
    return module_sea


async def test_it_brings_up_a_scheduler_and_a_shard_that_answers(sea: Sea) -> None:
    (shard,) = await sea.shards()
    assert sea.names() == ["scheduler", "tiny/shard-0"]
    assert len(await sea.ask(shard)) == 8


async def test_scaling_keeps_the_shard_that_lives_and_both_serve(sea: Sea) -> None:
    (before,) = await sea.shards()
    pid = await pid_of(sea.actor("tiny/shard-0"))
    sea.fleet.scale({"tiny": 2})
    await until(lambda: sea.knows(2))
    first, second = await sea.shards()
    assert first == before
    assert await pid_of(sea.actor("tiny/shard-0")) == pid
    assert await sea.ask(first) == await sea.ask(second)
    assert await sea.actor("tiny/shard-0").__ray_call__.remote(repr) == "KVShard(tiny/0, cpu x1)"
    surplus = await pid_of(sea.actor("tiny/shard-1"))
    channels = Channels(sea.namespace, "door")
    stream = channels.open(assignment(second, max_tokens=1500))
    await anext(stream)
    sea.fleet.scale({"tiny": 1})
    with pytest.raises(Displaced, match="drained"):
        async for _ in stream:
            pass
    await channels.close()
    await until(lambda: sea.knows(1))

    async def exited() -> bool:
        return is_gone(surplus)

    await until(exited)
    assert await sea.shards() == (before,)
    assert sea.names() == ["scheduler", "tiny/shard-0"]


async def test_a_killed_shard_fails_its_streams_and_comes_back(sea: Sea) -> None:
    (before,) = await sea.shards()
    channels = Channels(sea.namespace, "door")
    stream = channels.open(assignment(before, max_tokens=1500))
    await anext(stream)
    await sea.kill("tiny/shard-0")
    with pytest.raises(ShardLost):
        async for _ in stream:
            pass
    await channels.close()

    async def forgotten() -> bool:
        return before not in await sea.shards()

    await until(forgotten)
    await until(lambda: sea.knows(1))
    (after,) = await sea.shards()
    assert len(await sea.ask(after)) == 8


async def test_a_shard_whose_step_fails_is_heard_before_it_is_buried(sea: Sea) -> None:
    (shard,) = await sea.shards()
    await sea.actor("tiny/shard-0").__ray_call__.remote(break_next_step)
    with pytest.raises(StepFailed, match="failed at a step"):
        await sea.ask(shard)

    await until(lambda: sea.has_replaced(shard))


async def test_a_killed_scheduler_comes_back_and_learns_of_the_shard_again(sea: Sea) -> None:
    (shard,) = await sea.shards()
    await sea.ask(shard)
    before = await sea.scheduler()
    await sea.kill("scheduler")

    async def noticed() -> bool:
        return sea.member("scheduler").losses == 1

    await until(noticed)
    await until(lambda: sea.knows(1))
    after = await sea.scheduler()
    assert after.epoch > before.epoch
    assert after.shards == (shard,)
    assert after.indexed_pages > 0


async def test_a_shard_that_is_unwanted_while_it_is_buried_is_gone_and_can_come_back(
    sea: Sea, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = await pid_of(sea.actor("scheduler"))
    os.kill(scheduler, signal.SIGSTOP)  # deaf to the news, which makes the burial a long one
    await sea.kill("tiny/shard-0")

    async def burying() -> bool:
        return "tiny/shard-0 is lost" in caplog.text

    await until(burying)
    sea.fleet.scale({"tiny": 0})

    async def stopping() -> bool:
        return sea.member("tiny/shard-0").state is State.STOPPING

    await until(stopping)
    os.kill(scheduler, signal.SIGCONT)
    await until(lambda: sea.knows(0))
    assert sea.names() == ["scheduler"]
    sea.fleet.scale({"tiny": 1})
    await until(lambda: sea.knows(1))


async def test_a_successor_goes_on_with_the_shards_it_finds(folder: Path) -> None:
    sea = Sea("successor-tests", tiny_model(folder, shards=2))
    await until(lambda: sea.knows(2))
    shards, epoch = await sea.shards(), (await sea.scheduler()).epoch
    channels = Channels(sea.namespace, "door")
    stream = channels.open(assignment(shards[0], max_tokens=1500))
    await anext(stream)
    await sea.succeed(tiny_model(folder, shards=2))
    await until(lambda: sea.knows(2))
    assert (await sea.shards(), (await sea.scheduler()).epoch) == (shards, epoch)
    assert len([token async for delta in stream for token in delta.tokens]) == 1499
    await channels.close()
    await sea.succeed(tiny_model(folder, shards=1))
    await until(lambda: sea.knows(1))
    assert await sea.shards() == shards[:1]
    await sea.fleet.stop()
    assert sea.names() == []


async def test_a_successor_replaces_what_is_outdated_once_its_own_is_ready(folder: Path) -> None:
    sea = Sea("outdated-tests", tiny_model(folder))
    await until(lambda: sea.knows(1))
    (before,), epoch = await sea.shards(), (await sea.scheduler()).epoch
    channels = Channels(sea.namespace, "door")
    stream = channels.open(assignment(before, max_tokens=1900))
    await anext(stream)
    await sea.succeed(tiny_model(folder, batching=BatchingConfig(max_num_seqs=32)))

    await until(lambda: sea.has_replaced(before))
    (after,) = await sea.shards()
    assert (before.shard, after.shard) == ("tiny/shard-0", "tiny/shard-1")
    assert (await sea.scheduler()).epoch == epoch
    assert len(await sea.ask(after)) == 8
    await channels.close()
    await sea.fleet.stop()
    assert sea.names() == []


async def test_a_leaving_shard_that_a_successor_finds_leaves(folder: Path) -> None:
    sea = Sea("leaving-tests", tiny_model(folder))
    await until(lambda: sea.knows(1))
    (before,) = await sea.shards()
    await sea.actor("tiny/shard-0").drain.remote()
    await sea.succeed(tiny_model(folder))

    await until(lambda: sea.has_replaced(before))
    await sea.fleet.stop()


async def test_a_shard_that_is_too_busy_to_say_what_it_is_is_not_given_up(folder: Path) -> None:
    brief = replace(QUICK, patience=replace(QUICK.patience, ping_s=1.0, load_ping_s=60.0))
    sea = Sea("mute-tests", tiny_model(folder), timing=brief)
    await until(lambda: sea.knows(1))
    (before,), pid = await sea.shards(), await pid_of(sea.actor("tiny/shard-0"))
    await sea.fleet.let_go()
    os.kill(pid, signal.SIGSTOP)  # as deaf as one that loads
    sea.begin(tiny_model(folder))

    async def found_mute() -> bool:
        states = {one.name: one.state for one in sea.fleet.status().members}
        return states.get("tiny/shard-0") is State.PENDING

    await until(found_mute)
    os.kill(pid, signal.SIGCONT)
    await until(lambda: sea.knows(1))
    assert await sea.shards() == (before,)
    await sea.fleet.stop()


async def test_an_outdated_shard_that_was_too_busy_to_say_so_serves_until_it_is_replaced(
    folder: Path,
) -> None:
    brief = replace(QUICK, patience=replace(QUICK.patience, ping_s=1.0, load_ping_s=60.0))
    sea = Sea("mute-outdated-tests", tiny_model(folder), timing=brief)
    await until(lambda: sea.knows(1))
    (before,), pid = await sea.shards(), await pid_of(sea.actor("tiny/shard-0"))
    await sea.fleet.let_go()
    os.kill(pid, signal.SIGSTOP)
    sea.begin(tiny_model(folder, batching=BatchingConfig(max_num_seqs=32)))

    async def found(state: State) -> bool:
        return ("tiny/shard-0", state) in [(m.name, m.state) for m in sea.fleet.status().members]

    await until(lambda: found(State.PENDING))
    os.kill(pid, signal.SIGCONT)
    await until(lambda: found(State.READY))
    assert len(await sea.ask(before)) == 8

    await until(lambda: sea.has_replaced(before))
    await sea.fleet.stop()


@pytest.mark.parametrize("up_to_date", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
async def test_a_shard_of_another_owner_that_bears_a_name_is_taken_over_if_it_is_up_to_date(
    folder: Path, up_to_date: bool
) -> None:
    sea = Sea(f"overlap-tests-{up_to_date}", tiny_model(folder))
    await until(lambda: sea.knows(1))
    identity: Identity = await sea.actor("tiny/shard-0").identity.remote()
    spec = ShardSpec(
        ShardRef("tiny/shard-1", "tiny", "tiny/shard-1", "of another"),
        tiny_model(folder),
        sea.namespace,
        threads=1,
        timing=TIMING,
        stamp=identity.stamp if up_to_date else "",
        tether_s=600.0,
    )
    stranger = create_shard(spec, cpus=0)
    await stranger.handle.load.remote()
    sea.fleet.scale({"tiny": 2})

    async def serves() -> bool:
        others = [ref.incarnation == "of another" for ref in await sea.shards()]
        return await sea.knows(2) and any(others) is up_to_date

    await until(serves)
    await sea.fleet.stop()


async def test_a_fleet_that_is_stopped_before_it_has_found_its_actors_leaves_none(
    folder: Path,
) -> None:
    sea = Sea("unfound-tests", tiny_model(folder))
    await until(lambda: sea.knows(1))
    await sea.succeed(tiny_model(folder))
    await sea.fleet.stop()
    assert sea.names() == []


async def test_a_shard_that_never_began_is_not_asked_to_finish_anything(folder: Path) -> None:
    asks = ResourcesConfig(cpus=64)
    sea = Sea("unbegun-tests", tiny_model(folder, resources=asks), drain_s=600.0)

    async def asked_for() -> bool:
        return "tiny/shard-0" in sea.names()

    await until(asked_for)
    sea.fleet.scale({"tiny": 0})
    await until(lambda: sea.knows(0))
    await sea.fleet.stop()


async def test_the_patience_of_the_fleet_is_that_of_the_configuration() -> None:
    timing = timing_of(SchedulingConfig(heartbeat_s=0.5, shard_timeout_s=4.0, step_timeout_s=60.0))
    patience = timing.patience
    assert (patience.ping_every_s, patience.ping_s, patience.step_s) == (0.5, 4.0, 60.0)
    assert timing.shards.poll_wait_s <= 1.0


async def test_a_shard_that_is_stopped_or_whose_step_never_ends_is_killed_and_replaced(
    folder: Path,
) -> None:
    strict = Patience(place_s=0.5, ping_every_s=0.1, ping_s=3.0, step_s=1.0)
    sea = Sea("wedge-tests", tiny_model(folder), timing=replace(QUICK, patience=strict))
    await until(lambda: sea.knows(1))
    (first,) = await sea.shards()
    pid = await pid_of(sea.actor("tiny/shard-0"))
    await sea.actor("tiny/shard-0").__ray_call__.remote(wedge_next_step)
    with pytest.raises(StepFailed, match="stuck"):
        await sea.ask(first)
    await until(lambda: sea.says("its step has not ended for 1 s"))
    await until(lambda: sea.knows(1))
    (second,) = await sea.shards()
    stopped = await pid_of(sea.actor("tiny/shard-0"))
    os.kill(stopped, signal.SIGSTOP)

    await until(lambda: sea.says("it did not answer for 3 s"))
    await until(lambda: sea.knows(1))
    (third,) = await sea.shards()
    assert len({first, second, third}) == 3
    assert len(await sea.ask(third)) == 8

    async def gone() -> bool:
        return is_gone(pid) and is_gone(stopped)

    await until(gone)
    await sea.fleet.stop()


async def test_a_model_that_is_not_configured_cannot_be_scaled(sea: Sea) -> None:
    with pytest.raises(ModelNotFound, match="tiny"):
        sea.fleet.scale({"tiny": 3, "huge": 1})
    assert sea.fleet.status().wanted == {"tiny": 1}


async def test_weights_that_cannot_be_had_are_reported_and_tried_again(
    folder: Path, tmp_path: Path
) -> None:
    sea = Sea("load-failure-tests", tiny_model(tmp_path / "nowhere"))

    async def gave_up_twice() -> bool:
        return any(member.losses >= 2 for member in sea.fleet.status().members)

    await until(gave_up_twice)
    assert "ModelUnavailable" in sea.member("tiny/shard-0").message
    assert "nowhere" in sea.member("tiny/shard-0").message
    assert sea.member("scheduler").state is State.READY
    await sea.fleet.stop()


async def test_a_shard_that_fits_nowhere_says_what_is_missing(folder: Path) -> None:
    asks = ResourcesConfig(cpus=64, custom={"submarine": 1})
    sea = Sea("unschedulable-tests", tiny_model(folder, resources=asks))

    async def started() -> bool:
        return len(sea.fleet.status().members) == 2

    async def explained() -> bool:
        return "Unschedulable" in sea.member("tiny/shard-0").message

    await until(started)
    await until(explained)
    shard = sea.member("tiny/shard-0")
    assert shard.state is State.PENDING
    assert "64 CPU" in shard.message
    assert "0 of 0 submarine" in shard.message
    await sea.fleet.stop()
    assert sea.names() == []


async def test_a_shard_that_loads_for_too_long_is_given_up(folder: Path) -> None:
    sea = Sea("slow-load-tests", tiny_model(folder, load_timeout_s=0.01))

    async def explained() -> bool:
        return any("had not loaded" in member.message for member in sea.fleet.status().members)

    await until(explained)
    await sea.fleet.stop()


async def test_stopping_leaves_no_actor_and_no_process(folder: Path) -> None:
    sea = Sea("stop-tests", tiny_model(folder, shards=2))
    await until(lambda: sea.knows(2))
    pids = [await pid_of(sea.actor(name)) for name in sea.names()]
    await sea.fleet.stop()
    assert sea.names() == []

    async def exited() -> bool:
        return all(map(is_gone, pids))

    assert len(pids) == 3
    await until(exited)
