"""What a run of chaos found: verdicts, pauses, recoveries, and what was left behind."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.chaos.faults import Fault
from benchmarks.mixture import Answer


@dataclass(frozen=True)
class Blow:
    """A fault that struck, at a reading of the monotonic clock in seconds."""

    fault: Fault
    at: float


@dataclass
class Report:
    """`moved`: the answers of streams that went on at another shard. Times are in seconds.

    `broken` are the faults that were never repaired. `mended` is what audits put right while things
    broke, `mended_after` what they still found once all was repaired.
    """

    verdicts: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    blows: list[Blow] = field(default_factory=list)
    streams: list[Answer] = field(default_factory=list)
    moved: list[Answer] = field(default_factory=list)
    recoveries_s: list[float] = field(default_factory=list)
    broken: int = 0
    leaked_pages: int = 0
    leaked_leases: int = 0
    mended: Counter[str] = field(default_factory=Counter)
    mended_after: Counter[str] = field(default_factory=Counter)

    @property
    def kills(self) -> int:
        return sum(blow.fault.deadly for blow in self.blows)

    @property
    def is_clean(self) -> bool:
        wrong = self.verdicts.total() - self.verdicts["right"]
        leaked = self.leaked_pages or self.leaked_leases
        left = leaked or self.broken or self.mended_after.total()
        return not (wrong or left)

    def lines(self) -> list[str]:
        return [
            f"requests {self.verdicts.total()}, of which {len(self.streams)} streams",
            f"faults {len(self.blows)}, deadly {self.kills}: {_counted(self._kinds())}",
            *(f"{kind} {self.verdicts[kind]}" for kind in ("lost", "repeated", "wrong")),
            f"silence of the {len(self.moved)} streams that moved: {_spread(self._moved_pauses())}",
            *(f"pause of any stream over a {k}: {_spread(p)}" for k, p in self._pauses().items()),
            f"whole again after: {_spread(self.recoveries_s)}; never: {self.broken}",
            f"pages leaked {self.leaked_pages}, leases leaked {self.leaked_leases}",
            f"mended while things broke: {_counted(self.mended)}",
            f"mended after all was repaired: {_counted(self.mended_after)}",
            *self.errors,
        ]

    def _kinds(self) -> Counter[str]:
        return Counter(blow.fault.name for blow in self.blows)

    def _moved_pauses(self) -> list[float]:
        """The longest silence of each stream that moved and had begun."""
        gaps = [[b - a for a, b in pairwise(answer.arrivals)] for answer in self.moved]
        return [max(one) for one in gaps if one]

    def _pauses(self) -> dict[str, list[float]]:
        """By kind of fault, the silences that one fell into, also of streams it did not concern."""
        pauses: dict[str, list[float]] = defaultdict(list)
        for blow in self.blows:
            gaps = [_gap(answer.arrivals, blow.at) for answer in self.streams]
            pauses[blow.fault.name] += [gap for gap in gaps if gap is not None]
        return dict(sorted(pauses.items()))


def _gap(arrivals: list[float], moment: float) -> float | None:
    """How long a stream that was open at `moment` said nothing around it."""
    for before, after in pairwise(arrivals):
        if before <= moment < after:
            return after - before
    return None


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "nothing"


def _spread(values: list[float]) -> str:
    if not values:
        return "none"
    median, longest = statistics.median(values), max(values)
    return f"median {median:.2f} s, longest {longest:.2f} s, of {len(values)}"
