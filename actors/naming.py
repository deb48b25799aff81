"""Ray names of the actors, and how to find who bears one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import ray

from cluster.errors import NotReady

SCHEDULER = "scheduler"


def shard_name(model: str, index: int) -> str:
    return f"{model}/shard-{index}"


def shard_index(name: str) -> int | None:
    """The inverse as far as the index goes; None where no shard is called so."""
    _, found, index = name.rpartition("/shard-")
    return int(index) if found and index.isdecimal() else None


def shard_model(name: str) -> str:
    """The model of the shard that is called so."""
    return name.rpartition("/shard-")[0]


async def names_in(namespace: str) -> list[str]:
    """The names that actors bear there, sorted."""
    entries = await asyncio.to_thread(ray.util.list_named_actors, all_namespaces=True)
    return sorted(one["name"] for one in entries if one["namespace"] == namespace)


@dataclass(frozen=True, slots=True)
class ActorAddress:
    """A name in a namespace. Who answers to it changes when an actor is replaced."""

    name: str
    namespace: str

    async def look_up(self) -> Any:
        """The handle of the present bearer. Raises NotReady where there is none.

        The lookup asks Ray's control store and may block, so it stays off the event loop.
        """
        try:
            return await asyncio.to_thread(ray.get_actor, self.name, self.namespace)
        except ValueError as error:
            raise NotReady(f"no actor is called {self.name}", retry_after_s=1.0) from error
