"""A simulated cluster that grows and shrinks as the fleet would have it, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

from cluster.autoscaling import Autoscaler
from cluster.autoscaling_config import AutoscalingConfig
from cluster.scheduling import SchedulerBrain
from cluster.simulate.experiment import Experiment
from cluster.simulate.figures import ClassFigures, Target, by_class, class_figures, target_of
from cluster.simulate.shards import SimulatedShard
from cluster.simulate.simulation import Simulation, Story
from cluster.simulate.workload import MODEL, offered_load
from cluster.stats import ModelStats

LOOK_S = 1.0
"""Between two looks of the autoscaler."""

BUCKET_S = 30.0
"""Of the timeline."""


@dataclass(frozen=True, slots=True)
class Moment:
    """`BUCKET_S` seconds from `at_s` on.

    `late`: the 95th percentile, over the requests that came then and had a target, of the time
    over its target, of first or further tokens, whichever is worse; None without such requests.
    """

    at_s: float
    offered_per_s: float
    serving: int
    wanted: int
    utilization: float
    late: float | None


@dataclass(frozen=True, slots=True)
class ScaledRun:
    """What an autoscaled cluster did with a load.

    `shard_s`: seconds of shards, each from when it was asked for until it got no more leases.
    `changes`: when, how many were wanted from then on, and why.
    """

    moments: tuple[Moment, ...]
    every: ClassFigures
    classes: Mapping[str, ClassFigures]
    shard_s: float
    changes: tuple[tuple[float, int, str], ...]


@dataclass(slots=True, eq=False)
class Tenure:
    """A shard from when it was asked for until it is not wanted any more."""

    shard: SimulatedShard
    asked_at: float
    left_at: float = math.inf
    serves: bool = False


class SimulatedFleet:
    """Keeps as many shards as the autoscaler wants; a new one serves `startup_s` after."""

    def __init__(self, experiment: Experiment, config: AutoscalingConfig, startup_s: float) -> None:
        self._experiment = experiment
        self._startup_s = startup_s
        device = experiment.device
        places = min(device.max_num_seqs, device.max_batch_tokens)
        self._autoscaler = Autoscaler(config, experiment.shards, places)
        self._brain = SchedulerBrain(experiment.scheduling, epoch=1)
        self._numbers = count()
        self._living: list[Tenure] = []
        self.gone: list[Tenure] = []
        self.looks: list[tuple[float, int, int, float]] = []
        self.changes: list[tuple[float, int, str]] = []
        first = [self._new(0.0) for _ in range(self._autoscaler.wanted)]
        for tenure in first:
            tenure.serves = True
        load = [
            replace(one, submission=replace(one.submission, wakes=config.may_sleep))
            for one in offered_load(experiment.rows, experiment.shape)
        ]
        shards = [tenure.shard for tenure in first]
        self.simulation = Simulation(
            load, shards, self._brain, experiment.timing, experiment.stopwatch
        )
        self.simulation.call(0.0, self._look)

    @property
    def tenures(self) -> Iterable[Tenure]:
        return (*self.gone, *self._living)

    def _look(self, now: float) -> None:
        stats = self._brain.demand(now).get(MODEL, ModelStats())
        wanted = self._autoscaler.look(stats, now)
        self.looks.append((now, stats.shards, self._autoscaler.wanted, stats.utilization))
        if wanted is not None:
            self.changes.append((now, wanted.shards, wanted.why))
            self._follow(wanted.shards, now)
        self.simulation.call(now + LOOK_S, self._look)

    def _follow(self, wanted: int, now: float) -> None:
        while len(self._living) > wanted:
            self._leave(self._living.pop(), now)
        while len(self._living) < wanted:
            self._begin(self._new(now), now)

    def _new(self, now: float) -> Tenure:
        name, page = f"shard-{next(self._numbers)}", self._experiment.shape.page_tokens
        self._living.append(
            Tenure(SimulatedShard(name, self._experiment.device, page), asked_at=now)
        )
        return self._living[-1]

    def _begin(self, tenure: Tenure, now: float) -> None:
        def serve(_now: float) -> None:
            if tenure.left_at == math.inf:
                tenure.serves = True
                self.simulation.join(tenure.shard)

        self.simulation.call(now + self._startup_s, serve)

    def _leave(self, tenure: Tenure, now: float) -> None:
        tenure.left_at = now
        self.gone.append(tenure)
        if tenure.serves:
            self.simulation.retire(tenure.shard)


def scaled_run(experiment: Experiment, config: AutoscalingConfig, startup_s: float) -> ScaledRun:
    """Run the experiment's load, beginning with its shards, and check the books."""
    fleet = SimulatedFleet(experiment, config, startup_s)
    fleet.simulation.run()
    fleet.simulation.verify()
    stories = list(fleet.simulation.stories.values())
    targets = {sla.name: target_of(sla) for sla in experiment.scheduling.classes}
    ended_s = max(one.offered.arrival_s for one in stories)
    return ScaledRun(
        moments=tuple(_moments(fleet, stories, targets)),
        every=class_figures(stories, targets),
        classes={n: class_figures(each, targets) for n, each in by_class(stories).items()},
        shard_s=sum(min(one.left_at, ended_s) - one.asked_at for one in fleet.tenures),
        changes=tuple(fleet.changes),
    )


def _moments(
    fleet: SimulatedFleet, stories: Iterable[Story], targets: Mapping[str, Target]
) -> Iterator[Moment]:
    came: dict[int, list[Story]] = {}
    for story in stories:
        came.setdefault(int(story.offered.arrival_s / BUCKET_S), []).append(story)
    looks = {int(look[0] / BUCKET_S): look for look in fleet.looks}
    for bucket in range(max(came) + 1):
        _, serving, wanted, utilization = looks[bucket]
        members = came.get(bucket, [])
        late = [ratio for one in members if (ratio := _over_target(one, targets)) is not None]
        yield Moment(
            at_s=bucket * BUCKET_S,
            offered_per_s=len(members) / BUCKET_S,
            serving=serving,
            wanted=wanted,
            utilization=utilization,
            late=sorted(late)[math.ceil(0.95 * len(late)) - 1] if late else None,
        )


def _over_target(story: Story, targets: Mapping[str, Target]) -> float | None:
    """Of the worse of its two times, 1 being just in time; None where nothing was promised."""
    target = targets[story.offered.submission.sla]
    if math.isinf(target.ttft_s) and math.isinf(target.tpot_s):
        return None
    if not story.is_served:
        return math.inf
    return max(story.ttft_s / target.ttft_s, story.tpot_s / target.tpot_s)
