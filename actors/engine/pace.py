"""How many threads compute a step: all, unless fewer have proved faster for such steps lately.

A product ends with its slowest thread. Where other processes need the cores too, a few rows are
computed faster by fewer threads than the shard may use, since nobody waits for one that was put
aside; many rows never are. Which it is depends on the machine and the hour, so it is measured.
"""

from __future__ import annotations

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


@dataclass(slots=True)
class _Size:
    """Steps of about one number of rows: by threads, the mean time of a row, seconds.

    `chosen` is the number in use, `tried` the other one that is tried after `pause` steps with it,
    or was last. The first step of a number is `met` and not counted: it touches memory that was
    never touched.
    """

    chosen: int
    tried: int
    steps: int = 0
    pause: int = TRY_AFTER
    means: dict[int, float] = field(default_factory=dict)
    met: set[int] = field(default_factory=set)

    def count(self, threads: int, a_row: float) -> None:
        if threads not in self.met:
            self.met.add(threads)
            return
        mean = self.means.get(threads, a_row)
        self.means[threads] = mean + WEIGHT * (min(a_row, OUTLIER * mean) - mean)
        if threads == self.tried != self.chosen:
            self._decide()

    def _decide(self) -> None:
        """Use what was tried, if it has proved better. More threads need not be much faster."""
        share = GAIN if self.tried < self.chosen else 1.0
        better = self.means[self.tried] < share * self.means[self.chosen]
        if better:
            self.chosen, self.tried = self.tried, self.chosen
        self.steps, self.pause = 0, TRY_AFTER if better else min(2 * self.pause, MOST_PAUSE)


class ThreadPace:
    """Suggests a number of threads for each step, and learns what it took."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}

    def threads(self, rows: int, most: int) -> int:
        """For a step of `rows`, at most `most`: the chosen number, or one next to it on trial."""
        if rows >= MANY:
            return most
        size, choices = self._size(rows, most), _choices(most)
        if size.chosen not in choices or not size.means.keys() <= set(choices):
            size = self._sizes[rows.bit_length()] = _Size(most, most)  # another share of the CPUs
        size.steps += 1
        if size.steps <= size.pause:
            return size.chosen
        if size.steps == size.pause + 1:
            size.tried = _next(choices, size.chosen, size.tried)
        return size.tried

    def note(self, rows: int, threads: int, seconds: float) -> None:
        """A step of `rows` took `threads` so long."""
        if rows < MANY:
            self._size(rows, threads).count(threads, seconds / rows)

    def _size(self, rows: int, most: int) -> _Size:
        """Sizes double: within one of them the best number hardly differs."""
        return self._sizes.setdefault(rows.bit_length(), _Size(most, most))


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
