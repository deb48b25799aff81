"""The topology of the whole cluster: each of Ray's nodes is asked what it is."""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.devices.discovery import discover
from actors.nodes import living_nodes
from cluster.topology import Node, Topology

PATIENCE_S = 20.0

NOTHING = Topology(())


async def survey(patience_s: float = PATIENCE_S, known: Topology = NOTHING) -> Topology:
    """The living nodes, called by Ray's node ids, as each sees itself at this moment; those that
    are `known` are not asked again.

    One that does not answer within `patience_s` seconds is left out.
    """
    ids = sorted(node["NodeID"] for node in await living_nodes())
    answers = await asyncio.gather(*(_ask(node, patience_s, known) for node in ids))
    return Topology(tuple(node for node in answers if node is not None))


async def _ask(node: str, patience_s: float, known: Topology) -> Node | None:
    seen = known.node(node)
    if seen is not None:
        return seen
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    task: Any = ray.remote(discover).options(num_cpus=0, scheduling_strategy=there)
    try:
        async with asyncio.timeout(patience_s):
            answer: Node = await task.remote(node)
    except (RayError, TimeoutError):
        return None
    return answer
