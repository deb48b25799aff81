"""How many threads compute a step: as many as were fastest for such steps lately, found by trying.

A product ends with its slowest thread. Where other processes need the cores too, a few rows are
computed faster by fewer threads than the shard may use, since nobody waits for one that was put
aside; many rows never are. Which it is depends on the machine and the hour, so it is measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TRY_EVERY = 24
"""Steps of one size until the next one tries another number of threads."""

WEIGHT = 0.25
"""Of the newest step in the running mean."""

OUTLIER = 3.0
"""A step longer than so many means counts as so many: it was put aside, which says little."""


@dataclass(slots=True)
class _Size:
    """Steps of about one number of rows: by threads, the mean time of a row, seconds.

    The first step of a number is `met` and not counted: it touches memory that was never touched.
    """

    steps: int = 0
    met: set[int] = field(default_factory=set)
    means: dict[int, float] = field(default_factory=dict)


class ThreadPace:
    """Suggests a number of threads for each step, and learns what it took."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}

    def threads(self, rows: int, most: int) -> int:
        """For a step of `rows`, at most `most`: the best that is known, or one next to it."""
        size = self._size(rows)
        size.steps += 1
        choices = _choices(most)
        known = [count for count in choices if count in size.means]
        if not known:
            return most
        best = min(known, key=size.means.__getitem__)
        neighbours = _neighbours(choices, best)
        for unknown in (count for count in neighbours if count not in size.means):
            return unknown
        if neighbours and size.steps % TRY_EVERY == 0:
            return neighbours[size.steps // TRY_EVERY % len(neighbours)]
        return best

    def note(self, rows: int, threads: int, seconds: float) -> None:
        """A step of `rows` took `threads` so long."""
        size, a_row = self._size(rows), seconds / rows
        if threads not in size.met:
            size.met.add(threads)
            return
        mean = size.means.get(threads, a_row)
        size.means[threads] = mean + WEIGHT * (min(a_row, OUTLIER * mean) - mean)

    def _size(self, rows: int) -> _Size:
        """Sizes double: within one of them the best number hardly differs."""
        return self._sizes.setdefault(rows.bit_length(), _Size())


def _choices(most: int) -> list[int]:
    """All of them first, then half as many, and so on down to one."""
    choices = [most]
    while choices[-1] > 1:
        choices.append(choices[-1] // 2)
    return choices


def _neighbours(choices: list[int], best: int) -> list[int]:
    """The next more and the next fewer: what is far from the best would take many times as long."""
    at = choices.index(best)
    return [*choices[max(at - 1, 0) : at], *choices[at + 1 : at + 2]]
