"""Who is on a node that goes, or on the way to one that is gone, is replaced; nobody else is."""

from __future__ import annotations

from typing import Any

from actors.evacuation import Evacuation
from tests.actors.test_placing import Sites


class Watch:
    """An evacuation over sites of which some are drained, and whom it had replaced."""

    def __init__(self, sites: Sites, *drained: str) -> None:
        self.outdated: list[str] = []
        self.evacuation = Evacuation(sites.places, self.outdated.append, lambda: frozenset(drained))


class Restless(Sites):
    """The first shard leaves just as somebody asks for the nodes."""

    restless = False

    async def _list(self) -> list[dict[str, Any]]:
        if self.restless:
            self.places.leave("m", 0)
        return await super()._list()


async def test_the_shards_of_a_drained_node_are_replaced_and_no_other_goes_there() -> None:
    sites = Sites("a", "b")
    await sites.found(2)
    watch = Watch(sites, "a")
    await watch.evacuation.look()

    assert watch.outdated == ["m/shard-0"]
    assert await sites.find(2) == "b"


async def test_a_shard_that_waits_for_a_node_that_died_is_planned_anew() -> None:
    sites = Sites("a", "b")
    await sites.found(2)
    sites.places.note("m", 1, "b")
    del sites.nodes["a"], sites.nodes["b"]
    watch = Watch(sites)
    await watch.evacuation.look()

    assert watch.outdated == ["m/shard-0"]


async def test_who_is_gone_by_the_time_the_nodes_are_known_is_not_replaced() -> None:
    sites = Restless("a", "b")
    await sites.found(2)
    sites.restless = True
    watch = Watch(sites, "a", "b")
    await watch.evacuation.look()

    assert watch.outdated == ["m/shard-1"]


async def test_where_no_node_goes_nobody_is_replaced() -> None:
    sites = Sites("a", "b")
    await sites.found(2)
    watch = Watch(sites)
    await watch.evacuation.look()

    assert watch.outdated == []
