"""Which MIG slice each shard gets: the planner's rules over the slices there are, or can be cut."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from actors.lifecycle import Backoff, Event
from actors.lives import Listener
from actors.naming import shard_name
from actors.nodes import Node, living_nodes, offers
from actors.sharing import Share
from actors.survey import survey
from cluster.config import ModelConfig
from cluster.errors import LedgerBroken
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


async def look_again(known: Topology) -> Topology:
    return await survey(known=known)


class Slices:
    """The book of which shard has which slice: the only one there is, since Ray counts none.

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
        self._look = look
        self._backoff = backoff or Backoff()
        self._topology = Topology(())
        self._taken: dict[Shard, Placement] = {}
        self._seekers: dict[Shard, Seeker] = {}
        self._expected: set[Shard] = set()
        self._avoided: frozenset[str] = frozenset()
        self._news = asyncio.Event()
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
                    self._news.clear()
                    event, obstacle = await self._seat(seeker)
                if not obstacle:
                    return _site(self._taken[model, index])
                tell(event, obstacle)
                tries += 1
                await self._changed(self._backoff.delay(tries))
        finally:
            del self._seekers[model, index]

    @property
    def taken(self) -> Mapping[Shard, Placement]:
        """Who has a slice, and where."""
        return self._taken

    def expect(self, model: str, index: int) -> None:
        """The shard lives, and may have a slice, but has not said which: until it has, or is gone,
        none is given out."""
        self._expected.add((model, index))

    def note(self, model: str, index: int, node: str, devices: tuple[str, ...]) -> None:
        """The shard has these, whoever gave them to it; it may be none."""
        self._no_longer_expected(model, index)
        there = self._taken.get((model, index))
        if not devices or (there is not None and _site(there) == Site(node, devices)):
            return
        ranks = tuple(Rank(device, None) for device in devices)
        tenant = self._models[model].tenant if model in self._models else None
        found = Placement(model, index, tenant, node, Kind.SLICE, ranks, memory_bytes=0)
        self._taken[model, index] = found

    def leave(self, model: str, index: int) -> None:
        """The shard is gone, and its slice free. What it computed on may be why, so its node has to
        be surveyed again."""
        self._no_longer_expected(model, index)
        there = self._taken.pop((model, index), None)
        if there is not None:
            self._forget({there.node})
            self._news.set()

    def avoid(self, nodes: frozenset[str]) -> None:
        """From now on no shard gets a slice of these."""
        self._avoided = nodes

    def sites(self) -> dict[Shard, Site]:
        """Of the shards that have a slice."""
        return {shard: _site(there) for shard, there in self._taken.items()}

    def verify(self) -> None:
        """Raises LedgerBroken where a slice has two shards."""
        given = Counter(device for site in self.sites().values() for device in site.devices)
        doubly = sorted(device for device, shards in given.items() if shards > 1)
        if doubly:
            raise LedgerBroken(f"{', '.join(doubly)} given to more than one shard")

    async def _seat(self, seeker: Seeker) -> tuple[Event | None, str]:
        """Give it a slice, cut for it if need be. What is in the way: who has a place has to leave
        it (CRAMPED), or a cut was refused."""
        if self._expected:
            names = ", ".join(shard_name(*shard) for shard in sorted(self._expected))
            return None, f"{names} may have a slice, and has not said which"
        nodes = await self._nodes()
        made = await self._planned(seeker, nodes)
        if made.missing and self._carve is not None:
            cuts = await self._cuts_for(seeker, nodes)
            refused = await self._carve(cuts) if cuts.recuts else ()
            self._forget({recut.node for recut in cuts.recuts})
            if refused:
                return None, "; ".join(refused)
            made = await self._planned(seeker, nodes)
        _log(made)
        self._taken |= {(one.model, one.index): one for one in made.placements}
        return Event.CRAMPED, "; ".join(missing.reason for missing in made.missing)

    async def _planned(self, seeker: Seeker, nodes: Sequence[Node]) -> Plan:
        able = self._able(seeker, nodes)
        self._topology = await self._look(self._topology)
        return place(seeker.wish, seeker.index, self._among(able), self._taken.values())

    async def _cuts_for(self, seeker: Seeker, nodes: Sequence[Node]) -> Plan:
        """How to come by a slice for it, where no slice is given up that others will get."""
        taken = list(self._taken.values())
        for other in self._seekers.values():
            if other is not seeker:
                there = self._among(self._able(other, nodes))
                taken += place(other.wish, other.index, there, taken).placements
        there = self._among(self._able(seeker, nodes))
        cuts = place(seeker.wish, seeker.index, there, taken, manage_mig=True)
        _log(cuts)
        return cuts

    def _able(self, seeker: Seeker, nodes: Sequence[Node]) -> frozenset[str]:
        """The nodes whose Ray resources, were they all free, would do for it."""
        custom = self._models[seeker.wish.model].resources.custom
        asked = {"CPU": seeker.share.cpus, **custom}
        able = {node["NodeID"] for node in nodes if offers(node, asked)}
        return frozenset(able - self._avoided)

    def _among(self, names: Collection[str]) -> Topology:
        return Topology(tuple(node for node in self._topology.nodes if node.name in names))

    async def _changed(self, within_s: float) -> None:
        """Until somebody left a slice, or said which it has, or a while has passed, in which all
        may have changed."""
        try:
            async with asyncio.timeout(within_s):
                await self._news.wait()
        except TimeoutError:
            self._topology = Topology(())

    def _no_longer_expected(self, model: str, index: int) -> None:
        if (model, index) in self._expected:
            self._expected.remove((model, index))
            self._news.set()

    def _forget(self, nodes: set[str]) -> None:
        """They may have changed, and are surveyed again when they are next needed."""
        kept = tuple(node for node in self._topology.nodes if node.name not in nodes)
        self._topology = Topology(kept)


def _site(placement: Placement) -> Site:
    return Site(placement.node, placement.devices)


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
