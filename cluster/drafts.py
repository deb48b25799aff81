"""A step in the making: what is in it, and how many tokens it may still hold, of whom."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from cluster.coming import Coming
from cluster.host_tier import Moves
from cluster.promises import Bounds, Hurry
from cluster.sequences import State, Tracked
from cluster.steps import Chunk, PageCopy, StepPlan


@dataclass(slots=True)
class Gate:
    """Who of those that wait may still start in this step.

    The first `passed` in line may not, and behind them none but of higher classes than `barred`
    (a rank). While a step is drafted room only shrinks, so who was passed is not looked at again.
    Who starts leaves `places` and `pages` free for those that wait for what this step computes.
    """

    passed: int = 0
    barred: float = math.inf
    places: int = 0
    pages: int = 0

    @property
    def is_open(self) -> bool:
        return self.barred > 0

    def pass_over(self, rank: int) -> None:
        """The next in line, of this class, may not start."""
        self.barred = min(self.barred, rank)
        self.passed += 1

    def step_over(self) -> None:
        """The next in line waits for files, which take no room from those behind."""
        self.passed += 1

    def wait(self, pages: int) -> None:
        """The next in line waits for what this step computes, and will need so many pages then."""
        self.passed += 1
        self.places += 1
        self.pages += pages

    def close(self) -> None:
        """Pages or places are short: whoever started now might take what another waits for."""
        self.barred = 0


def stands_aside(tracked: Tracked, hurry: Hurry) -> bool:
    """Whether it does so for that one."""
    runs, family = tracked.state is State.RUNNING, tracked.family
    return hurry.passes(family.rank, tracked.order, runs) and not family.is_promised


@dataclass(slots=True)
class Draft:
    """A step plan in the making; `budget` is how many tokens it may still hold, and prompts of
    these what their `bounds` leave. `loads` are the pages that it may still bring back beside what
    it computes. `prefill` are the tokens of all prompts in it, `coming` the pages that they fill.
    """

    budget: int
    bounds: Bounds
    coming: Coming
    loads: float = math.inf
    chunks: list[Chunk] = field(default_factory=list)
    copies: list[PageCopy] = field(default_factory=list)
    planned: set[Tracked] = field(default_factory=set)
    prefill: int = 0
    gate: Gate = field(default_factory=Gate)

    @property
    def held_back(self) -> bool:
        """Whether there was room for prompts, and their class was not to have it."""
        return self.budget > 0 and self.bounds.are_reached

    @property
    def loads_left(self) -> float:
        """Pages that may be brought back now: nobody is held up where nobody is in it yet."""
        return self.loads if self.chunks else math.inf

    def load(self, pages: int) -> None:
        """So many are brought back."""
        self.loads = max(0, self.loads - pages)

    def leaves_out(self, tracked: Tracked) -> bool:
        """Whether it has no part in the step."""
        return stands_aside(tracked, self.bounds.hurry)

    def room_for(self, tracked: Tracked) -> int:
        """Tokens that it may have."""
        if tracked.behind == 1:
            return self.budget
        return self.bounds.allow(tracked.family.rank, self.budget)

    def take(self, tracked: Tracked, count: int) -> None:
        """Put its next `count` tokens in."""
        if tracked.behind > 1:
            self.bounds.take(tracked.family.rank, count)
            self.prefill += count
        self.chunks.append(tracked.next_chunk(count))
        self.planned.add(tracked)
        self.budget -= count

    def guess(self, index: int, guesses: tuple[int, ...]) -> None:
        """Have the chunk of that number, a decode, computed with `guesses` of what comes next."""
        self.chunks[index] = replace(self.chunks[index], guesses=guesses)

    def plan(self, moves: Moves) -> StepPlan:
        """With what pages had to be moved for it."""
        return StepPlan(tuple(self.chunks), tuple(self.copies), *moves)
