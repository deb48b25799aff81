"""From the stories of a run to its figures: what share met its targets, how late, how fairly."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cluster.scheduling_config import SlaClass
from cluster.simulate.simulation import Story

QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Target:
    """What a class promises, seconds; infinite where it promises nothing."""

    ttft_s: float = math.inf
    tpot_s: float = math.inf

    def is_met(self, story: Story) -> bool:
        """Only by a request that was served to its end: one that was refused always misses."""
        return story.is_served and story.ttft_s <= self.ttft_s and story.tpot_s <= self.tpot_s


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """One class, or all. Quantiles (p50, p95, p99, seconds) are of those that were served."""

    offered: int
    served: int
    refused: int
    met: int
    ttft_s: tuple[float, ...]
    tpot_s: tuple[float, ...]

    @property
    def met_share(self) -> float:
        return self.met / self.offered if self.offered else 1.0


@dataclass(frozen=True, slots=True)
class Figures:
    """One policy under one load.

    `goodput_per_s`: requests that met their targets, by the second of arrivals. `hit_rate`: prompt
    tokens found in cache, of all prompt tokens served. `fairness`: Jain's index over tenants of the
    share that met its targets. `decisions_per_s`: leases and refusals by the second of CPU
    time that the decider took, all its events included.
    """

    policy: str
    offered_per_s: float
    goodput_per_s: float
    hit_rate: float
    fairness: float
    decisions_per_s: float
    preemptions: int
    every: ClassFigures
    classes: Mapping[str, ClassFigures]


def target_of(sla: SlaClass) -> Target:
    """What the configuration promises; a class without targets is served in time whenever it is."""
    return Target(sla.ttft_s or math.inf, sla.tpot_s or math.inf)


def class_figures(stories: Collection[Story], targets: Mapping[str, Target]) -> ClassFigures:
    served = [one for one in stories if one.is_served]
    return ClassFigures(
        offered=len(stories),
        served=len(served),
        refused=sum(one.refusal is not None for one in stories),
        met=sum(targets[one.offered.submission.sla].is_met(one) for one in served),
        ttft_s=quantiles([one.ttft_s for one in served]),
        tpot_s=quantiles([one.tpot_s for one in served]),
    )


def by_class(stories: Iterable[Story]) -> dict[str, list[Story]]:
    """Stories by SLA class, classes in order of name."""
    classes: defaultdict[str, list[Story]] = defaultdict(list)
    for story in stories:
        classes[story.offered.submission.sla].append(story)
    return dict(sorted(classes.items()))


def hit_rate(stories: Iterable[Story]) -> float:
    served = [one for one in stories if one.is_served]
    prompt = sum(one.offered.submission.prompt_tokens for one in served)
    return sum(one.cached_tokens for one in served) / prompt if prompt else 0.0


def fairness(stories: Iterable[Story], targets: Mapping[str, Target]) -> float:
    """Jain's index (1984) over tenants of the share of their requests that met its targets."""
    met: defaultdict[str, list[bool]] = defaultdict(list)
    for story in stories:
        submission = story.offered.submission
        met[submission.tenant].append(targets[submission.sla].is_met(story))
    return jain([sum(each) / len(each) for each in met.values()])


def jain(shares: Sequence[float]) -> float:
    """(sum x)^2 / (n * sum x^2): 1 where all are equal, 1/n where one has everything."""
    squares = len(shares) * sum(share * share for share in shares)
    return sum(shares) ** 2 / squares if squares else 1.0


def quantiles(values: Iterable[float]) -> tuple[float, ...]:
    """`QUANTILES` by nearest rank; infinite where there are no values."""
    ranked = sorted(values)
    if not ranked:
        return tuple(math.inf for _ in QUANTILES)
    return tuple(ranked[max(math.ceil(each * len(ranked)) - 1, 0)] for each in QUANTILES)
