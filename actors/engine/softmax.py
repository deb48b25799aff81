"""Scores of four queries turned into the weights of their tokens, lane by lane."""

from __future__ import annotations

from typing import Any

import numpy as np

from actors.engine.emit import LANES
from actors.engine.jit import Array, helper
from actors.engine.lanes import (
    QUERIES,
    fill,
    larger,
    largest,
    load,
    nearest,
    power_of_two,
    store,
    total,
)

LEAST = np.float32(-1e30)
LOG2_E = np.float32(1.4426950408889634)
_EXP_SERIES = tuple(
    np.float32(term)
    for term in (1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1.0)
)


@helper
def _exp(numbers: Any) -> Any:
    """e ** `numbers`, lane by lane, for numbers up to 0, within 2e-7.

    2 ** x by its Taylor polynomial of degree 6 around the nearest integer.
    """
    power = larger(numbers * fill(LOG2_E), fill(np.float32(-126.0)))
    whole = nearest(power)
    rest = power - whole
    series = fill(np.float32(1.5403530e-4))
    for term in _EXP_SERIES:
        series = series * rest + fill(term)
    return series * power_of_two(whole)


@helper
def cap(scores: Array, count: int, softcap: np.float32) -> None:
    for token in range(count):
        for query in range(QUERIES):
            scores[token, query] = softcap * np.float32(np.tanh(scores[token, query] / softcap))


@helper
def weigh(scores: Array, weight: Array) -> None:
    """Turn scores into weights relative to each query's largest; fill `weight` with their sums."""
    most = fill(LEAST)
    for at in range(0, scores.size, LANES):
        most = larger(most, load(scores, at))
    most = largest(most)
    added = fill(np.float32(0.0))
    for at in range(0, scores.size, LANES):
        weights = _exp(load(scores, at) - most)
        store(scores, at, weights)
        added += weights
    store(weight, 0, total(added))
