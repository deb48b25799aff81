"""What it takes to move a sequence from one shard to another, and what to compute it again.

    python -m benchmarks.hand_over
    python -m benchmarks.hand_over --tokens 64,1024 --source /path/to/a/model

Two shards of the default model, one thread each, on this machine. A prompt is computed on the first
shard; then the second is asked for the same, once with the first as its source and once without.
Printed is the time until the first token. The first prompt of each shard is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from typing import Any

import ray

from actors.channel import Channels
from actors.creation import create_shard, new_incarnation
from actors.shard_spec import ShardSpec
from cluster.config import CacheConfig, ModelConfig, ResourcesConfig
from cluster.messages import Assignment, Lease, Reason, Request, Sampling, ShardRef, Stopping

NAMESPACE = "hand-over"
MODEL = "moved"
SPARE = 16


class Shard:
    """One life of a shard, and how it is asked."""

    def __init__(self, model: ModelConfig, index: int) -> None:
        name = f"{MODEL}/shard-{index}"
        self.ref = ShardRef(name, MODEL, name, new_incarnation())
        spec = ShardSpec(self.ref, model, NAMESPACE, threads=1, claims=NAMESPACE)
        self.actor: Any = create_shard(spec, cpus=0.0).handle

    async def first_token_s(
        self, channels: Channels, prompt: tuple[int, ...], salt: str, source: ShardRef | None
    ) -> float:
        name = new_incarnation()
        lease = Lease(name, 1, self.ref, 0, Reason(0.0, ()))
        sampling, stopping = Sampling(temperature=0.0), Stopping(max_tokens=1)
        request = Request(name, MODEL, "t", "P1", prompt, sampling, stopping)
        began = time.perf_counter()
        async for _ in channels.open(Assignment(lease, request, salt.encode(), source=source)):
            pass
        return time.perf_counter() - began

    async def bytes_received(self) -> int:
        received: int = (await self.actor.stats.remote()).hand_over.bytes_received
        return received


async def compare(model: ModelConfig, lengths: list[int]) -> None:
    source, target = Shard(model, 0), Shard(model, 1)
    await asyncio.gather(source.actor.load.remote(), target.actor.load.remote())
    channels, chance = Channels(NAMESPACE, "bench"), random.Random(0)
    print(f"{'tokens':>7} {'computed':>10} {'fetched':>10} {'MB':>8} {'MB/s':>7}")
    for number, length in enumerate([SPARE, *lengths]):
        prompt = tuple(chance.randrange(100, 10_000) for _ in range(length))
        await source.first_token_s(channels, prompt, f"{number}", None)
        before = await target.bytes_received()
        fetched_s = await target.first_token_s(channels, prompt, f"{number}", source.ref)
        moved = (await target.bytes_received() - before) / 1e6
        computed_s = await target.first_token_s(channels, prompt, f"again {number}", None)
        if number:
            speed = f"{moved / fetched_s:7.0f}" if moved else "  (rule)"
            print(f"{length:7} {computed_s:9.3f}s {fetched_s:9.3f}s {moved:8.1f} {speed}")
    await channels.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tokens", default="64,256,1024,4096", help="lengths of prompts")
    parser.add_argument("--source", default="default", help="as models.source")
    asked = parser.parse_args()
    lengths = [int(length) for length in asked.tokens.split(",")]
    model = ModelConfig(
        name=MODEL,
        source=asked.source,
        compile="off",
        cache=CacheConfig(num_blocks=4 * max(lengths) // 16 + 64),
        max_model_len=max(lengths) + SPARE,
        resources=ResourcesConfig(cpus=0, threads=1),
    )
    ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=2)
    try:
        asyncio.run(compare(model, lengths))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
