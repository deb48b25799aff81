"""From the times at which a run's text arrived to the figures of the table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

MS = 1e3


@dataclass(frozen=True, slots=True)
class Timeline:
    """One request as its client saw it; times are seconds on the client's clock.

    `sent` is when the request went out, its place being free; `arrivals` are the chunks that held
    text; `tokens` is what the server counted, or the number of chunks where it counts nothing.
    A request that failed has its reason in `error`, and counts in no figure but `failed`.
    """

    sent: float
    arrivals: tuple[float, ...] = ()
    tokens: int = 0
    asked: int = 0
    error: str | None = None

    @property
    def ttft(self) -> float:
        """Time to first token."""
        return self.arrivals[0] - self.sent

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; one token alone has none."""
        if self.tokens < 2:
            return None
        return (self.arrivals[-1] - self.arrivals[0]) / (self.tokens - 1)

    @property
    def gaps(self) -> Iterable[float]:
        """Inter-token latencies: the single waits between chunks."""
        return (later - earlier for earlier, later in pairwise(self.arrivals))


@dataclass(frozen=True, slots=True)
class Figures:
    """One run of one workload; latencies are milliseconds, nan where there is nothing to measure.

    `short` requests ended before they had the tokens they asked for.
    """

    output_tok_s: float
    request_s: float
    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    tpot_mean: float
    tpot_p99: float
    itl_p99: float
    wall_s: float
    output_tokens: int
    done: int
    failed: int
    short: int


def summarize(timelines: Sequence[Timeline], wall_s: float) -> Figures:
    """The figures of a run that took `wall_s` seconds from the first request to the last end."""
    done = [one for one in timelines if one.error is None]
    ttft = [one.ttft * MS for one in done]
    tpot = [one.tpot * MS for one in done if one.tpot is not None]
    tokens = sum(one.tokens for one in done)
    return Figures(
        output_tok_s=tokens / wall_s,
        request_s=len(done) / wall_s,
        ttft_mean=_mean(ttft),
        ttft_p50=percentile(ttft, 50),
        ttft_p99=percentile(ttft, 99),
        tpot_mean=_mean(tpot),
        tpot_p99=percentile(tpot, 99),
        itl_p99=percentile([gap * MS for one in done for gap in one.gaps], 99),
        wall_s=wall_s,
        output_tokens=tokens,
        done=len(done),
        failed=len(timelines) - len(done),
        short=sum(one.tokens < one.asked for one in done),
    )


def percentile(values: Iterable[float], percent: float) -> float:
    """Between the two nearest ranks by straight line, as numpy does by default."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    place = (len(ordered) - 1) * percent / 100
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return below + (above - below) * (place - math.floor(place))


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan
