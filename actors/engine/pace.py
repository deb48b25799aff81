"""How many threads compute a step: all, unless fewer have proved faster for such steps lately.

A product ends with its slowest thread. Where other processes need the cores too, a few rows are
computed faster by fewer threads than the shard may use, since nobody waits for one that was put
aside; many rows never are. Which it is depends on the machine and the hour, so it is measured.

Where others keep every core busy, steps can jam: threads that wait for each other at every product
make one a hundred times as long. So long nobody waits for the next trial: one thread is tried at
once, and if it is better, so for steps of every size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

TRY_AFTER = 24
"""Steps of one size until another number of threads is tried, twice as many each time that it is no
better."""

MOST_PAUSE = 192
"""As many at most."""

MANY = 128
"""Rows from which on it is always all threads."""

GAIN = 0.85
"""Fewer threads have to take less than this share of the time: a disturbed step proves nothing."""

WEIGHT = 0.25
"""Of the newest step in the running mean."""

OUTLIER = 3.0
"""A step longer than so many means counts as so many: it was put aside, which says little."""

SLOW = 10.0
"""A step longer than so many means is slower than any noise makes it."""

JAM = 3
"""Steps so slow, one after the other, that are no accident."""


@dataclass(slots=True)
class _Size:
    """Steps of about one number of rows: by threads, the mean time of a row, seconds.

    `chosen` is the number in use, `tried` the other one that is tried after `pause` steps with it,
    or was last. The first step of a number is `met` and not counted: it touches memory that was
    never touched. `before` is the number that was left for one thread in a jam, until it is tried
    again.
    """

    chosen: int
    tried: int
    steps: int = 0
    pause: int = TRY_AFTER
    means: dict[int, float] = field(default_factory=dict)
    met: set[int] = field(default_factory=set)
    suspects: bool = False
    before: int | None = None

    def is_slow(self, threads: int, a_row: float) -> bool:
        """Slower than any noise makes it, and by several threads."""
        return threads == self.chosen > 1 and a_row > SLOW * self.means.get(threads, a_row)

    def suspect(self, a_row: float) -> None:
        """A row takes so long, and seems to go on so: try one thread, which waits for none."""
        self.means[self.chosen] = a_row
        self.tried, self.steps, self.suspects = 1, self.pause + 1, True

    def leave_cores(self) -> None:
        """Use one thread, and see later whether the jam is over."""
        if self.chosen > 1:
            self.before, self.chosen, self.tried = self.chosen, 1, self.chosen
            self.steps, self.pause = 0, TRY_AFTER

    def take_cores(self) -> None:
        """The jam is over, as steps of another size have shown."""
        if self.before is not None:
            self.chosen, self.tried, self.before = self.before, self.chosen, None
            self.steps, self.pause = 0, TRY_AFTER

    def fits(self, choices: list[int]) -> bool:
        """Whether it is of these numbers that it knows."""
        return {self.chosen, self.before or 1, *self.means} <= set(choices)

    def count(self, threads: int, a_row: float) -> None:
        if threads not in self.met:
            self.met.add(threads)
            return
        mean = self.means.get(threads, a_row)
        if a_row < mean / SLOW:
            mean = a_row  # no noise makes a step so quick: a jam is over
        self.means[threads] = mean + WEIGHT * (min(a_row, OUTLIER * mean) - mean)
        if threads == self.tried != self.chosen:
            self._decide()

    def _decide(self) -> None:
        """Use what was tried, if it has proved better. More threads need not be much faster."""
        share = GAIN if self.tried < self.chosen else 1.0
        better = self.means[self.tried] < share * self.means[self.chosen]
        jams, self.suspects, self.before = self.suspects and better, False, None
        if jams:
            self.leave_cores()
            return
        if better:
            self.chosen, self.tried = self.tried, self.chosen
        self.steps, self.pause = 0, TRY_AFTER if better else min(2 * self.pause, MOST_PAUSE)


class ThreadPace:
    """Suggests a number of threads for each step, and learns what it took."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        self._slow = 0

    def threads(self, rows: int, most: int) -> int:
        """For a step of `rows`, at most `most`: the chosen number, or one next to it on trial."""
        if rows >= MANY:
            return most
        size, choices = self._size(rows, most), _choices(most)
        if not size.fits(choices):  # another share of the CPUs
            size = self._sizes[rows.bit_length()] = self._new(most)
        size.steps += 1
        if size.steps <= size.pause:
            return size.chosen
        if size.steps == size.pause + 1:
            size.tried = size.before or _next(choices, size.chosen, size.tried)
        return size.tried

    def note(self, rows: int, threads: int, seconds: float) -> None:
        """A step of `rows` took `threads` so long."""
        if rows >= MANY:
            return
        size, a_row = self._size(rows, threads), seconds / rows
        self._slow = self._slow + 1 if size.is_slow(threads, a_row) else 0
        before = size.before
        size.count(threads, a_row)
        if self._slow == JAM:
            size.suspect(a_row)
        elif before is None and size.before is not None:
            self._all(_Size.leave_cores)
        elif before is not None and before == size.chosen:
            self._all(_Size.take_cores)

    def _all(self, change: Callable[[_Size], None]) -> None:
        for size in self._sizes.values():
            change(size)

    def _size(self, rows: int, most: int) -> _Size:
        """Sizes double: within one of them the best number hardly differs."""
        if rows.bit_length() not in self._sizes:
            self._sizes[rows.bit_length()] = self._new(most)
        return self._sizes[rows.bit_length()]

    def _new(self, most: int) -> _Size:
        size = _Size(most, most)
        if any(other.before for other in self._sizes.values()):
            size.leave_cores()
        return size


def _choices(most: int) -> list[int]:
    """All of them first, then half as many, and so on down to one."""
    choices = [most]
    while choices[-1] > 1:
        choices.append(choices[-1] // 2)
    return choices


def _next(choices: list[int], chosen: int, tried: int) -> int:
    """The next fewer and the next more in turn: what is far from the best would take many times as
    long. The chosen one where there is no other."""
    at = choices.index(chosen)
    neighbours = [*choices[at + 1 : at + 2], *choices[max(at - 1, 0) : at]]
    others = [one for one in neighbours if one != tried]
    return (others or neighbours or [chosen])[0]
