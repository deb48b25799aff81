"""Sequences on a simulated shard, and runs of its steps that are all alike."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cluster.coming import Coming
from cluster.drafts import Gate
from cluster.messages import PageHash
from cluster.promises import Bounds, Hurry
from cluster.sequences import Place
from cluster.simulate.costs import StepCost
from cluster.simulate.workload import Offered


@dataclass(slots=True, eq=False)
class Sequence:
    """One request on a shard: `known` tokens of which `computed` have KV, as in `cluster.steps`.

    It ends with `final` tokens known. Its pages have `room` for so many more tokens. `cached` is
    what its first start found computed.
    """

    offered: Offered
    order: Place
    rank: int
    tpot_s: float | None
    ttft_s: float | None
    known: int
    final: int
    hashes: list[PageHash]
    computed: int = 0
    room: int = 0
    blocks: list[int] = field(default_factory=list)
    cached: int | None = None
    running: bool = False
    started: bool = False

    @property
    def request_id(self) -> str:
        return self.offered.submission.request_id

    @property
    def behind(self) -> int:
        return self.known - self.computed

    @property
    def is_promised(self) -> bool:
        return self.ttft_s is not None or self.tpot_s is not None

    def stands_aside(self, hurry: Hurry) -> bool:
        """Whether it does so for that one."""
        return hurry.passes(self.rank, self.order, self.running) and not self.is_promised

    def page(self, index: int) -> PageHash:
        """The hash of full page `index`; a page with output in it is like no other."""
        while index >= len(self.hashes):
            self.hashes.append(f"{self.request_id}:{len(self.hashes)}".encode())
        return self.hashes[index]


@dataclass(slots=True, eq=False)
class Draft:
    """A run in the making; `budget` is how many tokens its steps may still hold, and prompts of
    these what their `bounds` leave.

    It is `alike` as long as the next step could be the same as this one.
    """

    budget: int
    bounds: Bounds
    coming: Coming
    decodes: list[Sequence] = field(default_factory=list)
    chunks: list[tuple[Sequence, int]] = field(default_factory=list)
    alike: bool = True
    gate: Gate = field(default_factory=Gate)

    @property
    def prefill(self) -> int:
        """Prompt tokens of a step."""
        return sum([count for _, count in self.chunks])

    @property
    def held_back(self) -> bool:
        """Whether there was room for prompts, and their class was not to have it."""
        return self.budget > 0 and self.bounds.are_reached

    def leaves_out(self, one: Sequence) -> bool:
        """Whether it has no part in the step."""
        return one.stands_aside(self.bounds.hurry)

    def room_for(self, one: Sequence) -> int:
        """Tokens that it may have."""
        if one.behind == 1:
            return self.budget
        return self.bounds.allow(one.rank, self.budget)

    def add(self, one: Sequence, count: int) -> None:
        self.budget -= count
        if one.behind == 1:
            self.decodes.append(one)
            self.alike &= one.started
            return
        self.bounds.take(one.rank, count)
        self.chunks.append((one, count))

    def holds(self, one: Sequence) -> bool:
        return one in self.decodes or any(one is other for other, _ in self.chunks)


@dataclass(slots=True, eq=False)
class Run:
    """`steps` steps alike: in each, `decodes` take a token and `chunks` their count of tokens.

    Step `i` takes `first_s + i * growth_s`, since contexts grow by the same amount in each.
    """

    start_s: float
    draft: Draft
    steps: int
    first_s: float
    growth_s: float

    @classmethod
    def priced(cls, draft: Draft, steps: int, now: float, cost: StepCost) -> Run:
        """With the times that such steps take: each decode reads one token more in the next one,
        each prompt token one chunk more."""
        prefill, decodes = draft.prefill, len(draft.decodes)
        context = sum([one.known for one in draft.decodes])
        pairs = sum(count * (one.computed + (count + 1) / 2) for one, count in draft.chunks)
        first_s = cost.step_s(prefill, pairs, decodes, context)
        next_s = cost.step_s(prefill, pairs + prefill * prefill, decodes, context + decodes)
        return cls(now, draft, steps, first_s, next_s - first_s)

    @property
    def end_s(self) -> float:
        grown = self.growth_s * self.steps * (self.steps - 1) / 2
        return self.start_s + self.first_s * self.steps + grown

    def shorten(self, now: float) -> None:
        """It ends with the present step, unless prompts fill its steps anyway."""
        if not self.draft.chunks:
            self.steps = min(self.steps, self.steps_until(now))

    def times(self) -> list[float]:
        """Seconds of each step."""
        return [self.first_s + step * self.growth_s for step in range(self.steps)]

    def steps_until(self, now: float) -> int:
        """How many steps it takes to reach `now`: the root of the sum of the series, rounded up."""
        wait, half = now - self.start_s, self.growth_s / 2
        slope = self.first_s - half
        root = 2 * wait / (slope + math.sqrt(slope * slope + 4 * half * wait))
        return max(1, math.ceil(root - 1e-9))


@dataclass(slots=True, eq=False)
class Outcome:
    """Whose first token came at the end of a run, and who ended there."""

    started: list[Sequence] = field(default_factory=list)
    ended: list[Sequence] = field(default_factory=list)
