"""Real shards hand their sequences over: pages move, tokens stay, and nothing hangs on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import ray

from actors import hand_over
from actors.channel import Channels
from actors.channel_timing import ChannelTiming
from actors.creation import new_incarnation, shard_options
from actors.departure import Farewell
from actors.parcels import Layout, Parcel
from actors.shard import KVShard
from actors.shard_spec import ShardSpec
from actors.token_stream import TokenStream
from cluster.config import CacheConfig
from cluster.errors import Drained, FaultError
from cluster.failover import Transcript, attempt_id
from cluster.hand_over import Worth
from cluster.messages import Assignment, Lease, PageHash, Reason, Request, ShardRef
from cluster.stats import ShardStats
from tests.actors.living import (
    PROMPT,
    TIMING,
    assignment,
    ray_session,
    tiny_llama,
    tiny_model,
    until,
    wedge_next_step,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMESPACE = "hand-over-tests"
NEVER_S = 3600.0
PAGE_BYTES = 4 * 2 * 2 * (8 + 8) * 4
"""Tokens, layers, heads of keys and values, elements of each, bytes."""


class Spoiling(KVShard):
    """One byte of each parcel changes on its way."""

    async def pages(self, life: str, layout: Layout, hashes: tuple[PageHash, ...]) -> Parcel:
        parcel = await super().pages(life, layout, hashes)
        data = parcel.data.copy()
        data[1, 7] ^= 1
        return replace(parcel, data=data)


class Silent(KVShard):
    """It never answers who asks for pages."""

    async def pages(self, life: str, layout: Layout, hashes: tuple[PageHash, ...]) -> Parcel:
        await asyncio.Event().wait()
        return await super().pages(life, layout, hashes)


@dataclass(frozen=True)
class Shard:
    ref: ShardRef
    actor: Any

    async def stats(self) -> ShardStats:
        stats: ShardStats = await self.actor.stats.remote()
        return stats

    async def is_empty(self) -> bool:
        stats = await self.stats()
        return stats.running + stats.waiting + stats.used_pages + stats.hand_over.fetching == 0

    async def is_fetching(self) -> bool:
        return (await self.stats()).hand_over.fetching > 0

    async def looks(self) -> int:
        looks: int = await self.actor.__ray_call__.remote(lambda shard: shard._books.looks)
        return looks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with ray_session():
        yield tiny_llama(tmp_path_factory.mktemp("tiny"))


async def start(kind: type[KVShard], folder: Path, index: int, **model: Any) -> Shard:
    """A loaded shard without a scheduler: it serves whoever comes with a lease."""
    name = f"tiny/shard-{index}"
    ref = ShardRef(name, "tiny", name, new_incarnation())
    timing = replace(TIMING, audit_s=0.1)
    spec = ShardSpec(ref, tiny_model(folder, **model), NAMESPACE, threads=1, timing=timing)
    actor: Any = ray.remote(kind).options(**shard_options(spec, cpus=0.0))
    shard = Shard(ref, actor.remote(spec))
    await shard.actor.load.remote()
    return shard


def computes_slowly(shard: Any) -> None:
    """As far as it has measured: 20 tokens a second, so that it fetches whatever it can, and no
    link that hung. And it asks for few pages at once, so that a sequence takes several parcels."""
    shard._intake._worth = Worth()
    shard._intake._worth.prefilled(4000, 200.0)
    hand_over.PARCEL_BYTES = 3 * PAGE_BYTES


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def living(folder: Path) -> Shard:
    return await start(KVShard, folder, 0)


@pytest_asyncio.fixture(loop_scope="module")
async def target(living: Shard) -> AsyncIterator[Shard]:
    """The module's shard to which requests come; its books balance between two tests."""
    await living.actor.__ray_call__.remote(computes_slowly)
    yield living
    await until(living.is_empty)
    await living.actor.verify.remote()
    assert (await living.stats()).mended == {}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def silent(folder: Path) -> Shard:
    return await start(Silent, folder, 1)


@pytest_asyncio.fixture(loop_scope="module")
async def channels() -> AsyncIterator[Channels]:
    channels = Channels(NAMESPACE, "door", ChannelTiming(idle_s=0.3, patience_s=2.0))
    yield channels
    await channels.close()


