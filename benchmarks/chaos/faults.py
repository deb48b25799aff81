"""What can happen to a process of the application, and a list of it drawn from a seed.

Nothing here waits for a repair: a fault strikes whoever bears a part's name now.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import psutil
import ray

from actors.naming import SCHEDULER, shard_name
from tests.system.application import MODEL, SCHEDULING, Application

TIMEOUT_S = float(SCHEDULING["shard_timeout_s"])
"""After so long a silent process is taken to be lost."""

ANSWER_S = 1.0
"""A process that does not tell its id within that is stopped, and struck already."""


@dataclass(frozen=True)
class Victim:
    """A process, and the actor that it is, if it is one."""

    pid: int
    actor: Any = None


Strike = Callable[[Victim, Random], Awaitable[None]]


@dataclass(frozen=True)
class Fault:
    """`part` is what it happens to. `moves`: whether streams have to go on elsewhere then."""

    name: str
    part: str
    strike: Strike
    share: int
    moves: bool = False
    deadly: bool = True


async def kill(victim: Victim, _chance: Random) -> None:
    """SIGKILL."""
    psutil.Process(victim.pid).kill()


async def stop(victim: Victim, chance: Random) -> None:
    """SIGSTOP for about as long as silence is borne, up to twice that: it wakes as one that was
    given up, or is killed before."""
    await _suspend(victim, TIMEOUT_S * chance.uniform(0.9, 2.0))


async def freeze(victim: Victim, chance: Random) -> None:
    """SIGSTOP for less than that: as one that is out of reach for a while, and comes back."""
    await _suspend(victim, TIMEOUT_S * chance.uniform(0.1, 0.6))


async def _suspend(victim: Victim, seconds: float) -> None:
    process = psutil.Process(victim.pid)
    process.suspend()
    await asyncio.sleep(seconds)
    process.resume()


async def cut(victim: Victim, _chance: Random) -> None:
    """Every TCP connection that it has breaks, with what is on its way; new ones succeed."""
    with contextlib.suppress(ray.exceptions.RayError):  # the answer's connection breaks as well
        await victim.actor.__ray_call__.remote(_break_connections)


def _break_connections(_actor: Any) -> None:
    for connection in psutil.Process().net_connections("tcp"):
        if connection.fd >= 0 and connection.status == psutil.CONN_ESTABLISHED:
            with socket.socket(fileno=os.dup(connection.fd)) as end, contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


FAULTS = (
    Fault("killed shard", "shard", kill, share=8, moves=True),
    Fault("stopped shard", "shard", stop, share=3, moves=True),
    Fault("frozen shard", "shard", freeze, share=2, deadly=False),
    Fault("cut shard", "shard", cut, share=2, deadly=False),
    Fault("killed scheduler", "scheduler", kill, share=3),
    Fault("stopped scheduler", "scheduler", stop, share=1),
    Fault("killed Router", "Router", kill, share=3),
    Fault("killed Fleet", "Fleet", kill, share=1),
)


def draw(kills: int, chance: Random) -> list[Fault]:
    """Faults in a random order, by their shares, until `kills` of them were deadly."""
    drawn: list[Fault] = []
    while sum(fault.deadly for fault in drawn) < kills:
        drawn += chance.choices(FAULTS, [fault.share for fault in FAULTS])
    return drawn


async def find(application: Application, part: str, shards: int, chance: Random) -> Victim | None:
    """Any living process of that part; None where none can be struck at this moment."""
    if part in ("Router", "Fleet"):
        replicas = application.replicas(part)
        return Victim(chance.choice(replicas)) if replicas else None
    name = SCHEDULER if part == "scheduler" else shard_name(MODEL, chance.randrange(shards))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            # One that is stopped while it loads is missed only much later.
            if part == "shard" and not await application.serves(name):
                return None
            pid = await application.pid(name)
            return None if pid is None else Victim(pid, application.actor(name))
    return None
