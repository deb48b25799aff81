"""A fleet that finds two shards on one slice keeps the first."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import ray

from actors.adoption import Found
from actors.fleet import Fleet
from actors.identity import Identity
from actors.naming import shard_name
from cluster.config import ModelConfig, ResourcesConfig, ShoalConfig

MODEL = ModelConfig(name="m", shards=2, resources=ResourcesConfig(mig_profile="1g.5gb"))
NOBODY = None
"""In the place of a handle: their lives are let go before anybody calls them."""


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would start itself to say which code this is."""
    context = SimpleNamespace(get_runtime_env_string=lambda: "{}")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)


async def outdated_of(*devices: str) -> list[bool]:
    """Shards on these slices, found by a new fleet one by one: whether each is to be replaced."""
    fleet = Fleet(ShoalConfig(models=(MODEL,)), "tests")
    stamp = fleet._shipyard.stamp("m")
    for index, device in enumerate(devices):
        identity = Identity(stamp, node="node", devices=(device,))
        fleet._adopt(Found(shard_name("m", index), NOBODY, identity))
    await fleet.let_go()
    return [member.stamp != stamp for member in fleet._members.values()]


async def test_of_two_shards_on_one_slice_the_second_is_outdated() -> None:
    assert await outdated_of("MIG-1", "MIG-1") == [False, True]


async def test_shards_on_slices_of_their_own_are_up_to_date() -> None:
    assert await outdated_of("MIG-1", "MIG-2") == [False, False]
