"""Which of Ray's nodes there are: alive, answering, and not to be drained."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import ray

KNOCK_S = 1.0
"""A node that takes no connection for so long is not there."""

DRAINING_S = 2.0
"""Longest wait for Ray's word on who is drained."""

Node = Mapping[str, Any]
"""As `ray.nodes` lists it."""


async def living_nodes() -> list[Node]:
    """Those that Ray lists as alive and that take a connection: Ray itself notices some fifteen
    seconds late that a node has died."""
    listed = [node for node in await asyncio.to_thread(ray.nodes) if node["Alive"]]
    there = await asyncio.gather(*map(answers, listed))
    return [node for node, answers in zip(listed, there, strict=True) if answers]


def draining_nodes() -> frozenset[str]:
    """The ids of nodes that Ray drains (`ray drain-node`, or an autoscaler); blocks."""
    # What Serve asks too, to move its replicas; there is no public way.
    client = ray._raylet.GcsClient(address=ray.get_runtime_context().gcs_address)
    return frozenset(client.get_draining_nodes(timeout=DRAINING_S))


def offers(node: Node, asked: Mapping[str, float]) -> bool:
    """Whether its Ray resources, were they all free, would do for what is asked."""
    return all(node["Resources"].get(name, 0.0) >= amount for name, amount in asked.items())


async def answers(node: Node) -> bool:
    """Whether somebody is there who takes a connection."""
    try:
        async with asyncio.timeout(KNOCK_S):
            _, writer = await asyncio.open_connection(
                node["NodeManagerAddress"], node["NodeManagerPort"]
            )
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
