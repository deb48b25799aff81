"""The book of which shard has which MIG slice: the only one there is, since Ray counts none."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from actors.naming import shard_name
from cluster.errors import LedgerBroken
from cluster.placement import Kind, Placement, Rank

Shard = tuple[str, int]
"""A model, and which of its shards."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Site:
    """Where a shard is to begin: the id of a node, None to leave it to Ray, and its slices there,
    by UUID."""

    node: str | None
    devices: tuple[str, ...] = ()


class SliceBook:
    """A shard has a slice because it was given it, and stands there once it has said so itself.

    `news` is set where somebody left a slice, or said which it has.
    """

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self._taken: dict[Shard, Placement] = {}
        self._standing: set[Shard] = set()
        self._expected: set[Shard] = set()

    @property
    def taken(self) -> Mapping[Shard, Placement]:
        """Who has a slice, and where."""
        return self._taken

    @property
    def unsaid(self) -> str:
        """Who may have any slice, in words; empty where it is known of all."""
        names = ", ".join(shard_name(*shard) for shard in sorted(self._expected))
        return f"{names} may have a slice, and has not said which" if names else ""

    def give(self, placements: Iterable[Placement]) -> None:
        """By the plan."""
        self._taken |= {(one.model, one.index): one for one in placements}

    def expect(self, shard: Shard) -> None:
        """It lives, and may have a slice, but has not said which."""
        self._expected.add(shard)

    def note(self, shard: Shard, site: Site, tenant: str | None) -> tuple[Shard, ...]:
        """It says that it is there, whoever gave it what it has, which may be nothing. Who has to
        go for that, since a slice has one shard: those that were to get it, or itself where another
        stands there."""
        self._no_longer_expected(shard)
        rivals = self._rivals(shard, site)
        if not self._standing.isdisjoint(rivals):
            self._free(shard)
            return (shard,)
        for rival in rivals:
            self._free(rival)
        self._standing.add(shard)
        there = self._taken.get(shard)
        if site.devices and (there is None or site_of(there) != site):
            self._free(shard)
            self._taken[shard] = _placement(shard, site, tenant)
        return rivals

    def leave(self, shard: Shard) -> str | None:
        """It is gone, and its slice free. The node of that, if it had any."""
        self._no_longer_expected(shard)
        self._standing.discard(shard)
        there = self._taken.get(shard)
        self._free(shard)
        return there.node if there is not None else None

    def verify(self) -> None:
        """Raises LedgerBroken where a slice has two shards."""
        given = Counter(device for there in self._taken.values() for device in there.devices)
        doubly = sorted(device for device, shards in given.items() if shards > 1)
        if doubly:
            raise LedgerBroken(f"{', '.join(doubly)} given to more than one shard")

    def _rivals(self, shard: Shard, site: Site) -> tuple[Shard, ...]:
        rivals = tuple(
            other
            for other, there in self._taken.items()
            if other != shard and not set(site.devices).isdisjoint(there.devices)
        )
        for rival in rivals:
            logger.error("%s and %s are on one slice", shard_name(*shard), shard_name(*rival))
        return rivals

    def _free(self, shard: Shard) -> None:
        if self._taken.pop(shard, None) is not None:
            self.news.set()

    def _no_longer_expected(self, shard: Shard) -> None:
        if shard in self._expected:
            self._expected.remove(shard)
            self.news.set()


def site_of(placement: Placement) -> Site:
    return Site(placement.node, placement.devices)


def _placement(shard: Shard, site: Site, tenant: str | None) -> Placement:
    """In the planner's terms, of who was there before it was planned."""
    ranks = tuple(Rank(device, None) for device in site.devices)
    return Placement(*shard, tenant, site.node or "", Kind.SLICE, ranks, memory_bytes=0)
