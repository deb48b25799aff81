"""Which MIG slice each shard gets: the planner's rules over the slices there are, or can be cut."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from actors.lifecycle import Backoff, Event
from actors.lives import Listener
from actors.nodes import Node, living_nodes, offers
from actors.outlook import Look, Outlook, look_again
from actors.sharing import Share
from actors.slice_book import Shard, Site, SliceBook, site_of
from actors.tasks import to_the_end
from cluster.config import ModelConfig
from cluster.placement import Kind, Placement, Plan, Wish, place
from cluster.topology import Node as TopologyNode
from cluster.topology import Topology

GIB = 2**30

Carve = Callable[[Plan], Awaitable[tuple[str, ...]]]
"""Makes the recuts of a plan; says what was refused."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seeker:
    """A shard that waits for a slice."""

    wish: Wish
    index: int
    share: Share


class Slices:
    """Gives each shard a slice, as it stands in a book of its own.

    `carve` makes slices that are missing, where that is allowed.
    """

    def __init__(
        self,
        models: Iterable[ModelConfig],
        carve: Carve | None = None,
        nodes: Callable[[], Awaitable[Sequence[Node]]] = living_nodes,
        look: Look = look_again,
        backoff: Backoff | None = None,
    ) -> None:
        self._models = {model.name: model for model in models}
        self._carve = carve
        self._nodes = nodes
        self._outlook = Outlook(look)
        self._backoff = backoff or Backoff()
        self._book = SliceBook()
        self._seekers: dict[Shard, Seeker] = {}
        self._avoided: frozenset[str] = frozenset()
        self._seating = asyncio.Lock()

    async def find(self, model: str, index: int, share: Share, tell: Listener) -> Site:
        """A slice for a shard, which is its own until it leaves; until there is one, `tell` hears
        what is missing."""
        seeker, tries = Seeker(_wish(self._models[model]), index, share), 1
        self._seekers[model, index] = seeker
        try:
            await asyncio.sleep(0)  # all who begin with it are known before anything is cut
            while True:
                async with self._seating:
                    self._book.news.clear()
                    event, obstacle = await self._seat(seeker)
                if not obstacle:
                    return site_of(self._book.taken[model, index])
                tell(event, obstacle)
                tries += 1
                await self._changed(self._backoff.delay(tries))
        finally:
            del self._seekers[model, index]

    @property
    def taken(self) -> Mapping[Shard, Placement]:
        """Who has a slice, and where."""
        return self._book.taken

    def expect(self, model: str, index: int) -> None:
        """The shard lives, and may have a slice, but has not said which: until it has, or is gone,
        none is given out."""
        self._book.expect((model, index))

    def note(
        self, model: str, index: int, node: str, devices: tuple[str, ...]
    ) -> tuple[Shard, ...]:
        """The shard has these. Who has to go for that: see `SliceBook.note`."""
        tenant = self._models[model].tenant if model in self._models else None
        return self._book.note((model, index), Site(node, devices), tenant)

    def leave(self, model: str, index: int) -> None:
        """The shard is gone, and its slice free. What it computed on may be why, so its node has to
        be surveyed again."""
        node = self._book.leave((model, index))
        if node is not None:
            self._outlook.forget({node})

    def avoid(self, nodes: frozenset[str]) -> None:
        """From now on no shard gets a slice of these."""
        self._avoided = nodes

    def verify(self) -> None:
        """Raises LedgerBroken where a slice has two shards."""
        self._book.verify()

    async def _seat(self, seeker: Seeker) -> tuple[Event | None, str]:
        """Give it a slice, cut for it if need be, of one GPU after another until one can be. What
        is in the way: somebody has to leave a slice first (CRAMPED), or to say which it has."""
        if self._book.unsaid:
            return None, self._book.unsaid
        nodes, tried = await self._nodes(), dict[str, str]()
        while True:
            made = await self._planned(seeker, nodes)
            if self._book.unsaid:
                return None, self._book.unsaid
            if self._carve is None or not made.missing:
                break
            cuts = self._cuts_for(seeker, nodes, tried)
            if not cuts.recuts:
                break
            tried |= await self._cut(self._carve, cuts)
        _log(made)
        self._book.give(made.placements)
        obstacles = [missing.reason for missing in made.missing]
        refusals = [why for why in tried.values() if obstacles and why]
        return Event.CRAMPED, "; ".join(obstacles + refusals)

    async def _planned(self, seeker: Seeker, nodes: Sequence[Node]) -> Plan:
        able = self._able(seeker, nodes)
        there = (await self._outlook.renew()).among(able)
        return place(seeker.wish, seeker.index, there, self._book.taken.values())

    def _cuts_for(self, seeker: Seeker, nodes: Sequence[Node], tried: Collection[str]) -> Plan:
        """How to come by a slice for it, of another GPU than those that were tried, where no slice
        is given up that others will get."""
        taken, topology = list(self._book.taken.values()), self._outlook.topology
        for other in self._seekers.values():
            if other is not seeker:
                there = topology.among(self._able(other, nodes))
                taken += place(other.wish, other.index, there, taken).placements
        there = _uncut(topology.among(self._able(seeker, nodes)), tried)
        cuts = place(seeker.wish, seeker.index, there, taken, manage_mig=True)
        _log(cuts)
        return cuts

    async def _cut(self, carve: Carve, cuts: Plan) -> dict[str, str]:
        """Why not, GPU by GPU; "" where it was cut. Nobody plans until that has ended, even where
        the seeker is not wanted any more."""
        self._outlook.forget({recut.node for recut in cuts.recuts})
        refused = await to_the_end(carve(cuts))
        return dict.fromkeys((recut.gpu for recut in cuts.recuts), "; ".join(refused))

    def _able(self, seeker: Seeker, nodes: Sequence[Node]) -> frozenset[str]:
        """The nodes whose Ray resources, were they all free, would do for it."""
        custom = self._models[seeker.wish.model].resources.custom
        asked = {"CPU": seeker.share.cpus, **custom}
        able = {node["NodeID"] for node in nodes if offers(node, asked)}
        return frozenset(able - self._avoided)

    async def _changed(self, within_s: float) -> None:
        """Until somebody left a slice, or said which it has, or a while has passed, in which all
        may have changed."""
        try:
            async with asyncio.timeout(within_s):
                await self._book.news.wait()
        except TimeoutError:
            self._outlook.forget_all()


def _uncut(topology: Topology, gpus: Collection[str]) -> Topology:
    """These GPUs as if they could not be cut in any other way."""

    def of(node: TopologyNode) -> TopologyNode:
        fixed = (replace(gpu, profiles=()) if gpu.uuid in gpus else gpu for gpu in node.gpus)
        return replace(node, gpus=tuple(fixed))

    return Topology(tuple(map(of, topology.nodes)))


def _wish(model: ModelConfig) -> Wish:
    """In the planner's terms."""
    resources = model.resources
    return Wish(
        model.name,
        shards=1,
        memory_bytes=int((resources.memory_gib or 0.0) * GIB),
        kinds=(Kind.SLICE,),
        profile=resources.mig_profile,
        tenant=model.tenant,
        arrange=resources.arrange,
    )


def _log(plan: Plan) -> None:
    for line in plan.lines:
        logger.info("%s", line)
