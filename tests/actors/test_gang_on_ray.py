"""A shard of two ranks on Ray: it serves as any other, and the death of one rank ends it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import ray
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from actors.creation import create_shard, new_incarnation
from actors.identity import Identity
from actors.outbox import Delta
from actors.shard_spec import ShardSpec
from cluster.errors import Displaced, ShardLost, StepFailed, UnsupportedModel
from cluster.messages import DeltaBatch, RequestFailed, ShardRef, TokenDelta
from tests.actors.living import (
    PROMPT,
    TIMING,
    assignment,
    is_gone,
    pid_of,
    ray_session,
    tiny_llama,
    tiny_model,
    until,
)
from tests.actors.test_fleet import Sea

NAMESPACE = "gang-tests"
BOOKS = f"gang-tests-{os.getpid()}"
DOOR = "door"
INDEXES = count()

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    with ray_session():
        yield


def spec_of(folder: Path) -> ShardSpec:
    name = f"tiny/shard-{next(INDEXES)}"
    ref = ShardRef(name, "tiny", name, new_incarnation())
    model = tiny_model(folder, tensor_parallel=2)
    return ShardSpec(ref, model, NAMESPACE, threads=1, timing=TIMING, claims=BOOKS)


@pytest_asyncio.fixture(loop_scope="module")
async def shard(folder: Path) -> Any:
    """Its handle, once it is loaded."""
    handle = create_shard(spec_of(folder), cpus=0.0).handle
    await handle.load.remote()
    return handle


async def follower_of(shard: Any) -> int:
    """The process of its second rank."""
    (handle,) = await shard.__ray_call__.remote(lambda shard: shard._followers._handles)
    return await pid_of(handle)


async def end(shard: Any) -> None:
    follower = await follower_of(shard)
    ray.kill(shard)
    await until(lambda: has_gone(follower))


def break_forward(_rank: Any) -> None:
    """Make this rank's next step raise what a broken device would."""
    from actors.engine import lockstep

    def burn(*_: Any) -> None:
        raise RuntimeError("the device is on fire")

    vars(lockstep)["lay_out"] = burn


async def has_gone(pid: int) -> bool:
    return is_gone(pid)


async def replaced(sea: Sea, before: ShardRef) -> bool:
    found = await sea.shards() if await sea.knows(1) else ()
    return len(found) == 1 and before not in found


async def read(shard: Any, acknowledged: int = 0) -> list[Delta]:
    """All deltas of the one door, until one of them ends a request."""
    deltas: list[Delta] = []
    while not deltas or (isinstance(deltas[-1], TokenDelta) and deltas[-1].finish is None):
        batch: DeltaBatch = await shard.deltas.remote(DOOR, acknowledged)
        acknowledged = batch.number
        deltas += batch.deltas
    return deltas


async def assign(shard: Any, max_tokens: int) -> None:
    identity: Identity = await shard.identity.remote()
    assert identity.shard is not None
    await shard.assign.remote(DOOR, (assignment(identity.shard, max_tokens),))


async def test_it_serves_what_transformers_generates(shard: Any, folder: Path) -> None:
    await assign(shard, max_tokens=16)
    deltas = [delta for delta in await read(shard) if isinstance(delta, TokenDelta)]
    tokens = [token for delta in deltas for token in delta.tokens]
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = whole.generate(torch.tensor([PROMPT]), max_new_tokens=16, do_sample=False)
    assert tokens == expected[0, len(PROMPT) :].tolist()
    await shard.verify.remote()
    await end(shard)


async def test_the_death_of_an_idle_follower_is_the_death_of_the_shard(shard: Any) -> None:
    watching = asyncio.ensure_future(shard.watch.remote())
    os.kill(await follower_of(shard), signal.SIGKILL)
    with pytest.raises(ShardLost, match="rank 1 of the shard died"):
        await watching


async def test_in_the_middle_of_a_step_nobody_is_to_blame(shard: Any) -> None:
    """Requests go on elsewhere; none of them counts as one of which a shard has died."""
    await assign(shard, max_tokens=1500)
    os.kill(await follower_of(shard), signal.SIGKILL)
    last = (await read(shard))[-1]
    assert isinstance(last, RequestFailed)
    assert last.kind == Displaced.__name__


async def test_the_fault_of_a_follower_is_blamed_on_who_is_in_the_step(shard: Any) -> None:
    (handle,) = await shard.__ray_call__.remote(lambda shard: shard._followers._handles)
    await handle.__ray_call__.remote(break_forward)
    await assign(shard, max_tokens=8)
    last = (await read(shard))[-1]
    assert isinstance(last, RequestFailed)
    assert last.kind == StepFailed.__name__


async def test_a_drained_shard_has_let_its_followers_go(shard: Any) -> None:
    follower = await follower_of(shard)
    await shard.drain.remote()
    await until(lambda: has_gone(follower))
    await shard.ping.remote()
    ray.kill(shard)


async def test_followers_start_with_as_many_threads_as_the_shard_was_last_told(
    folder: Path,
) -> None:
    shard = create_shard(spec_of(folder), cpus=0.0).handle
    await shard.use_threads.remote(2)
    await shard.load.remote()
    (handle,) = await shard.__ray_call__.remote(lambda shard: shard._followers._handles)
    assert await handle.__ray_call__.remote(lambda rank: rank._threads.wanted) == 2
    await end(shard)


async def test_the_fleet_replaces_a_shard_that_lost_a_rank(folder: Path) -> None:
    sea = Sea("gang-fleet-tests", tiny_model(folder, tensor_parallel=2))
    await until(lambda: sea.knows(1))
    (before,) = await sea.shards()
    os.kill(await follower_of(sea.actor(before.actor)), signal.SIGKILL)
    await until(lambda: replaced(sea, before))
    (after,) = await sea.shards()
    assert len(await sea.ask(after)) == 8
    await sea.fleet.stop()


async def test_a_follower_ends_with_rank_0(shard: Any) -> None:
    follower = await follower_of(shard)
    os.kill(await pid_of(shard), signal.SIGKILL)
    await until(lambda: has_gone(follower))


async def test_a_model_that_cannot_be_split_is_refused_as_it_loads(tmp_path: Path) -> None:
    GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2)).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    handle = create_shard(spec_of(tmp_path), cpus=0.0).handle
    with pytest.raises(UnsupportedModel, match="GPT2LMHeadModel"):
        await handle.load.remote()
    await end(handle)
