"""Which node each shard is to run on: the planner's rules over the nodes that Ray has."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from actors.lives import Listener
from actors.nodes import Node, living_nodes, offers
from actors.outlook import Look, Outlook, look_again
from actors.sharing import Share
from actors.slice_book import Shard, Site
from actors.slicing import GIB, Slices
from cluster.config import ModelConfig
from cluster.placement import Kind, Placement, Wish, place
from cluster.topology import Topology

logger = logging.getLogger(__name__)


class Places:
    """The places of the fleet's shards, by the planner, as far as it is asked.

    It decides on nodes. Which GPU of its node a shard gets is Ray's to say, who counts them, and
    where the planned node is full, so is which node; of `slices`, which are given out here, the
    book is their own. `nodes` lists those that are there.
    """

    def __init__(
        self,
        models: Iterable[ModelConfig],
        nodes: Callable[[], Awaitable[Sequence[Node]]] = living_nodes,
        look: Look = look_again,
        slices: Slices | None = None,
    ) -> None:
        self._models = {model.name: model for model in models}
        self._nodes = nodes
        self._outlook = Outlook(look)
        self._slices = slices or Slices(self._models.values(), nodes=nodes, look=look)
        self._taken: dict[Shard, Placement] = {}
        self._noted: dict[Shard, str] = {}
        self._awaited: dict[Shard, str] = {}
        self._avoided: frozenset[str] = frozenset()

    async def find(self, model: str, index: int, share: Share, tell: Listener) -> Site:
        """A place for a shard, which is its own until it leaves.

        No node where the planner has no place for it: Ray may know better. A slice is waited for,
        and `tell` hears why.
        """
        self.leave(model, index)
        site = await self._site(model, index, share, tell)
        if site.node is not None:
            self._awaited[model, index] = site.node
        return site

    async def _site(self, model: str, index: int, share: Share, tell: Listener) -> Site:
        if self._models[model].resources.mig_profile is not None:
            return await self._slices.find(model, index, share, tell)
        return Site(await self._planned(model, index, share))

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

    def note(
        self, model: str, index: int, node: str, devices: tuple[str, ...] = ()
    ) -> tuple[Shard, ...]:
        """The shard is there, whoever put it there, wherever it was to go, and has these slices, if
        any. Who has to go for that, as `Slices.note` says."""
        self._awaited.pop((model, index), None)
        rivals = self._slices.note(model, index, node, devices)
        taken = self._taken.get((model, index))
        if not devices and (taken is None or taken.node != node):
            self._taken.pop((model, index), None)
            self._noted[model, index] = node
        return rivals

    def expect(self, model: str, index: int) -> None:
        """The shard lives, but has not said yet where; until it is noted, or leaves, no slice is
        given out, since it may have that one."""
        self._slices.expect(model, index)

    def on(self, nodes: frozenset[str]) -> list[Shard]:
        """The shards that are on these nodes, or on the way there."""
        planned = {**self._taken, **self._slices.taken}
        homes = self._noted | {shard: place.node for shard, place in planned.items()}
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
        self._slices.avoid(nodes)

    def leave(self, model: str, index: int) -> None:
        """The shard is gone, and its place free. A GPU may be why, so it is looked at again."""
        self._slices.leave(model, index)
        there = self._taken.pop((model, index), None)
        self._noted.pop((model, index), None)
        self._awaited.pop((model, index), None)
        if there is not None and there.devices:
            self._outlook.forget({there.node})

    async def _able(self, model: ModelConfig, share: Share) -> list[str]:
        """The nodes whose Ray resources, were they all free, would do for a shard."""
        asked = {"CPU": share.cpus, "GPU": share.gpus, **model.resources.custom}
        able = {node["NodeID"] for node in await self._nodes() if offers(node, asked)}
        return sorted(able - self._avoided)

    async def _survey(self, able: list[str]) -> Topology:
        """Those nodes, of which it takes none to look at none."""
        return (await self._outlook.renew()).among(able) if able else Topology(())

    def _recall(self, wish: Wish, topology: Topology) -> None:
        """Shards that came to their node without the planner get a place there by it."""
        for (model, index), name in list(self._noted.items()):
            node = topology.node(name)
            if model == wish.model and node is not None:
                del self._noted[model, index]
                made = place(wish, index, Topology((node,)), self._taken.values())
                for one in made.placements:
                    self._taken[model, index] = one


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
