"""What can happen to what the application runs on, and a list of it drawn from a seed.

Nothing here waits for a repair: a fault strikes whoever bears a part's name now.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psutil
import ray

from actors.naming import SCHEDULER, shard_name
from benchmarks.chaos.site import Site
from tests.system.application import MODEL, SCHEDULING
from tests.system.network import Machine

TIMEOUT_S = float(SCHEDULING["shard_timeout_s"])
"""After so long a silent process is taken to be lost."""

ANSWER_S = 1.0
"""A process that does not tell its id within that is stopped, and struck already."""


BALLAST = bytes(4096)


@dataclass(frozen=True)
class Process:
    """And the actor that it is, if it is one. Two of one id are the same."""

    pid: int
    actor: Any = field(default=None, compare=False)


Victim = Process | Path | Machine
Strike = Callable[[Any, Random], Awaitable[None]]
"""Returns once what it did is undone."""


@dataclass(frozen=True)
class Fault:
    """`part` is what it happens to; of what is `deadly` something dies, of others it need not."""

    name: str
    part: str
    strike: Strike
    share: int
    deadly: bool = True


async def kill(victim: Process, _chance: Random) -> None:
    """SIGKILL."""
    psutil.Process(victim.pid).kill()


async def stop(victim: Process, chance: Random) -> None:
    """SIGSTOP for about as long as silence is borne, up to twice that: it wakes as one that was
    given up, or is killed before."""
    await _suspend(victim, TIMEOUT_S * chance.uniform(0.9, 2.0))


async def freeze(victim: Process, chance: Random) -> None:
    """SIGSTOP for less than that: as one that is out of reach for a while, and comes back."""
    await _suspend(victim, TIMEOUT_S * chance.uniform(0.1, 0.6))


async def _suspend(victim: Process, seconds: float) -> None:
    process = psutil.Process(victim.pid)
    process.suspend()
    try:
        await asyncio.sleep(seconds)
    finally:
        process.resume()


async def starve(victim: Process, chance: Random) -> None:
    """Memory is full for it, for as long as silence is borne at most: what it asks the kernel for
    beyond what it has is refused, wherever in its code that is."""
    process = psutil.Process(victim.pid)
    usual = process.rlimit(psutil.RLIMIT_AS)
    process.rlimit(psutil.RLIMIT_AS, (process.memory_info().vms, usual[1]))
    try:
        await asyncio.sleep(TIMEOUT_S * chance.uniform(0.2, 1.0))
    finally:
        process.rlimit(psutil.RLIMIT_AS, usual)


async def fill(disk: Path, chance: Random) -> None:
    """Nothing more can be written where Ray and all its processes write, for up to twice as long
    as silence is borne."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # the disk is full, or was before
            ballast = held.enter_context(tempfile.TemporaryFile(dir=disk, buffering=0))
            while True:
                ballast.write(BALLAST)
        await asyncio.sleep(TIMEOUT_S * chance.uniform(0.5, 2.0))


async def unplug(machine: Machine, chance: Random) -> None:
    """It is cut off from all others for a while, up to twice as long as silence is borne: what
    runs there lives, and comes back."""
    with machine.unplugged():
        await asyncio.sleep(TIMEOUT_S * chance.uniform(0.2, 2.0))


async def cut(victim: Process, _chance: Random) -> None:
    """Every TCP connection that it has breaks, with what is on its way; new ones succeed."""
    with contextlib.suppress(ray.exceptions.RayError):  # the answer's connection breaks as well
        await victim.actor.__ray_call__.remote(_break_connections)


def _break_connections(_actor: Any) -> None:
    for connection in psutil.Process().net_connections("tcp"):
        if connection.fd >= 0 and connection.status == psutil.CONN_ESTABLISHED:
            with socket.socket(fileno=os.dup(connection.fd)) as end, contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


FAULTS = (
    Fault("killed shard", "shard", kill, share=8),
    Fault("stopped shard", "shard", stop, share=3),
    Fault("frozen shard", "shard", freeze, share=2, deadly=False),
    Fault("cut shard", "shard", cut, share=2, deadly=False),
    Fault("starved shard", "shard", starve, share=2, deadly=False),
    Fault("starved scheduler", "scheduler", starve, share=1, deadly=False),
    Fault("full disk", "disk", fill, share=2, deadly=False),
    Fault("unplugged machine", "machine", unplug, share=3, deadly=False),
    Fault("killed scheduler", "scheduler", kill, share=3),
    Fault("stopped scheduler", "scheduler", stop, share=1),
    Fault("killed Router", "Router", kill, share=3),
    Fault("killed Fleet", "Fleet", kill, share=1),
)


def draw(kills: int, possible: Collection[Fault], chance: Random) -> list[Fault]:
    """Of these faults some in a random order, by their shares, until `kills` were deadly; any count
    where none is."""
    counted = {fault.name for fault in possible if fault.deadly} or {one.name for one in possible}
    shares = [fault.share for fault in possible]
    drawn: list[Fault] = []
    while sum(fault.name in counted for fault in drawn) < kills:
        drawn += chance.choices(list(possible), shares)
    return drawn


def possible(site: Site, names: Collection[str] = ()) -> list[Fault]:
    """What can happen there; only what is called one of `names`, if any are given."""
    return [one for one in FAULTS if one.part in site.parts and (one.name in names or not names)]


async def find(
    site: Site, part: str, chance: Random, struck: Collection[Victim] = ()
) -> Victim | None:
    """Any living one of that part; None where none can be struck at this moment. Who is `struck`
    is not struck again, or each would put back what it found, which is the other's doing."""
    found = await _find(site, part, chance)
    return None if found in struck else found


async def _find(site: Site, part: str, chance: Random) -> Victim | None:
    if part == "disk":
        return site.disk
    if part == "machine":
        return chance.choice(site.machines)
    if part in ("Router", "Fleet"):
        replicas = site.application.replicas(part)
        return Process(chance.choice(replicas)) if replicas else None
    name = SCHEDULER if part == "scheduler" else shard_name(MODEL, chance.randrange(site.shards))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            # One that is stopped while it loads is missed only much later.
            if part == "shard" and not await site.application.serves(name):
                return None
            pid = await site.application.pid(name)
            return None if pid is None else Process(pid, site.application.actor(name))
    return None
