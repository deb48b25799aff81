"""How much load a policy bears: the speed at which a given share still meets its targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.simulate.experiment import Experiment
from cluster.simulate.figures import Figures

KEPT_SHARE = 0.95
"""A load is borne where so many of the offered requests meet their targets."""

BROKEN_SHARE = 0.6
"""The share at which a policy counts as broken down."""

REFERENCE = "least_loaded"

TOLERANCE = 1.01
"""A load is found to within this factor."""

STEP = 1.5
"""From load to load, until one is borne and the next is not."""

SLOWEST = 2.0**-20

FASTEST = 2.0**20


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest load that a policy bears, and its figures there."""

    speed: float
    figures: Figures


@dataclass(frozen=True, slots=True)
class Study:
    """What each policy bears, and how each does where `REFERENCE` meets only `BROKEN_SHARE`."""

    capacities: tuple[Capacity, ...]
    broken: tuple[Figures, ...]

    @property
    def reference(self) -> Capacity:
        return next(one for one in self.capacities if one.figures.policy == REFERENCE)


def study_capacity(experiment: Experiment, policies: Sequence[str]) -> Study:
    """Search the loads for `policies`, and for `REFERENCE` too where it is not among them.

    The search starts at the experiment's own speed.
    """
    guess, capacities = experiment.shape.speed, []
    for policy in sorted({*policies, REFERENCE}):
        speed = _highest(experiment, policy, KEPT_SHARE, guess)
        guess = speed or guess
        capacities.append(Capacity(speed, experiment.at_speed(guess).run(policy)))
    broken = experiment.at_speed(_highest(experiment, REFERENCE, BROKEN_SHARE, guess))
    return Study(tuple(capacities), tuple(broken.run(one.figures.policy) for one in capacities))


def _highest(experiment: Experiment, policy: str, share: float, guess: float) -> float:
    def met_share(speed: float) -> float:
        return experiment.at_speed(speed).run(policy).every.met_share

    return highest_speed(met_share, share, guess)


def highest_speed(met_share: Callable[[float], float], share: float, guess: float) -> float:
    """The highest speed at which `met_share` is at least `share`, within `TOLERANCE` below.

    Takes `met_share` to fall with speed, as it does but for noise. 0 where the share is out of
    reach however slowly the trace runs.
    """
    low, high = _bracket(met_share, share, guess)
    while low and high / low > TOLERANCE:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if met_share(middle) >= share else (low, middle)
    return low


def _bracket(
    met_share: Callable[[float], float], share: float, guess: float
) -> tuple[float, float]:
    """A speed that keeps the share and one that does not, a factor of `STEP` apart."""
    speed = guess
    if met_share(speed) >= share:
        while speed < FASTEST and met_share(speed * STEP) >= share:
            speed *= STEP
        return speed, speed * STEP
    while speed > SLOWEST:
        speed /= STEP
        if met_share(speed) >= share:
            return speed, speed * STEP
    return 0.0, speed
