"""Where each shard is to run: the planner's rules over the nodes that Ray has, and their slices."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ray

from actors.lifecycle import Backoff, Event
from actors.lives import Listener
from actors.sharing import Share
from actors.survey import survey
from cluster.config import ModelConfig
from cluster.placement import Kind, Placement, Plan, Rank, Wish, place
from cluster.topology import Topology

GIB = 2**30

Shard = tuple[str, int]
"""A model, and which of its shards."""

Look = Callable[[Topology], Awaitable[Topology]]
"""Surveys the cluster, where what is known already need not be asked again."""

Carve = Callable[[Plan], Awaitable[tuple[str, ...]]]
"""Makes the recuts of a plan; says what was refused."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Site:
    """Where a shard is to begin: the id of a node, None to leave it to Ray, and its slices there,
    by UUID."""

    node: str | None
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Seeker:
    """A shard that waits for a slice."""

    wish: Wish
    index: int
    share: Share


class Places:
    """The places of the fleet's shards, by the planner, as far as it is asked.

    Of whole GPUs it decides on the node: which one a shard gets there is Ray's to say, who counts
    them. Slices it gives out itself, by UUID; `carve` makes those that are missing, where it may.
    `nodes` lists Ray's nodes as `ray.nodes` does, and may block.
    """

    def __init__(
        self,
        models: Iterable[ModelConfig],
        nodes: Callable[[], list[dict[str, Any]]] = ray.nodes,
        look: Look = lambda known: survey(known=known),
        carve: Carve | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self._models = {model.name: model for model in models}
        self._nodes = nodes
        self._look = look
        self._carve = carve
        self._backoff = backoff or Backoff()
        self._topology = Topology(())
        self._taken: dict[Shard, Placement] = {}
        self._noted: dict[Shard, str] = {}
        self._avoided: frozenset[str] = frozenset()
        self._seekers: dict[Shard, Seeker] = {}
        self._left = asyncio.Event()
        self._looking = asyncio.Lock()
        self._seating = asyncio.Lock()

    async def find(self, model: str, index: int, share: Share, tell: Listener) -> Site:
        """A place for a shard, which is its own until it leaves.

        Where the planner has none it is left to Ray, who may know better. But a slice is waited
        for, and `tell` hears what is missing.
        """
        self.leave(model, index)
        wish = _wish(self._models[model], share)
        if wish.profile is not None:
            return await self._find_slice(Seeker(wish, index, share), tell)
        able = self._able(model, share, await self._living())
        if len(able) == 1:
            self.note(model, index, able[0])
            return Site(able[0])
        topology = await self._survey(able)
        self._recall(wish, topology)
        return Site(self._take(place(wish, index, topology, self._taken.values())).node)

    def note(self, model: str, index: int, node: str, devices: tuple[str, ...] = ()) -> None:
        """The shard is there, whoever put it there, and on these slices if on any."""
        if not devices:
            self._noted[model, index] = node
            return
        ranks = tuple(Rank(device, None) for device in devices)
        there = Placement(model, index, None, node, Kind.SLICE, ranks, memory_bytes=0)
        self._taken[model, index] = there

    def avoid(self, nodes: frozenset[str]) -> None:
        """From now on no shard goes to these."""
        self._avoided = nodes

    def leave(self, model: str, index: int) -> None:
        """The shard is gone, and its place free. What it computed on may be why, so its node has to
        be surveyed again."""
        there = self._taken.pop((model, index), None)
        self._noted.pop((model, index), None)
        if there is not None and there.devices:
            self._forget({there.node})
            self._left.set()

    async def _find_slice(self, seeker: Seeker, tell: Listener) -> Site:
        shard, tries = (seeker.wish.model, seeker.index), 1
        self._seekers[shard] = seeker
        try:
            while True:
                async with self._seating:
                    self._left.clear()
                    event, obstacle = await self._seat(seeker)
                if not obstacle:
                    return _site(self._taken[shard])
                tell(event, obstacle)
                tries += 1
                await self._changed(self._backoff.delay(tries))
        finally:
            del self._seekers[shard]

    async def _seat(self, seeker: Seeker) -> tuple[Event | None, str]:
        """Give it a slice, cut for it if need be. What is in the way: who has a place has to leave
        it (CRAMPED), or a cut was refused."""
        living = await self._living()
        made = await self._planned(seeker, living)
        if made.missing and self._carve is not None:
            cuts = await self._cuts_for(seeker, living)
            refused = await self._carve(cuts) if cuts.recuts else ()
            self._forget({recut.node for recut in cuts.recuts})
            if refused:
                return None, "; ".join(refused)
            made = await self._planned(seeker, living)
        self._take(made)
        return Event.CRAMPED, "; ".join(missing.reason for missing in made.missing)

    async def _planned(self, seeker: Seeker, living: list[dict[str, Any]]) -> Plan:
        able = self._able(seeker.wish.model, seeker.share, living)
        return place(seeker.wish, seeker.index, await self._survey(able), self._occupied())

    async def _cuts_for(self, seeker: Seeker, living: list[dict[str, Any]]) -> Plan:
        """How to come by a slice for it, where no slice is given up that others will get."""
        every, taken = await self._survey([node["NodeID"] for node in living]), self._occupied()
        for other in self._seekers.values():
            if other is not seeker:
                there = _among(every, self._able(other.wish.model, other.share, living))
                taken += place(other.wish, other.index, there, taken).placements
        there = _among(every, self._able(seeker.wish.model, seeker.share, living))
        cuts = place(seeker.wish, seeker.index, there, taken, manage_mig=True)
        logger.info("%s", "; ".join(cuts.lines))
        return cuts

    def _occupied(self) -> list[Placement]:
        return list(self._taken.values())

    def _take(self, made: Plan) -> Site:
        """Enter the place that was found, if any."""
        logger.info("%s", "; ".join(made.lines))
        for one in made.placements:
            self._taken[one.model, one.index] = one
            return _site(one)
        return Site(None)

    async def _changed(self, within_s: float) -> None:
        """Until somebody left a slice, or a while has passed, in which all may have changed."""
        try:
            async with asyncio.timeout(within_s):
                await self._left.wait()
        except TimeoutError:
            self._topology = Topology(())

    async def _living(self) -> list[dict[str, Any]]:
        return [node for node in await asyncio.to_thread(self._nodes) if node["Alive"]]

    def _able(self, model: str, share: Share, living: list[dict[str, Any]]) -> list[str]:
        """The living nodes whose Ray resources, were they all free, would do for a shard."""
        custom = self._models[model].resources.custom
        asked = {"CPU": share.cpus, "GPU": share.gpus, **custom}
        able = {node["NodeID"] for node in living if _offers(node["Resources"], asked)}
        return sorted(able - self._avoided)

    async def _survey(self, able: Collection[str]) -> Topology:
        if able:
            async with self._looking:
                self._topology = await self._look(self._topology)
        return _among(self._topology, able)

    def _forget(self, nodes: set[str]) -> None:
        """They may have changed, and are surveyed again when they are next needed."""
        kept = tuple(node for node in self._topology.nodes if node.name not in nodes)
        self._topology = Topology(kept)

    def _recall(self, wish: Wish, topology: Topology) -> None:
        """Shards that came to their node without the planner get a place there by it."""
        for (model, index), name in list(self._noted.items()):
            node = topology.node(name)
            if model == wish.model and node is not None:
                del self._noted[model, index]
                made = place(wish, index, Topology((node,)), self._taken.values())
                for one in made.placements:
                    self._taken[model, index] = one


def _among(topology: Topology, names: Collection[str]) -> Topology:
    return Topology(tuple(node for node in topology.nodes if node.name in names))


def _offers(resources: Mapping[str, Any], asked: Mapping[str, float]) -> bool:
    return all(resources.get(name, 0.0) >= amount for name, amount in asked.items())


def _site(placement: Placement) -> Site:
    """Which GPU of its node a shard gets is Ray's to say, which slice is ours."""
    own = placement.devices if placement.kind is Kind.SLICE else ()
    return Site(placement.node, own)


def _wish(model: ModelConfig, share: Share) -> Wish:
    """In the planner's terms, of a model whose shards get such a share."""
    memory_gib, profile = model.resources.memory_gib or 0.0, model.resources.mig_profile
    return Wish(
        model.name,
        shards=1,
        memory_bytes=int(memory_gib * GIB),
        tensor_parallel=max(1, int(share.gpus)),
        kinds=(Kind.SLICE,) if profile else (Kind.GPU,) if share.gpus else (Kind.CPU,),
        profile=profile,
        arrange=model.resources.arrange,
        shards_per_device=int(1 / share.gpus) if 0.0 < share.gpus < 1.0 else 1,
    )
