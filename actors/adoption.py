"""Finds the actors that an earlier owner left behind, so that its successor goes on with them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

import ray
from ray.exceptions import RayError

from actors.identity import Identity
from actors.lives import Life
from actors.naming import SCHEDULER, ActorAddress, shard_index
from cluster.errors import NotReady

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """A living actor of the namespace, and what it says it is."""

    name: str
    index: int
    life: Life
    identity: Identity


async def find_living(namespace: str, answer_s: float) -> list[Found]:
    """Every scheduler and shard there is. Who does not answer within `answer_s` is killed: nobody
    could tell what it is, and its name is needed."""
    entries = await asyncio.to_thread(ray.util.list_named_actors, all_namespaces=True)
    names = [one["name"] for one in entries if one["namespace"] == namespace]
    looks = [_look_at(ActorAddress(name, namespace), answer_s) for name in sorted(names)]
    return [found for found in await asyncio.gather(*looks) if found is not None]


async def _look_at(address: ActorAddress, answer_s: float) -> Found | None:
    index = 0 if address.name == SCHEDULER else shard_index(address.name)
    if index is None:
        return None
    with contextlib.suppress(NotReady):
        handle = await address.look_up()
        try:
            async with asyncio.timeout(answer_s):
                identity: Identity = await handle.identity.remote()
        except (RayError, TimeoutError) as error:
            logger.warning("%s does not say what it is: %s", address.name, error)
            ray.kill(handle)
        else:
            life = Life(handle, {}, identity.shard, loaded=identity.loaded)
            return Found(address.name, index, life, identity)
    return None
