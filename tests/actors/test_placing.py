"""Shards are planned onto the nodes that could run them, and anew when a node is lost or added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from actors.lifecycle import Event
from actors.placing import Places
from actors.sharing import Share
from cluster.config import ModelConfig, ResourcesConfig
from cluster.topology import Topology
from tests.cluster.machines import recorded, renamed

CPU = Share(cpus=1.0, gpus=0.0, threads=4)
GPU = Share(cpus=1.0, gpus=1.0, threads=4)


def untold(event: Event | None, message: str) -> None:
    raise AssertionError(f"nobody waits here, yet: {message}")


class Sites:
    """A cluster of nodes that come and go, and the places of one model's shards on it."""

    def __init__(self, *names: str, **resources: Any) -> None:
        self.nodes = {name: {"CPU": 8.0} for name in names}
        self.surveyed: list[str] = []
        self.seen: Callable[[], None] | None = None
        self.machine = recorded("cpu-only")
        self.model = ModelConfig(name="m", resources=ResourcesConfig(**resources))
        self.places = Places([self.model], self._list, self._look)

    async def _list(self) -> list[dict[str, Any]]:
        return [{"NodeID": name, "Resources": resources} for name, resources in self.nodes.items()]

    async def _look(self, known: Topology) -> Topology:
        fresh = [name for name in sorted(self.nodes) if known.node(name) is None]
        self.surveyed += fresh
        seen = [known.node(name) or renamed(self.machine, name) for name in sorted(self.nodes)]
        if self.seen is not None:
            happens, self.seen = self.seen, None
            happens()
        return Topology(tuple(seen))

    async def find(self, index: int, share: Share = CPU) -> str | None:
        return (await self.places.find("m", index, share, untold)).node

    async def found(self, shards: int) -> list[str | None]:
        return [await self.find(index) for index in range(shards)]


async def test_shards_spread_over_the_nodes() -> None:
    assert await Sites("a", "b", "c").found(4) == ["a", "b", "c", "a"]


async def test_shards_are_packed_where_that_is_wished() -> None:
    assert await Sites("a", "b", arrange="pack").found(3) == ["a", "a", "a"]


async def test_where_one_node_could_run_it_nothing_has_to_be_surveyed() -> None:
    sites = Sites("a")

    assert await sites.found(1) == ["a"]
    assert sites.surveyed == []


async def test_what_came_while_there_was_one_node_is_known_to_be_there_later() -> None:
    sites = Sites("b")
    await sites.find(0)
    sites.nodes |= {"a": {"CPU": 8.0}, "c": {"CPU": 8.0}}

    assert [await sites.find(index) for index in (1, 2)] == ["a", "c"]


async def test_a_node_without_what_a_shard_asks_of_ray_gets_none() -> None:
    sites = Sites("a", "b", "c")
    sites.nodes["a"] = {"CPU": 0.0}

    assert await sites.found(2) == ["b", "c"]


async def test_the_shard_of_a_node_that_died_goes_to_the_rest_and_the_others_stay() -> None:
    sites = Sites("a", "b", "c")
    await sites.found(3)
    del sites.nodes["a"]
    sites.places.leave("m", 0)

    assert await sites.find(0) == "b"


async def test_a_node_that_was_added_gets_the_next_shard_and_alone_is_surveyed() -> None:
    sites = Sites("a", "b")
    await sites.found(2)
    sites.nodes["c"] = {"CPU": 8.0}

    assert await sites.find(2) == "c"
    assert sites.surveyed == ["a", "b", "c"]


async def test_a_shard_that_was_found_on_its_node_is_known_to_be_there() -> None:
    sites = Sites("a", "b")
    sites.places.note("m", 0, "a")

    assert await sites.find(1) == "b"


async def test_a_shard_that_ray_put_elsewhere_is_known_to_be_there() -> None:
    sites = Sites("a", "b", "c")
    assert await sites.found(2) == ["a", "b"]
    sites.places.note("m", 1, "c")

    assert await sites.find(2) == "b"


