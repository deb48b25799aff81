"""Finds the actors that an earlier owner left behind, so that its successor goes on with them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError

from actors.identity import Identity
from actors.lives import Life, Patience, bury
from actors.naming import SCHEDULER, ActorAddress, names_in, shard_index, shard_model
from cluster.errors import NotReady

AGAIN_S = 0.1
"""Until an actor that Ray cannot reach is asked again."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """An actor that bears one of the fleet's names, and what it says it is: None where it is mute,
    because it loads, or hangs, or has not begun."""

    name: str
    handle: Any
    identity: Identity | None

    @property
    def model(self) -> str | None:
        return None if self.name == SCHEDULER else shard_model(self.name)

    @property
    def index(self) -> int:
        return shard_index(self.name) or 0

    def life(self, load_timeout_s: float = 0.0) -> Life:
        """To go on with; a shard that has not loaded yet has so many seconds for it."""
        if self.identity is None:
            return Life(self.handle, {})
        shard, loaded = self.identity.shard, self.identity.loaded
        return Life(self.handle, {}, shard, load_timeout_s, loaded)


async def find_living(namespace: str, answer_s: float) -> list[Found]:
    """Every scheduler and shard there is; `answer_s` are left to each to say what it is."""
    addresses = await _addresses(namespace)
    looks = await asyncio.gather(*(look_at(address, answer_s) for address in addresses))
    return [found for found in looks if found is not None]


async def look_at(address: ActorAddress, answer_s: float) -> Found | None:
    """Who bears the name; None where nobody lives who does."""
    try:
        handle = await address.look_up()
    except NotReady:
        return None
    try:
        async with asyncio.timeout(answer_s):
            return Found(address.name, handle, await _identity(handle))
    except ActorDiedError as error:
        logger.warning("%s is dead: %s", address.name, error)
        ray.kill(handle)  # Ray keeps the name of a dead one until it is killed too
        return None
    except (TimeoutError, RayError):
        return Found(address.name, handle, None)


async def _identity(handle: Any) -> Identity:
    """What it says it is. That a connection is lost says nothing of who is at its other end."""
    while True:
        try:
            identity: Identity = await handle.identity.remote()
        except ActorUnavailableError:
            await asyncio.sleep(AGAIN_S)
        else:
            return identity


async def end_living(namespace: str, patience: Patience) -> None:
    """See to it that every scheduler and shard there is dies, whoever made it; none is asked."""
    addresses = await _addresses(namespace)
    looks = await asyncio.gather(*(look_at(address, 0.0) for address in addresses))
    await asyncio.gather(*(bury(found.life(), patience) for found in looks if found is not None))


async def _addresses(namespace: str) -> list[ActorAddress]:
    """Of all in the namespace whose names are the fleet's to give."""
    names = await names_in(namespace)
    ours = [name for name in names if name == SCHEDULER or shard_index(name) is not None]
    return [ActorAddress(name, namespace) for name in ours]
