"""A step in the making: what is in it, and how many tokens it may still hold, of whom."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cluster.sequences import Tracked
from cluster.steps import Chunk, PageCopy


@dataclass(slots=True)
class Draft:
    """A step plan in the making; `budget` is how many tokens it may still hold.

    Of these, prompts of classes below `guarded` may have `beside`, as a stream of that class is in
    it whose target is `target_s`; without one all are equal.
    """

    budget: int
    beside: int = 0
    guarded: float = math.inf
    target_s: float = math.inf
    chunks: list[Chunk] = field(default_factory=list)
    copies: list[PageCopy] = field(default_factory=list)
    planned: set[Tracked] = field(default_factory=set)

    def guard(self, stream: Tracked) -> None:
        """Of streams that have a target, the strictest is kept."""
        target_s = stream.family.tpot_s
        if target_s is not None and target_s < self.target_s:
            self.target_s, self.guarded = target_s, stream.family.rank

    def room_for(self, tracked: Tracked) -> int:
        """Tokens that it may have."""
        return min(self.budget, self.beside) if self._stands_back(tracked) else self.budget

    def take(self, tracked: Tracked, count: int) -> None:
        """Put its next `count` tokens in."""
        if self._stands_back(tracked):
            self.beside -= count
        self.chunks.append(tracked.next_chunk(count))
        self.planned.add(tracked)
        self.budget -= count

    def _stands_back(self, tracked: Tracked) -> bool:
        return tracked.family.rank > self.guarded and tracked.behind > 1