async def test_who_is_on_a_node_or_on_the_way_there_can_be_asked() -> None:
    sites = Sites("a", "b", "c")
    await sites.found(3)
    sites.places.note("m", 0, "b")

    assert sorted(sites.places.on(frozenset({"a", "b"}))) == [("m", 0), ("m", 1)]


async def test_who_waits_to_begin_on_a_node_that_is_gone_is_astray() -> None:
    sites = Sites("a", "b")
    await sites.found(3)
    sites.places.note("m", 0, "a")
    del sites.nodes["a"]

    assert await sites.places.astray() == [("m", 2)]


async def test_who_has_begun_or_left_is_not_astray() -> None:
    sites = Sites("a")
    await sites.found(2)
    sites.places.note("m", 0, "a")
    sites.places.leave("m", 1)
    sites.nodes.clear()

    assert await sites.places.astray() == []


async def test_who_has_a_slice_of_a_node_is_there_or_astray_as_any_other() -> None:
    sites = Sites("a", mig_profile="7g.40gb")
    sites.machine = recorded("mig-a100")
    site = await sites.places.find("m", 0, CPU, untold)
    sites.nodes.clear()

    assert sites.places.on(frozenset({"a"})) == [("m", 0)]
    assert await sites.places.astray() == [("m", 0)]
    sites.places.note("m", 0, "a", site.devices)
    assert sites.places.on(frozenset({"a"})) == [("m", 0)]
    assert await sites.places.astray() == []


async def test_a_node_that_is_to_go_gets_no_shard() -> None:
    sites = Sites("a", "b", "c")
    sites.places.avoid(frozenset({"a"}))

    assert await sites.found(3) == ["b", "c", "b"]


async def test_a_place_is_free_again_when_its_shard_leaves() -> None:
    sites = Sites("a", "b")
    await sites.found(2)
    sites.places.leave("m", 1)

    assert await sites.find(1) == "b"


async def test_a_node_whose_gpu_a_shard_left_is_looked_at_again_since_that_may_be_why() -> None:
    sites = Sites("a", "b")
    sites.machine = recorded("dgx-a100")
    sites.nodes = {name: {"CPU": 8.0, "GPU": 8.0} for name in sites.nodes}
    assert await sites.find(0, GPU) == "a"
    sites.places.leave("m", 0)
    sick = tuple(replace(gpu, defect="a bad row") for gpu in sites.machine.gpus)
    sites.machine = replace(sites.machine, gpus=sick)

    assert await sites.find(0, GPU) == "b"
    assert sites.surveyed == ["a", "b", "a"]


async def test_what_a_shard_leaves_while_somebody_looks_is_looked_at_again() -> None:
    sites = Sites("a", "b", "c")
    sites.machine = recorded("dgx-a100")
    sites.nodes = {name: {"CPU": 8.0, "GPU": 8.0} for name in sites.nodes}
    assert await sites.find(0, GPU) == "a"
    sites.seen = lambda: sites.places.leave("m", 0)
    sick = tuple(replace(gpu, defect="a bad row") for gpu in sites.machine.gpus)
    sites.machine = replace(sites.machine, gpus=sick)
    await sites.find(1, GPU)

    assert sites.surveyed == ["a", "b", "c", "a"]


@pytest.mark.parametrize(("memory_gib", "node"), [(30.0, "a"), (1000.0, None)])
async def test_no_place_has_less_memory_than_a_shard_needs(
    memory_gib: float, node: str | None
) -> None:
    sites = Sites("a", "b", memory_gib=memory_gib)
    sites.machine = recorded("dgx-a100")
    sites.nodes = {name: {"CPU": 8.0, "GPU": 8.0} for name in sites.nodes}

    assert await sites.find(0, GPU) == node


async def test_a_shard_without_a_place_by_the_plan_is_left_to_ray() -> None:
    sites = Sites("a", "b")  # of which the survey finds no GPU, though Ray counts some
    sites.nodes = {name: {"CPU": 8.0, "GPU": 1.0} for name in sites.nodes}

    assert await sites.find(0, GPU) is None
