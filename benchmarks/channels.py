"""What it costs to bring tokens from a shard to a door: the ways Ray offers, side by side.

    python -m benchmarks.channels [--streams 32 64] [--rounds 3] [--seconds 4]

A paced shard makes one token for each stream every 10 ms on its own thread, as an engine does.
Latency is from there to the reader of the stream, in another process on the same machine, whose
monotonic clock is the same. Rounds alternate between the ways, so that what else the machine does
falls on all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from itertools import product
from statistics import median, quantiles
from threading import Thread
from typing import Any

import ray

from actors.channel import Channels
from actors.creation import MAX_CONCURRENCY
from actors.doors import Doors
from actors.token_stream import TokenStream
from benchmarks.report import markdown_row
from cluster.messages import (
    Assignment,
    DeltaBatch,
    Lease,
    Reason,
    Request,
    Sampling,
    ShardRef,
    Stopping,
    TokenDelta,
)

STEP_S = 0.010
NAMESPACE = "channels"
REF = ShardRef("shard", "paced", "shard", "life")


class PacedShard:
    """A shard's face to its doors, before an engine that only tells the time (ns, as a token)."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._doors = Doors(timeout_s=10.0, max_backlog=1_000_000)
        self._ids: list[str] = []
        self._queues: dict[str, asyncio.Queue[tuple[TokenDelta, ...]]] = {}
        Thread(target=self._pace, daemon=True).start()

    async def cpu_s(self) -> float:
        return time.process_time()

    async def assign(self, door: str, assignments: tuple[Assignment, ...]) -> None:
        for one in assignments:
            self._doors.enter(door, one.request.request_id, self._loop.time())
            self._ids.append(one.request.request_id)

    async def cancel(self, door: str, cancels: tuple[tuple[str, int | None], ...]) -> None:
        self._doors.leave(request_id for request_id, _ in cancels)
        self._ids.clear()

    async def deltas(self, door: str, acknowledged: int) -> DeltaBatch:
        return await self._doors.poll(door, acknowledged, wait_s=2.0)

    async def stream_all(self, request_ids: tuple[str, ...]) -> AsyncIterator[Any]:
        """One generator for all requests of a door: an item a step."""
        queue: asyncio.Queue[tuple[TokenDelta, ...]] = asyncio.Queue()
        self._queues |= dict.fromkeys(request_ids, queue)
        self._ids += request_ids
        while self._ids:
            yield await queue.get()

    async def stream_one(self, request_id: str) -> AsyncIterator[Any]:
        """One generator for each request: an item a token."""
        async for item in self.stream_all((request_id,)):
            yield item

    async def end(self) -> None:
        self._ids.clear()
        for queue in self._queues.values():
            queue.put_nowait(())
        self._queues.clear()

    def _pace(self) -> None:
        due = time.monotonic()
        while True:
            due = max(due + STEP_S, time.monotonic() - STEP_S)
            time.sleep(max(0.0, due - time.monotonic()))
            now = time.monotonic_ns()
            deltas = tuple(TokenDelta(one, 0, (now,)) for one in tuple(self._ids))
            self._loop.call_soon_threadsafe(self._deliver, deltas)

    def _deliver(self, deltas: tuple[TokenDelta, ...]) -> None:
        self._doors.deliver(deltas)
        items: dict[asyncio.Queue[tuple[TokenDelta, ...]], list[TokenDelta]] = defaultdict(list)
        for delta in deltas:
            if delta.request_id in self._queues:
                items[self._queues[delta.request_id]].append(delta)
        for queue, item in items.items():
            queue.put_nowait(tuple(item))


