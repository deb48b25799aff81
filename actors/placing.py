"""Which node each shard is to run on: the planner's rules over the nodes that Ray has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from actors.nodes import Node, living_nodes
from actors.sharing import Share
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

    It decides on nodes. Which GPU of its node a shard gets is Ray's to say, who counts them, and
    where the planned node is full, so is which node. `nodes` lists those that are there.
    """

    def __init__(
        self,
        models: Iterable[ModelConfig],
        nodes: Callable[[], Awaitable[Sequence[Node]]] = living_nodes,
        look: Look = lambda known: survey(known=known),
    ) -> None:
        self._models = {model.name: model for model in models}
        self._nodes = nodes
        self._look = look
        self._topology = Topology(())
        self._taken: dict[Shard, Placement] = {}
        self._noted: dict[Shard, str] = {}
        self._awaited: dict[Shard, str] = {}
        self._avoided: frozenset[str] = frozenset()
        self._looking = asyncio.Lock()

    async def find(self, model: str, index: int, share: Share) -> str | None:
        """The id of the node for a shard, whose place it then is until it leaves.

        None where the planner has no place for it: Ray may know better.
        """
        self.leave(model, index)
        node = await self._planned(model, index, share)
        if node is not None:
            self._awaited[model, index] = node
        return node

    async def _planned(self, model: str, index: int, share: Share) -> str | None:
        able = await self._able(self._models[model], share)
        if len(able) == 1:
            self._noted[model, index] = able[0]
            return able[0]
        topology = await self._survey(able)
        wish = _wish(self._models[model], share)
        self._recall(wish, topology)
        made = place(wish, index, topology, self._taken.values())
        logger.info("%s", *made.lines)
        for one in made.placements:
            self._taken[model, index] = one
        return made.placements[0].node if made.placements else None

    def note(self, model: str, index: int, node: str) -> None:
        """The shard is there, whoever put it there, and wherever it was to go."""
        self._awaited.pop((model, index), None)
        taken = self._taken.get((model, index))
        if taken is None or taken.node != node:
            self._taken.pop((model, index), None)
            self._noted[model, index] = node

    def on(self, nodes: frozenset[str]) -> list[Shard]:
        """The shards that are on these nodes, or on the way there."""
        homes = self._noted | {shard: place.node for shard, place in self._taken.items()}
        return [shard for shard, node in homes.items() if node in nodes]

    async def astray(self) -> list[Shard]:
        """The shards on the way to a node that is not there, so that Ray cannot begin them."""
        if not self._awaited:
            return []
        there = {node["NodeID"] for node in await self._nodes()}
        return [shard for shard, node in self._awaited.items() if node not in there]

    def avoid(self, nodes: frozenset[str]) -> None:
        """From now on no shard goes to these."""
        self._avoided = nodes

    def leave(self, model: str, index: int) -> None:
        """The shard is gone, and its place free."""
        self._taken.pop((model, index), None)
        self._noted.pop((model, index), None)
        self._awaited.pop((model, index), None)

    async def _able(self, model: ModelConfig, share: Share) -> list[str]:
        """The nodes whose Ray resources, were they all free, would do for a shard."""
        asked = {"CPU": share.cpus, "GPU": share.gpus, **model.resources.custom}
        there = await self._nodes()
        able = {node["NodeID"] for node in there if _offers(node["Resources"], asked)}
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
        tensor_parallel=max(model.tensor_parallel, int(share.gpus)),
        kinds=(Kind.GPU,) if share.gpus else (Kind.CPU,),
        arrange=model.resources.arrange,
        shards_per_device=int(1 / share.gpus) if 0.0 < share.gpus < 1.0 else 1,
    )
