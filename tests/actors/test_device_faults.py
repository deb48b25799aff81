"""A device fault ends the shard that computes on it: with its reason, and as its own decision."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest
import ray
from ray.exceptions import RayTaskError

import actors.shard
from actors.creation import create_shard, new_incarnation
from actors.engine.seat import LOOPBACK, Seat
from actors.engine_rank import EngineRank
from actors.shard_spec import ShardSpec
from cluster.errors import DeviceFault, ShardLost
from cluster.messages import ShardRef
from tests.actors.devices.fake_library import load
from tests.actors.living import TIMING, is_gone, pid_of, ray_session, tiny_llama, tiny_model, until
from tests.cluster.machines import recorded

pytestmark = pytest.mark.asyncio(loop_scope="module")

NODE = recorded("dgx-a100")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with ray_session():
        yield tiny_llama(tmp_path_factory.mktemp("tiny"))


async def shard_with_a_gpu(folder: Path) -> Any:
    """A shard to which Ray seems to have assigned a recorded GPU, though it computes on the CPU."""

    def install(_shard: Any) -> None:
        load(NODE)
        pytest.MonkeyPatch().setattr(actors.shard, "assigned_ids", lambda: ("0",))

    ref = ShardRef("tiny/shard-0", "tiny", "tiny/shard-0", new_incarnation())
    timing = replace(TIMING, device_s=0.05)
    claims = f"faults-{os.getpid()}"
    spec = ShardSpec(ref, tiny_model(folder), "faults", threads=1, timing=timing, claims=claims)
    handle = create_shard(spec, cpus=0.0).handle
    await handle.__ray_call__.remote(install)
    await handle.load.remote()
    return handle


async def test_a_gpu_that_falls_off_the_bus_ends_its_shard(folder: Path) -> None:
    shard = await shard_with_a_gpu(folder)
    pid, watch = await pid_of(shard), shard.watch.remote()

    def lose(_shard: Any) -> None:
        code = pynvml.NVML_ERROR_GPU_IS_LOST
        pynvml.nvmlLib.fail("nvmlDeviceGetTotalEccErrors", code, NODE.gpus[0].uuid)

    await shard.__ray_call__.remote(lose)
    with pytest.raises(RayTaskError) as caught:
        await watch
    assert isinstance(caught.value.cause, ShardLost)
    assert f"{NODE.gpus[0].uuid}: it has fallen off the bus" in caught.value.cause.message

    async def has_gone() -> bool:
        return is_gone(pid)

    await until(has_gone)
    ray.kill(shard)


async def test_a_gpu_of_another_rank_that_falls_off_the_bus_ends_that_rank(folder: Path) -> None:
    ref = ShardRef("tiny/shard-1", "tiny", "tiny/shard-1", new_incarnation())
    timing = replace(TIMING, device_s=0.05)
    model = tiny_model(folder, tensor_parallel=2)
    spec = ShardSpec(ref, model, "faults", threads=1, timing=timing, claims=f"rank-{os.getpid()}")
    with socket.create_server((LOOPBACK, 0)) as nobody:  # so it waits for rank 0 all its life
        actor: Any = ray.remote(EngineRank).options(num_cpus=0)
        rank = actor.remote(spec, Seat(1, 2, nobody.getsockname()[1]), ("0",))

        def install_a_sick_one(_rank: Any) -> None:
            # The survey that comes before does not ask for this.
            load(NODE).fail("nvmlDeviceRegisterEvents", pynvml.NVML_ERROR_GPU_IS_LOST)

        await rank.__ray_call__.remote(install_a_sick_one)
        with pytest.raises(RayTaskError) as caught:
            await rank.run.remote()
    ray.kill(rank)
    assert isinstance(caught.value.cause, DeviceFault)
