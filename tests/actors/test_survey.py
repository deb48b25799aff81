"""The cluster is surveyed: every node that lives says what it is."""

from __future__ import annotations

import os

import ray

from actors.survey import survey
from tests.actors.living import ray_session


async def test_every_living_node_says_what_it_is_and_one_that_is_silent_is_left_out() -> None:
    with ray_session():
        (node,) = (await survey()).nodes
        assert node.name == ray.nodes()[0]["NodeID"]
        assert set(node.cpus) <= set(os.sched_getaffinity(0))
        assert node.memory_bytes > 0
        assert (await survey(patience_s=0.0)).nodes == ()
