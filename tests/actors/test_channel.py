"""The door's end of a real shard's stream: each token once, and no task left behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import ray
from ray.exceptions import ActorUnavailableError

from actors.channel import Channels
from actors.channel_timing import ChannelTiming
from actors.creation import new_incarnation, shard_options
from actors.shard import KVShard
from actors.shard_spec import ShardSpec
from actors.token_stream import TokenStream
from cluster.errors import ContextTooLong, Displaced, ShardLost, StaleLease
from cluster.messages import Assignment, DeltaBatch, FinishReason, ShardRef
from tests.actors.living import (
    TIMING,
    assignment,
    pid_of,
    ray_session,
    tiny_llama,
    tiny_model,
    until,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMESPACE = "channel-tests"
QUICK = ChannelTiming(idle_s=0.3, patience_s=2.0, retry_s=0.001)
LONG = 1500


class LossyShard(KVShard):
    """A shard behind a line that loses every other answer of the data plane."""

    answers = 0

    async def deltas(self, door: str, acknowledged: int) -> DeltaBatch:
        batch = await super().deltas(door, acknowledged)
        self._lose_every_other()
        return batch

    async def assign(self, door: str, assignments: tuple[Assignment, ...]) -> None:
        await super().assign(door, assignments)
        self._lose_every_other()

    def _lose_every_other(self) -> None:
        self.answers += 1
        if self.answers % 2:
            raise ActorUnavailableError("the answer was lost", None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with ray_session():
        yield tiny_llama(tmp_path_factory.mktemp("tiny"))


async def start(kind: type[KVShard], folder: Path, index: int) -> tuple[ShardRef, Any]:
    """A loaded shard without a scheduler: it serves whoever comes with a lease."""
    name = f"tiny/shard-{index}"
    ref = ShardRef(name, "tiny", name, new_incarnation())
    spec = ShardSpec(ref, tiny_model(folder), NAMESPACE, threads=1, timing=TIMING)
    actor: Any = ray.remote(kind).options(**shard_options(spec, cpus=0.0))
    handle = actor.remote(spec)
    await handle.load.remote()
    return ref, handle


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shard(folder: Path) -> tuple[ShardRef, Any]:
    return await start(KVShard, folder, 0)


@pytest_asyncio.fixture(loop_scope="module")
async def channels() -> AsyncIterator[Channels]:
    """Closed at the end of the test, when no task of theirs may be left."""
    before = other_tasks()
    channels = Channels(NAMESPACE, "door", QUICK)
    yield channels
    await channels.close()
    assert len(channels) == 0
    assert other_tasks() <= before


def other_tasks() -> set[asyncio.Task[Any]]:
    return {one for one in asyncio.all_tasks() if one is not asyncio.current_task()}


async def tokens_of(stream: TokenStream) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = {}
    async for delta in stream:
        tokens.setdefault(delta.choice, []).extend(delta.tokens)
    return tokens


async def is_empty(handle: Any) -> bool:
    stats = await handle.stats.remote()
    return bool(stats.running + stats.waiting + stats.used_pages == 0)


async def test_64_streams_share_one_channel(
    channels: Channels, shard: tuple[ShardRef, Any]
) -> None:
    ref, handle = shard
    streams = [channels.open(assignment(ref, max_tokens=20)) for _ in range(64)]
    answers = await asyncio.gather(*map(tokens_of, streams))
    assert len(answers[0][0]) == 20
    assert answers == [answers[0]] * 64
    assert len(channels) == 1
    await handle.verify.remote()


async def test_each_choice_is_streamed_to_its_end(
    channels: Channels, shard: tuple[ShardRef, Any]
) -> None:
    stream = channels.open(assignment(shard[0], max_tokens=9, choices=3))
    answers = await tokens_of(stream)
    assert sorted(answers) == [0, 1, 2]
    assert {len(tokens) for tokens in answers.values()} == {9}


async def test_lost_answers_neither_lose_nor_repeat_a_token(
    channels: Channels, folder: Path, shard: tuple[ShardRef, Any]
) -> None:
    lossy, handle = await start(LossyShard, folder, 1)
    requests = [channels.open(assignment(ref, max_tokens=60)) for ref in (shard[0], lossy, lossy)]
    exact, first, second = await asyncio.gather(*map(tokens_of, requests))
    assert first == second == exact
    ray.kill(handle)


async def test_a_cancelled_stream_ends_and_frees_its_pages(
    channels: Channels, shard: tuple[ShardRef, Any]
) -> None:
    stream = channels.open(assignment(shard[0], max_tokens=LONG))
    await anext(stream)
    assert stream.cancel()
    assert stream.cancel()
    await tokens_of(stream)
    await until(lambda: is_empty(shard[1]))


async def test_a_stream_cancelled_in_the_same_breath_is_never_sent(
    channels: Channels, shard: tuple[ShardRef, Any]
) -> None:
    stream = channels.open(assignment(shard[0]))
    assert not stream.cancel()
    assert await tokens_of(stream) == {}


async def test_a_cancelled_choice_ends_while_another_goes_on(
    channels: Channels, shard: tuple[ShardRef, Any]
) -> None:
    stream = channels.open(assignment(shard[0], max_tokens=200, choices=2))
    await anext(stream)
    stream.cancel(choice=0)
    ends = [(delta.choice, delta.finish) async for delta in stream if delta.finish]
    assert ends == [(1, FinishReason.LENGTH)]


async def test_closing_cancels_what_is_open(shard: tuple[ShardRef, Any]) -> None:
    channels = Channels(NAMESPACE, "door", QUICK)
    stream = channels.open(assignment(shard[0], max_tokens=LONG))
    await anext(stream)
    await channels.close()
    await until(lambda: is_empty(shard[1]))


async def test_an_idle_channel_closes_and_the_next_request_opens_another(
    channels: Channels, shard: tuple[ShardRef, Any]
) -> None:
    await tokens_of(channels.open(assignment(shard[0])))

    async def closed() -> bool:
        return len(channels) == 0

    await until(closed)
    assert await tokens_of(channels.open(assignment(shard[0])))


async def test_a_stale_lease_is_raised_as_what_it_is(
    channels: Channels, shard: tuple[ShardRef, Any]
) -> None:
    stream = channels.open(assignment(replace(shard[0], incarnation="earlier")))
    with pytest.raises(StaleLease):
        await tokens_of(stream)


async def test_a_refusal_of_the_engine_is_raised_as_what_it_is(
    channels: Channels, shard: tuple[ShardRef, Any]
) -> None:
    good = assignment(shard[0])
    long = replace(good, request=replace(good.request, prompt=(5,) * 2048))
    with pytest.raises(ContextTooLong):
        await tokens_of(channels.open(long))


async def test_a_request_for_a_shard_that_does_not_exist_is_not_risked(channels: Channels) -> None:
    nobody = ShardRef("tiny/shard-99", "tiny", "tiny/shard-99", "life")
    with pytest.raises(Displaced):
        await tokens_of(channels.open(assignment(nobody)))


async def test_a_killed_shard_ends_every_stream_with_an_error(
    channels: Channels, folder: Path
) -> None:
    ref, handle = await start(KVShard, folder, 2)
    streams = [channels.open(assignment(ref, max_tokens=LONG)) for _ in range(3)]
    await asyncio.gather(*map(anext, streams))
    os.kill(await pid_of(handle), signal.SIGKILL)
    errors = await asyncio.gather(*map(tokens_of, streams), return_exceptions=True)
    assert [type(error) for error in errors] == [ShardLost] * 3
    with pytest.raises(Displaced, match="a moment ago"):
        await tokens_of(channels.open(assignment(ref)))


async def test_a_shard_that_answers_no_poll_is_lost_and_what_it_says_later_is_not_heard(
    folder: Path,
) -> None:
    ref, handle = await start(KVShard, folder, 3)
    channels = Channels(NAMESPACE, "door", replace(QUICK, silence_s=1.0))
    stream = channels.open(assignment(ref, max_tokens=LONG))
    await anext(stream)
    pid = await pid_of(handle)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ShardLost, match="lost"):
        await tokens_of(stream)
    os.kill(pid, signal.SIGCONT)
    await until(lambda: is_empty(handle))
    assert await tokens_of(stream) == {}
    await channels.close()


async def test_what_is_held_back_leaves_when_it_is_let_go(
    channels: Channels, shard: tuple[ShardRef, Any]
) -> None:
    held = channels.open(assignment(shard[0]), held=True)
    await tokens_of(channels.open(assignment(shard[0])))
    assert await is_empty(shard[1])
    held.send()
    assert await tokens_of(held)


async def test_what_is_held_back_is_never_sent_once_it_is_cancelled(
    channels: Channels, shard: tuple[ShardRef, Any]
) -> None:
    held = channels.open(assignment(shard[0]), held=True)
    await tokens_of(channels.open(assignment(shard[0])))
    assert not held.cancel()
    assert await tokens_of(held) == {}


async def test_neither_what_is_held_back_nor_a_suspect_has_been_at_a_shard_that_does_not_answer(
    folder: Path,
) -> None:
    ref, handle = await start(KVShard, folder, 6)
    channels = Channels(NAMESPACE, "door", replace(QUICK, silence_s=1.0))
    os.kill(await pid_of(handle), signal.SIGSTOP)
    held = channels.open(assignment(ref), held=True)
    suspect = channels.open(replace(assignment(ref), suspect=True))
    errors = await asyncio.gather(tokens_of(held), tokens_of(suspect), return_exceptions=True)
    assert [type(error) for error in errors] == [Displaced] * 2
    ray.kill(handle)
    await channels.close()


async def test_a_drained_shard_hands_every_request_back_and_takes_no_more(
    channels: Channels, folder: Path
) -> None:
    ref, handle = await start(KVShard, folder, 4)
    streams = [channels.open(assignment(ref, max_tokens=LONG)) for _ in range(3)]
    await asyncio.gather(*map(anext, streams))
    answers = [asyncio.create_task(tokens_of(stream)) for stream in streams]
    await handle.drain.remote()
    streams.append(channels.open(assignment(ref)))
    answers.append(asyncio.create_task(tokens_of(streams[-1])))
    errors = await asyncio.gather(*answers, return_exceptions=True)
    assert [type(error) for error in errors] == [Displaced] * 4


async def test_a_drained_shard_finishes_what_ends_within_the_limit(
    channels: Channels, folder: Path
) -> None:
    ref, handle = await start(KVShard, folder, 5)
    short, long = (channels.open(assignment(ref, max_tokens=n)) for n in (8, LONG))
    await asyncio.gather(anext(short), anext(long))
    answers = [asyncio.create_task(tokens_of(stream)) for stream in (short, long)]
    await handle.drain.remote(limit_s=0.5)
    kept, moved = await asyncio.gather(*answers, return_exceptions=True)
    assert isinstance(kept, dict)
    assert type(moved) is Displaced