class Moving:
    """One request on its way from shard to shard, as its door sees it."""

    def __init__(self, channels: Channels, request: Request, salt: bytes) -> None:
        self._channels = channels
        self._asked = Assignment(_lease(request.request_id), request, salt)
        self._transcript = Transcript(request.choices)
        self._attempts = 0
        self.said: dict[int, tuple[int, ...]] = dict.fromkeys(range(request.choices), ())

    def open(self, shard: ShardRef, source: ShardRef | None = None) -> TokenStream:
        name = attempt_id(self._asked.request.request_id, self._attempts)
        emitted = self._transcript.emitted() if self._attempts else ()
        self._attempts += 1
        asked = replace(
            self._asked,
            lease=replace(_lease(name), shard=shard),
            request=replace(self._asked.request, request_id=name),
            emitted=emitted,
            source=source,
        )
        return self._channels.open(asked)

    async def read(self, stream: TokenStream, until_said: int | None = None) -> None:
        """To the end, or until every choice has so many tokens."""
        async for delta in stream:
            if self._transcript.enter(delta):
                self.said[delta.choice] += delta.tokens
            if until_said is not None and min(map(len, self.said.values())) >= until_said:
                return


def _lease(name: str) -> Lease:
    return Lease(name, 1, ShardRef("", "", "", ""), 0, Reason(0.0, ()))


def asked_of(shard: ShardRef, prompt: tuple[int, ...], tokens: int, choices: int = 1) -> Request:
    return replace(assignment(shard, tokens, choices).request, prompt=prompt)


async def undisturbed(channels: Channels, shard: Shard, request: Request) -> dict[int, Any]:
    """Under another salt, so that it leaves nothing that could be found."""
    alone = Moving(channels, replace(request, request_id=new_incarnation()), b"undisturbed")
    await alone.read(alone.open(shard.ref))
    return alone.said


async def begun(channels: Channels, shard: Shard, tokens: int = 60) -> Moving:
    """It has run there for a while, and has left its pages."""
    moving = Moving(channels, asked_of(shard.ref, PROMPT, tokens), new_incarnation().encode())
    stream = moving.open(shard.ref)
    await moving.read(stream, until_said=20)
    stream.cancel()
    await until(shard.is_empty)
    return moving


