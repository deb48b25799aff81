"""Keeps part of a shard's pages free for higher classes: who is paused, who may not start yet.

Above the high-water mark the newest sequence of the lowest class gives its pages back, one a step,
so that what the last one brought is seen before the next is taken. It goes on once it fits below
the low-water mark, its own pages counted. So from there to the next pause the pages in use must
have grown by all that lies between the marks, and who goes on by the mark does not flap. Who starts
for the first time must fit below the high mark, or he would have somebody paused.

All this only for the sake of who is above: of a higher class, and in front by place. A place is
overtaken by so many later arrivals and no more (`sequences.OVERTAKERS`), so nobody is kept waiting
for ever. Where nobody is above, the marks mean nothing: the first in line is never held back, and
one class alone has all pages.

It costs hardly anything to be paused: full pages stay, on the device while there is room and then
in host memory, and only tokens of a page that was not full are computed again. Without host memory
they might have to be computed all, so there the marks are out of reach.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cluster.config import CacheConfig
from cluster.sequences import State, Tracked, expendable

WORTH_PAGES = 4
"""Who has fewer pages to himself is not worth being paused for them."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """The marks, in pages in use. It suggests, and changes nothing."""

    high: float
    low: float

    def to_pause(
        self,
        used: int,
        running: Sequence[Tracked],
        waiting: Sequence[Tracked],
        gives: Callable[[Tracked], int],
    ) -> Tracked | None:
        """Of those that run the one to pause now, if any; `gives` tells the pages it would free.

        Who owes prompt scores would have to compute all of them again, and is left alone.
        """
        if used <= self.high:
            return None
        present = [*running, *waiting]
        highest = min((one.family.rank for one in present), default=0)
        lower = (one for one in running if one.family.rank > highest and not one.owes_scores)
        by_turn = sorted(lower, key=expendable, reverse=True)
        worth = (one for one in by_turn if gives(one) >= WORTH_PAGES)
        return next((one for one in worth if _is_below(one, present)), None)

    def holds_back(
        self,
        one: Tracked,
        used: int,
        present: Iterable[Tracked],
        needs: Callable[[Tracked], int],
    ) -> bool:
        """Whether it may not start yet among those `present`; `needs` tells the pages in use that
        come to those `used` once it runs."""
        mark = self.low if one.state is State.PAUSED else self.high
        if mark == math.inf or not _is_below(one, present):
            return False
        return used > mark or used + needs(one) > mark


OFF = Watermark(math.inf, math.inf)
"""Marks out of reach."""


def marks(cache: CacheConfig, pages: int) -> Watermark:
    """Those of a pool of so many pages."""
    return Watermark(cache.high_water * pages, cache.low_water * pages)


def _is_below(one: Tracked, others: Iterable[Tracked]) -> bool:
    """Whether somebody of a higher class is in front of it."""
    rank, order = one.family.rank, one.order
    return any(other.family.rank < rank and other.order < order for other in others)
