"""What steps leave to lower classes, so that higher ones get the TPOT and the TTFT promised them.

A stream is in the step, and it ought to be over in the time that its class promises of a token. Who
may come while it runs is not there yet, and ought to find it over soon: so a step is to take no
more than a share of the TTFT of classes that have sent somebody lately (`expected`), as far as
prompts of those go that promise none. For each of the two there is an allowance that follows the
clock (`pacing`), and prompts keep within both.

Who has come waits for a first token, and each row beside it makes the step longer: in every other
step until then those behind it in line that are promised nothing stand aside, prompts and streams.
A step fewer costs them little, as what they would have added to it they add to the next. Who was
overtaken as often as the line allows is before it, and stands aside for nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

from cluster.expected import Expected
from cluster.pacing import SHORTEST, Allowance, Pace, StreamPace
from cluster.sequences import FIRST, LAST, Place


@dataclass(slots=True)
class Bounds:
    """What one step may hold of prompts, for the sake of its `streams` and of `comers`.

    Who is promised nothing and behind the place `hurried` has no part in it.
    """

    streams: Allowance
    comers: Allowance
    hurried: Place = LAST

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
        return self.hurried < LAST

    def leaves_out(self, place: Place, promised: bool) -> bool:
        """Whether who is at this place, `promised` anything or not, has no part in the step."""
        return place > self.hurried and not promised


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

    def bounds(self, due: Place = LAST, last: Place = FIRST) -> Bounds:
        """Of the next step, for who may come; its streams are yet to be named.

        `due` is the place of the first to whom a first token is due, and `last` that of the last
        who is promised nothing: in no two steps after each other anybody stands aside.
        """
        self._hurried = not self._hurried and last > due
        bounds = Bounds(self._streams.allowance(), self._comers.allowance())
        if promised := self._expected.promised():
            rank, ttft_s = promised
            bounds.comers.guard(rank, self._ttft_share * ttft_s)
        if self._hurried:
            bounds.hurried = due
        return bounds

    def learn(self, bounds: Bounds, took_s: float) -> None:
        """The step that had these took so long."""
        self._streams.learn(bounds.streams, took_s)
        self._comers.learn(bounds.comers, took_s)
