"""One trace, one cluster, several policies: the same load under each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from cluster.scheduling import SchedulerBrain
from cluster.scheduling_config import SchedulingConfig
from cluster.simulate.baselines import LeastLoaded, LeastRequests, PrefixOnly, RoundRobin
from cluster.simulate.costs import Device
from cluster.simulate.figures import (
    Figures,
    by_class,
    class_figures,
    fairness,
    hit_rate,
    target_of,
)
from cluster.simulate.shards import SimulatedShard
from cluster.simulate.simulation import Decider, Simulation, Timing
from cluster.simulate.traces import TraceRow
from cluster.simulate.workload import Shape, offered_load


def _brain(config: SchedulingConfig) -> Decider:
    return SchedulerBrain(config, epoch=1)


POLICIES: Mapping[str, Callable[[SchedulingConfig], Decider]] = MappingProxyType(
    {
        "ours": _brain,
        "least_loaded": LeastLoaded,
        "least_requests": LeastRequests,
        "prefix_only": PrefixOnly,
        "round_robin": RoundRobin,
    }
)


@dataclass(frozen=True, slots=True)
class Experiment:
    """Everything that decides a run but the policy; `stopwatch` reads the CPU time in seconds."""

    rows: Sequence[TraceRow]
    shards: int
    device: Device
    shape: Shape
    stopwatch: Callable[[], float]
    scheduling: SchedulingConfig = field(default_factory=SchedulingConfig)
    timing: Timing = field(default_factory=Timing)

    def at_speed(self, speed: float) -> Experiment:
        return replace(self, shape=replace(self.shape, speed=speed))

    def run(self, policy: str) -> Figures:
        """Simulate `policy` and check the books of what it did."""
        page, names = self.shape.page_tokens, range(self.shards)
        shards = [SimulatedShard(f"shard-{name}", self.device, page) for name in names]
        load = offered_load(self.rows, self.shape)
        decider = POLICIES[policy](self.scheduling)
        simulation = Simulation(load, shards, decider, self.timing, self.stopwatch)
        simulation.run()
        simulation.verify()
        return self._figures(policy, simulation, sum(one.engine.preemptions for one in shards))

    def _figures(self, policy: str, simulation: Simulation, preemptions: int) -> Figures:
        stories = simulation.stories.values()
        lasted_s = max(1.0, *(one.offered.arrival_s for one in stories))
        targets = {sla.name: target_of(sla) for sla in self.scheduling.classes}
        every = class_figures(stories, targets)
        return Figures(
            policy=policy,
            offered_per_s=len(stories) / lasted_s,
            goodput_per_s=every.met / lasted_s,
            hit_rate=hit_rate(stories),
            fairness=fairness(stories, targets),
            decisions_per_s=simulation.decisions / max(simulation.decider_s, 1e-9),
            preemptions=preemptions,
            every=every,
            classes={
                name: class_figures(members, targets) for name, members in by_class(stories).items()
            },
        )
