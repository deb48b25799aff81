"""Which classes may send somebody soon: those that have sent somebody lately."""

from __future__ import annotations

EXPECTED_STEPS = 1_000
"""A class that sent nobody for so many steps is not expected any more. Steps are all the time that
batching knows: a shard that rests forgets nobody, and on a slow device, where a long step is felt
most, they are minutes, on a quick one, where even full steps hardly hold anybody up, seconds."""


class Expected:
    """The classes that came within the last steps, and the TTFT that each is promised."""

    def __init__(self) -> None:
        self._steps = 0
        self._seen: dict[int, tuple[float, int]] = {}

    def came(self, rank: int, ttft_s: float | None, ahead: int = 0) -> None:
        """One of the class has come, `ahead` steps after those that are counted. The newest tells
        what its class promises."""
        if ttft_s is None:
            self._seen.pop(rank, None)
        else:
            self._seen[rank] = ttft_s, self._steps + ahead

    def passed(self, steps: int) -> None:
        """So many more were taken."""
        self._steps += steps

    def promised(self) -> tuple[int, float] | None:
        """The lowest rank and the strictest TTFT of the classes that are expected in the next step.

        A class that is expected stands back for nobody who is not there yet: its own first tokens
        are promised, too, and to requests that are there.
        """
        known = self._seen.items()
        due = [(rank, s) for rank, (s, at) in known if self._steps - at < EXPECTED_STEPS]
        return (max(rank for rank, _ in due), min(s for _, s in due)) if due else None