class Reader:
    """The door's process: opens streams in one of the ways and notes how late each token came."""

    def __init__(self, shard: Any) -> None:
        self._shard = shard
        self._late_ms: list[float] = []

    async def cpu_s(self) -> float:
        return time.process_time()

    async def read(self, way: str, streams: int, seconds: float) -> list[float]:
        self._late_ms = []
        ids = tuple(f"{way}-{time.monotonic_ns()}-{i}" for i in range(streams))
        try:
            async with asyncio.timeout(seconds):
                await WAYS[way](self, ids)
        except TimeoutError:
            await self._shard.end.remote()
        return self._late_ms

    def note(self, delta: TokenDelta) -> None:
        self._late_ms.append((time.monotonic_ns() - delta.tokens[0]) / 1e6)

    async def by_long_poll(self, ids: tuple[str, ...]) -> None:
        channels = Channels(NAMESPACE, "door")
        try:
            streams = [channels.open(assignment(one)) for one in ids]
            await asyncio.gather(*map(self._drain, streams))
        finally:
            await channels.close()

    async def by_one_generator(self, ids: tuple[str, ...]) -> None:
        inboxes: dict[str, asyncio.Queue[TokenDelta]] = {one: asyncio.Queue() for one in ids}
        drains = [asyncio.create_task(self._drain_queue(inbox)) for inbox in inboxes.values()]
        try:
            call = self._shard.stream_all.options(num_returns="streaming")
            async for item in call.remote(ids):
                for delta in await item:
                    inboxes[delta.request_id].put_nowait(delta)
        finally:
            for drain in drains:
                drain.cancel()

    async def by_generator_each(self, ids: tuple[str, ...]) -> None:
        await asyncio.gather(*map(self._drain_generator, ids))

    async def _drain(self, stream: TokenStream) -> None:
        async for delta in stream:
            self.note(delta)

    async def _drain_queue(self, inbox: asyncio.Queue[TokenDelta]) -> None:
        while True:
            self.note(await inbox.get())

    async def _drain_generator(self, request_id: str) -> None:
        call = self._shard.stream_one.options(num_returns="streaming")
        async for item in call.remote(request_id):
            for delta in await item:
                self.note(delta)


WAYS: dict[str, Callable[[Reader, tuple[str, ...]], Awaitable[None]]] = {
    "long poll": Reader.by_long_poll,
    "one generator": Reader.by_one_generator,
    "generator each": Reader.by_generator_each,
}


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement; CPU in percent of one core."""

    tokens_per_s: float
    p50_ms: float
    p99_ms: float
    shard_cpu: float
    door_cpu: float


def assignment(request_id: str) -> Assignment:
    request = Request(request_id, "paced", "t", "P1", (1,), Sampling(), Stopping(1_000_000))
    return Assignment(Lease(request_id, 1, REF, 0, Reason(0.0, ())), request, b"")


async def measure(shard: Any, reader: Any, way: str, streams: int, seconds: float) -> Run:
    sides = (shard, reader)
    before = [await side.cpu_s.remote() for side in sides]
    began = time.monotonic()
    late = await reader.read.remote(way, streams, seconds)
    took = time.monotonic() - began
    after = [await side.cpu_s.remote() for side in sides]
    shard_cpu, door_cpu = (100 * (b - a) / took for a, b in zip(before, after, strict=True))
    cuts = quantiles(late, n=100)
    return Run(len(late) / seconds, cuts[49], cuts[98], shard_cpu, door_cpu)


async def compare(streams: list[int], rounds: int, seconds: float) -> None:
    options: dict[str, Any] = {"num_cpus": 0, "max_concurrency": MAX_CONCURRENCY}
    shard = ray.remote(PacedShard).options(name="shard", namespace=NAMESPACE, **options).remote()
    reader = ray.remote(Reader).options(**options).remote(shard)
    cases = list(product(streams, WAYS))
    for count, way in cases:
        await measure(shard, reader, way, count, 1.0)
    runs: dict[tuple[int, str], list[Run]] = {case: [] for case in cases}
    for _, (count, way) in product(range(rounds), cases):
        runs[count, way].append(await measure(shard, reader, way, count, seconds))
    print(f"step {STEP_S * 1e3:g} ms, {rounds} rounds of {seconds:g} s, median (least - most)")
    heads = ("streams", "way", "tok/s", "p50 ms", "p99 ms", "shard CPU %", "door CPU %")
    print(markdown_row(*heads))
    print(markdown_row(*["---"] * len(heads)))
    for (count, way), results in runs.items():
        fields = (spread(results, name) for name in Run.__slots__)
        print(markdown_row(str(count), way, *fields), flush=True)


def spread(results: list[Run], name: str) -> str:
    values = [getattr(one, name) for one in results]
    digits = 0 if min(values) > 20 else 1
    low, mid, high = (f"{x:.{digits}f}" for x in (min(values), median(values), max(values)))
    return f"{mid} ({low} - {high})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--streams", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    try:
        asyncio.run(compare(given.streams, given.rounds, given.seconds))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
