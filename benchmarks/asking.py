"""Requests as a shard is given them, for benchmarks of the engine alone."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.messages import (
    Assignment,
    Emitted,
    Lease,
    Reason,
    Request,
    Sampling,
    ShardRef,
    Stopping,
)

SHARD = ShardRef(shard="measured", model="measured", actor="measured", incarnation="0")
GREEDY = Sampling(temperature=0.0)


def assignment(
    name: str,
    prompt: Sequence[int],
    output: int,
    sampling: Sampling = GREEDY,
    known: tuple[int, ...] = (),
) -> Assignment:
    """`output` tokens after `prompt`, whatever they are; `known` are out of another engine."""
    stopping = Stopping(max_tokens=output)
    request = Request(name, "measured", "measured", "P1", tuple(prompt), sampling, stopping)
    lease = Lease(name, 1, SHARD, 0, Reason(0.0, ()))
    return Assignment(lease, request, b"measured", (Emitted(0, known),) if known else ())
