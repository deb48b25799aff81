"""A real fleet whose only model may sleep: what wakes it, and that it then sleeps again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from actors.scheduler_client import SchedulerClient
from cluster.autoscaling_config import AutoscalingConfig
from cluster.config import ModelConfig
from cluster.messages import Lease, Submission
from tests.actors.living import ray_session, tiny_llama, tiny_model, until
from tests.actors.test_fleet import Sea

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sea(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sea]:
    with ray_session():
        folder = tiny_llama(tmp_path_factory.mktemp("tiny"))
        sea = Sea("sleeping-tests", sleeper(folder, shards=0, idle_s=1.5))
        yield sea
        await sea.fleet.stop()


def sleeper(folder: Path, shards: int, idle_s: float) -> ModelConfig:
    bounds = AutoscalingConfig(min_shards=0, max_shards=1, idle_s=idle_s)
    return tiny_model(folder, shards=shards, autoscaling=bounds)


async def test_a_request_wakes_the_model_is_served_and_the_model_sleeps_again(sea: Sea) -> None:
    await until(lambda: sea.knows(0))
    router = SchedulerClient("router", sea.namespace, silence_s=10.0, audit_s=30.0)
    wish = Submission("a", "router", "tiny", "t", "P1", 37, 8, 1, (), wakes=True)
    lease = await router.place(wish)
    assert isinstance(lease, Lease)
    assert len(await sea.ask(lease.shard)) == 8

    await router.withdraw("a")
    await until(lambda: sea.knows(0))
    assert sea.names() == ["scheduler"]
    await router.close()


async def test_a_successor_lets_it_sleep(sea: Sea, tmp_path: Path) -> None:
    await until(lambda: sea.knows(0))
    await sea.succeed(sleeper(tmp_path, shards=1, idle_s=600.0))
    await until(lambda: sea.knows(0))
    assert sea.fleet.status().wanted == {"tiny": 0}
