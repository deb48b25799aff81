"""Which node each shard is to run on: the planner's rules over the nodes that Ray has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import ray

from actors.lives import Listener
from actors.sharing import Share
from actors.slicing import Site, Slices
from actors.survey import survey
from cluster.config import ModelConfig
from cluster.placement import Kind, Placement, Wish, place
from cluster.topology import Topology

GIB = 2**30

Shard = tuple[str, int]
"""A model, and which of its shards."""

Look = Callable[[Topology], Awaitable[Topology]]
"""Surveys the cluster, where what is known already need not be asked again."""

logger = logging.getLogger(__name__)


class Places:
    """The places of the fleet's shards, by the planner, as far as it is asked.

    It decides on nodes. Which GPU of its node a shard gets is Ray's to say, who counts them; of
    `slices`, which are given out here, the book is their own. `nodes` lists Ray's nodes as
    `ray.nodes` does, and may block.
    """

    def __init__(
        self,
        models: Iterable[ModelConfig],
        nodes: Callable[[], list[dict[str, Any]]] = ray.nodes,
        look: Look = lambda known: survey(known=known),
        slices: Slices | None = None,
    ) -> None:
        self._models = {model.name: model for model in models}
        self._nodes = nodes
        self._look = look
        self._slices = slices or Slices(self._models.values())
        self._topology = Topology(())
        self._taken: dict[Shard, Placement] = {}
        self._noted: dict[Shard, str] = {}
        self._avoided: frozenset[str] = frozenset()
        self._looking = asyncio.Lock()

    async def find(self, model: str, index: int, share: Share, tell: Listener) -> Site:
        """A place for a shard, which is its own until it leaves.

        No node where the planner has no place for it: Ray may know better. A slice is waited for,
        and `tell` hears why.
        """
        self.leave(model, index)
        if self._models[model].resources.mig_profile is not None:
            return await self._slices.find(model, index, share, tell)
        return Site(await self._node_for(model, index, share))

    async def _node_for(self, model: str, index: int, share: Share) -> str | None:
        able = await self._able(self._models[model], share)
        if len(able) == 1:
            self.note(model, index, able[0])
            return able[0]
        topology = await self._survey(able)
        wish = _wish(self._models[model], share)
        self._recall(wish, topology)
        made = place(wish, index, topology, self._taken.values())
        logger.info("%s", *made.lines)
        for one in made.placements:
            self._taken[model, index] = one
        return made.placements[0].node if made.placements else None

    def note(self, model: str, index: int, node: str, devices: tuple[str, ...] = ()) -> None:
        """The shard is there, whoever put it there, and has these slices, if any."""
        if devices:
            self._slices.note(model, index, node, devices)
        else:
            self._noted[model, index] = node

    def avoid(self, nodes: frozenset[str]) -> None:
        """From now on no shard goes to these."""
        self._avoided = nodes
        self._slices.avoid(nodes)

    def leave(self, model: str, index: int) -> None:
        """The shard is gone, and its place free. A GPU may be why, so it is looked at again."""
        self._slices.leave(model, index)
        there = self._taken.pop((model, index), None)
        self._noted.pop((model, index), None)
        if there is not None and there.devices:
            others = (node for node in self._topology.nodes if node.name != there.node)
            self._topology = Topology(tuple(others))

    async def _able(self, model: ModelConfig, share: Share) -> list[str]:
        """The living nodes whose Ray resources, were they all free, would do for a shard."""
        asked = {"CPU": share.cpus, "GPU": share.gpus, **model.resources.custom}
        living = [node for node in await asyncio.to_thread(self._nodes) if node["Alive"]]
        able = {node["NodeID"] for node in living if _offers(node["Resources"], asked)}
        return sorted(able - self._avoided)

    async def _survey(self, able: list[str]) -> Topology:
        if able:
            async with self._looking:
                self._topology = await self._look(self._topology)
        return Topology(tuple(node for node in self._topology.nodes if node.name in able))

    def _recall(self, wish: Wish, topology: Topology) -> None:
        """Shards that came to their node without the planner get a place there by it."""
        for (model, index), name in list(self._noted.items()):
            node = topology.node(name)
            if model == wish.model and node is not None:
                del self._noted[model, index]
                made = place(wish, index, Topology((node,)), self._taken.values())
                for one in made.placements:
                    self._taken[model, index] = one


def _offers(resources: Mapping[str, Any], asked: Mapping[str, float]) -> bool:
    return all(resources.get(name, 0.0) >= amount for name, amount in asked.items())


def _wish(model: ModelConfig, share: Share) -> Wish:
    """In the planner's terms, of a model whose shards get such a share."""
    memory_gib = model.resources.memory_gib or 0.0
    return Wish(
        model.name,
        shards=1,
        memory_bytes=int(memory_gib * GIB),
        tensor_parallel=max(1, int(share.gpus)),
        kinds=(Kind.GPU,) if share.gpus else (Kind.CPU,),
        arrange=model.resources.arrange,
        shards_per_device=int(1 / share.gpus) if 0.0 < share.gpus < 1.0 else 1,
    )