async def test_what_a_leaving_shard_lets_go_goes_on_elsewhere_from_its_pages(
    channels: Channels, target: Shard, folder: Path
) -> None:
    source = await start(KVShard, folder, 2)
    wanted = [
        asked_of(source.ref, PROMPT[:length], 400, choices)
        for length, choices in ((9, 1), (23, 2), (37, 1), (37, 1))
    ]
    due = [await undisturbed(channels, source, one) for one in wanted]
    moving = [Moving(channels, one, f"salt {n}".encode()) for n, one in enumerate(wanted)]
    streams = [one.open(source.ref) for one in moving]
    starts = zip(moving, streams, strict=True)
    await asyncio.gather(*(one.read(stream, until_said=30) for one, stream in starts))
    leaving = asyncio.ensure_future(source.actor.drain.remote(hand_over_s=NEVER_S))
    for one, stream in zip(moving, streams, strict=True):
        with pytest.raises(Drained):
            await one.read(stream)
        assert not leaving.done()
    assert not await source.is_fetching()
    before = await target.stats()
    await asyncio.gather(*(one.read(one.open(target.ref, source.ref)) for one in moving))
    assert [one.said for one in moving] == due
    await leaving
    after, given = await target.stats(), (await source.stats()).hand_over.pages_given
    received = after.hand_over.pages_received - before.hand_over.pages_received
    assert received == given >= sum((length + 29) // 4 for length in (9, 23, 37, 37))
    assert after.hand_over.pages_refused == before.hand_over.pages_refused
    # What the followers of two choices find is not counted.
    assert after.prefix_hit_tokens - before.prefix_hit_tokens >= sum((9, 23, 37, 37)) + 4 * 20
    await source.actor.drain.remote(hand_over_s=NEVER_S)  # with nothing here it is over at once
    await source.actor.verify.remote()


async def test_pages_that_changed_on_their_way_are_computed_again(
    channels: Channels, target: Shard, folder: Path
) -> None:
    source = await start(Spoiling, folder, 3)
    moving = await begun(channels, source)
    before = (await target.stats()).hand_over
    await moving.read(moving.open(target.ref, source.ref))
    assert moving.said == await undisturbed(channels, target, asked_of(target.ref, PROMPT, 60))
    after = (await target.stats()).hand_over
    assert after.pages_received == before.pages_received + 1  # the one before that which changed
    assert after.pages_refused > before.pages_refused

    # And what nobody comes for is waited for no longer than was said.
    stream = channels.open(assignment(source.ref, max_tokens=1500))
    await anext(stream)
    drained = asyncio.ensure_future(source.actor.drain.remote(hand_over_s=0.2))
    with pytest.raises(Drained):
        async for _ in stream:
            pass
    await drained


async def test_a_slow_source_holds_up_nobody_else_and_no_audit_doubts_who_waits_for_it(
    channels: Channels, target: Shard, silent: Shard
) -> None:
    moving = await begun(channels, silent)
    reading = asyncio.create_task(moving.read(moving.open(target.ref, silent.ref)))
    await until(target.is_fetching)
    looks = await target.looks()

    async def looked() -> bool:
        return await target.looks() >= looks + 4

    await until(looked)
    assert await target.is_fetching()
    due = await undisturbed(channels, target, asked_of(target.ref, PROMPT, 60))
    await reading  # until fetching has taken longer than it is worth
    assert moving.said == due


async def test_a_cancel_ends_a_fetch_and_the_request(
    channels: Channels, target: Shard, silent: Shard
) -> None:
    moving = await begun(channels, silent)
    stream = moving.open(target.ref, silent.ref)
    await until(target.is_fetching)
    sampled = (await target.stats()).tokens_sampled
    stream.cancel()
    await until(target.is_empty)
    assert (await target.stats()).tokens_sampled == sampled


async def test_a_door_that_disappears_ends_what_is_fetched_for_it(
    channels: Channels, target: Shard, silent: Shard
) -> None:
    wanted = Assignment(
        replace(_lease("gone"), shard=target.ref),
        replace(asked_of(target.ref, PROMPT, 60), request_id="gone"),
        b"gone",
        source=silent.ref,
    )
    await target.actor.assign.remote("a door that never asks", (wanted,))
    await until(target.is_fetching)
    await until(target.is_empty)


async def test_a_source_that_dies_while_it_is_asked_costs_time_and_nothing_else(
    channels: Channels, target: Shard, silent: Shard
) -> None:
    due = await undisturbed(channels, target, asked_of(target.ref, PROMPT, 60))
    moving = await begun(channels, silent)
    reading = asyncio.create_task(moving.read(moving.open(target.ref, silent.ref)))
    await until(target.is_fetching)
    ray.kill(silent.actor)
    await reading
    assert moving.said == due
    gone = Moving(channels, asked_of(target.ref, PROMPT, 60), b"gone source")
    await gone.read(gone.open(target.ref, silent.ref))
    assert gone.said == due


async def test_a_stuck_shard_and_one_without_findable_pages_have_nothing_to_hand_over(
    channels: Channels, folder: Path
) -> None:
    stuck = await start(KVShard, folder, 4)
    cache = CacheConfig(block_size=4, num_blocks=1024, prefix_caching=False)
    nameless = await start(KVShard, folder, 5, cache=cache)
    for shard, is_stuck in ((stuck, True), (nameless, False)):
        stream = channels.open(assignment(shard.ref, max_tokens=1500))
        await anext(stream)
        if is_stuck:
            await shard.actor.__ray_call__.remote(wedge_next_step)
        drained = asyncio.ensure_future(shard.actor.drain.remote(is_stuck, 0.0, NEVER_S))
        with pytest.raises(FaultError) as told:
            async for _ in stream:
                pass
        assert not isinstance(told.value, Drained)
        await drained


async def test_a_farewell_is_over_once_all_have_come_or_the_time_is_up() -> None:
    farewell, left = Farewell(), asyncio.get_running_loop().create_future()
    over = asyncio.create_task(farewell.over(left, NEVER_S))
    farewell.settle(["b~3"])  # before it is known what is left
    left.set_result(frozenset({"a", "b~2"}))
    await asyncio.sleep(0)
    assert not over.done()
    farewell.settle(["a~1"])
    await over
    await farewell.over(_settled(frozenset({"c"})), within_s=0.0)


def _settled(left: frozenset[str]) -> asyncio.Future[frozenset[str]]:
    future = asyncio.get_running_loop().create_future()
    future.set_result(left)
    return future
