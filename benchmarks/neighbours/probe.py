"""The others: well behaved clients, whose waits are what a bad neighbour may not change."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from dataclasses import dataclass, field

import httpx

from actors.tasks import cancel_all
from benchmarks.neighbours.server import MODEL, Server

CLIENTS = 2
TICK_S = 0.1
REQUEST = {"model": MODEL, "prompt": "One fish, two", "max_tokens": 8, "ignore_eos": True}


@dataclass
class Waits:
    """Seconds that each served request took, and how many had no answer, or an error for one.

    `stalled_s`: the longest time that the clients' own process did not come to run. What is longer
    than a blink was not the server's doing, and nothing can be said of it.
    """

    seconds: list[float] = field(default_factory=list)
    failed: int = 0
    stalled_s: float = 0.0

    def share(self, part: float) -> float:
        """So long this part of them took at most, in [0, 1); infinite where none was served."""
        return sorted(self.seconds)[int(part * len(self.seconds))] if self.seconds else math.inf


def go_first() -> None:
    """Let this process run before all others, where that is allowed, and what it starts as usual.

    The server's many threads keep two cores so busy that the kernel leaves who waits for them
    waiting for seconds; it would be that wait that is measured.
    """
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


async def probe(server: Server, until: asyncio.Event) -> Waits:
    """Ask one request after the other, each on a connection of its own, `CLIENTS` at a time."""
    waits = Waits()

    async def one(http: httpx.AsyncClient) -> None:
        while not until.is_set():
            began = time.monotonic()
            try:
                answer = await http.post("/v1/completions", json=REQUEST)
            except httpx.HTTPError:
                waits.failed += 1
                continue
            if answer.status_code == httpx.codes.OK:
                waits.seconds.append(time.monotonic() - began)
            else:
                waits.failed += 1

    async def watch_stalls() -> None:
        while True:
            due = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            waits.stalled_s = max(waits.stalled_s, time.monotonic() - due)

    watching = asyncio.create_task(watch_stalls())
    async with server.http() as http:
        await asyncio.gather(*(one(http) for _ in range(CLIENTS)))
    await cancel_all(watching)
    return waits
