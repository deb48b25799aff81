"""What a run found: latency by windows, the shards over time, and whether that is as promised."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from benchmarks.metrics import Timeline, percentile

WINDOW_S = 10.0


@dataclass(frozen=True, slots=True)
class Sample:
    """What `/admin/stats` told of the model, `at_s` seconds after the start.

    `delay` and `tpot` are what the autoscaler saw: p95 over what the targets allow.
    """

    at_s: float
    shards: int
    queued: int
    running: int
    utilization: float
    delay: float | None
    tpot: float | None


@dataclass(frozen=True, slots=True)
class Targets:
    """Seconds: of the first token, waiting included, and of each further one."""

    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is promised: a warm-up takes so long at most, and the number of shards turns, from
    growing to shrinking or back, so often."""

    warm_up_s: float
    turns: int


@dataclass(frozen=True, slots=True)
class Window:
    """`WINDOW_S` seconds from `at_s` on: of what was asked then, p95s in seconds, None without."""

    at_s: float
    requests: int
    tokens: int
    ttft_p95: float | None
    tpot_p95: float | None
    late: bool


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Windows beyond a target, one after the other: from the first of them `from_s` until
    `late_until_s`; `served_at_s`: when the last of the shards came that joined meanwhile."""

    from_s: float
    late_until_s: float
    served_at_s: float | None

    def keeps(self, longest_s: float) -> bool:
        """Whether a shard came in time, and none was late that was asked once it served."""
        if self.served_at_s is None or self.served_at_s - self.from_s > longest_s:
            return False
        return self.late_until_s - WINDOW_S < self.served_at_s


@dataclass(frozen=True)
class Findings:
    """All of a run."""

    windows: tuple[Window, ...]
    samples: tuple[Sample, ...]
    warm_ups: tuple[WarmUp, ...]
    turns: int
    requests: int
    failed: tuple[str, ...]

    def faults(self, bounds: Bounds) -> list[str]:
        """What is not as promised."""
        told = [f"failed: {reason}" for reason in self.failed]
        told += [
            f"p95 beyond its target from {one.from_s:.0f} s until {one.late_until_s:.0f} s"
            for one in self.warm_ups
            if not one.keeps(bounds.warm_up_s)
        ]
        if self.turns > bounds.turns:
            told.append(f"the number of shards turned {self.turns} times")
        counts = [sample.shards for sample in self.samples]
        if not counts or not counts[0] < max(counts) > counts[-1]:
            told.append("shards did not come and go")
        return told


def find(
    asked: Sequence[tuple[float, Timeline]], samples: Sequence[Sample], targets: Targets
) -> Findings:
    """From what was asked when, and what the cluster told meanwhile."""
    windows = tuple(_windows(asked, targets))
    return Findings(
        windows=windows,
        samples=tuple(samples),
        warm_ups=tuple(_warm_ups(windows, samples)),
        turns=turns([sample.shards for sample in samples]),
        requests=len(asked),
        failed=tuple(filter(None, (_fault(timeline) for _, timeline in asked))),
    )


def turns(counts: Iterable[int]) -> int:
    """How often a number that grew shrinks next, or the other way round."""
    steps = [later - earlier for earlier, later in pairwise(counts) if later != earlier]
    return sum(a * b < 0 for a, b in pairwise(steps))


def _fault(timeline: Timeline) -> str | None:
    if timeline.error is not None:
        return timeline.error
    if timeline.tokens < timeline.asked:
        return f"{timeline.tokens} of {timeline.asked} tokens"
    return None


def _windows(asked: Sequence[tuple[float, Timeline]], targets: Targets) -> Iterator[Window]:
    by_window: dict[int, list[Timeline]] = {}
    for at_s, timeline in asked:
        by_window.setdefault(int(at_s / WINDOW_S), []).append(timeline)
    for number in range(max(by_window, default=-1) + 1):
        members = by_window.get(number, [])
        served = [one for one in members if one.error is None]
        ttft = _p95([one.ttft for one in served])
        tpot = _p95([one.tpot for one in served if one.tpot is not None])
        yield Window(
            at_s=number * WINDOW_S,
            requests=len(members),
            tokens=sum(one.tokens for one in served),
            ttft_p95=ttft,
            tpot_p95=tpot,
            late=(ttft or 0.0) > targets.ttft_s or (tpot or 0.0) > targets.tpot_s,
        )


def _p95(values: Sequence[float]) -> float | None:
    return percentile(values, 95) if values else None


def _warm_ups(windows: Sequence[Window], samples: Sequence[Sample]) -> Iterator[WarmUp]:
    for late, run in groupby(windows, lambda window: window.late):
        if late:
            begins = [window.at_s for window in run]
            end_s = begins[-1] + WINDOW_S
            yield WarmUp(begins[0], end_s, _joined(samples, begins[0], end_s))


def _joined(samples: Sequence[Sample], begin_s: float, end_s: float) -> float | None:
    """When the last of the shards came that joined within that time."""
    came = [b.at_s for a, b in pairwise(samples) if b.shards > a.shards]
    return max((at_s for at_s in came if begin_s <= at_s < end_s), default=None)
