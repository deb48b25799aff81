"""What steps leave to lower classes, so that higher ones get the TPOT and the TTFT promised them.

A stream is in the step, and it ought to be over in the time that its class promises of a token. Who
may come while it runs is not there yet, and ought to find it over soon: so a step is to take no
more than a share of the TTFT of classes that have sent somebody lately (`expected`), as far as
prompts of those go that promise none. For each of the two there is an allowance that follows the
clock (`pacing`), and prompts keep within both.

Who has come waits for a first token, and each row beside it makes the step longer: in every other
step until then those that are promised nothing stand aside, of lower classes who runs, and of who
waits those behind it in line. A step fewer costs who runs little, as what he would have added to it
he adds to the next, and he is in every second one. Who waits might be overtaken without end: once
he was as often as the line allows, he is before whoever comes, and stands aside for nobody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cluster.expected import Expected
from cluster.pacing import SHORTEST, Allowance, Pace, StreamPace
from cluster.sequences import LAST, Place


@dataclass(frozen=True, slots=True)
class Hurry:
    """For whom others stand aside: the first in line to whom a first token is due."""

    rank: float = math.inf
    place: Place = LAST

    def passes(self, rank: int, place: Place, runs: bool) -> bool:
        """Whether one of this class, at this place and promised nothing, stands aside for it."""
        return rank > self.rank if runs else place > self.place


NO_HURRY = Hurry()


@dataclass(slots=True)
class Bounds:
    """What one step may hold of prompts, for the sake of its `streams` and of `comers`.

    Who stands aside for `hurry` has no part in it.
    """

    streams: Allowance
    comers: Allowance
    hurry: Hurry = NO_HURRY

    def allow(self, rank: int, wanted: int) -> int:
        """How many of `wanted` tokens a prompt of this class may have."""
        return self.comers.allow(rank, self.streams.allow(rank, wanted))

    def take(self, rank: int, count: int) -> None:
        """A prompt of this class has so many."""
        self.streams.take(rank, count)
        self.comers.take(rank, count)

    @property
    def are_reached(self) -> bool:
        """Whether they may have held somebody back."""
        return self.hurries or not (self.streams.left and self.comers.left)

    @property
    def hurries(self) -> bool:
        """Whether somebody stands aside."""
        return self.hurry is not NO_HURRY


class Promises:
    """The bounds of each step of a shard; a step may take `ttft_share` of a TTFT at most."""

    def __init__(self, most: int, ttft_share: float) -> None:
        self._ttft_share = ttft_share
        self._expected = Expected()
        self._streams = StreamPace(most)
        self._comers = Pace(most, SHORTEST)
        self._hurried = False

    def came(self, rank: int, ttft_s: float | None, ahead: int = 0) -> None:
        """One of the class has come, `ahead` steps after those that are counted."""
        self._expected.came(rank, ttft_s, ahead)

    def passed(self, steps: int) -> None:
        """So many steps were taken."""
        self._expected.passed(steps)

    def bounds(self, hurry: Hurry = NO_HURRY) -> Bounds:
        """Of the next step, for who may come; its streams are yet to be named.

        For `hurry` somebody would stand aside; in no two steps after each other anybody does.
        """
        self._hurried = not self._hurried and hurry is not NO_HURRY
        bounds = Bounds(self._streams.allowance(), self._comers.allowance())
        if promised := self._expected.promised():
            rank, ttft_s = promised
            bounds.comers.guard(rank, self._ttft_share * ttft_s)
        if self._hurried:
            bounds.hurry = hurry
        return bounds

    def learn(self, bounds: Bounds, took_s: float) -> None:
        """The step that had these took so long."""
        self._streams.learn(bounds.streams, took_s)
        self._comers.learn(bounds.comers, took_s)
