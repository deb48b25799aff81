"""How much load a policy bears: the speed at which a given share still meets its targets."""

from __future__ import annotations

from collections.abc import Callable

TOLERANCE = 1.02
"""A capacity is known to within this factor."""

FASTEST = 2.0**20


def highest_speed(met_share: Callable[[float], float], share: float, guess: float) -> float:
    """The highest speed at which `met_share` is at least `share`, within `TOLERANCE` below.

    Takes `met_share` to fall with speed, as it does but for noise. 0 where the share is out of
    reach however slow the trace runs.
    """
    low, high = _bracket(met_share, share, guess)
    while low and high / low > TOLERANCE:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if met_share(middle) >= share else (low, middle)
    return low


def _bracket(
    met_share: Callable[[float], float], share: float, guess: float
) -> tuple[float, float]:
    """A speed that keeps the share and one that does not, at most a factor of 1.5 apart."""
    step, speed = 1.5, guess
    if met_share(speed) >= share:
        while speed < FASTEST and met_share(speed * step) >= share:
            speed *= step
        return speed, speed * step
    while speed > 1 / FASTEST and met_share(speed / step) < share:
        speed /= step
    return (speed / step, speed) if speed > 1 / FASTEST else (0.0, speed)
