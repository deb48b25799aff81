"""The command, and the table that it prints.

    python -m benchmarks.neighbours --seconds 8

For each kind of bad neighbour: what requests of another tenant take meanwhile, beside what they
take alone, and how long it is until pages, leases and places in the queue are free once it, or the
Gateway it was at, has gone, or until the server has ended what it does not want to hold. Exit
status 1 where a wait or a time is beyond what is stated here, or more failed than were under way at
a Gateway that was killed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Collection
from dataclasses import dataclass

from benchmarks.neighbours.probe import CLIENTS, Waits, go_first, probe
from benchmarks.neighbours.server import Server, started
from benchmarks.report import markdown_row

ENDED_S = 60.0
STALL_S = 0.5
"""So long the clients' own process may be held up; beyond, the machine was measured."""

NONE = "none"
"""What the others take alone is compared with itself."""


@dataclass(frozen=True)
class Neighbour:
    """One kind: the most that it may cost the others' p99, and the seconds until all is free.

    `beside`: the neighbour that theirs is compared with, by default none. `ends`: the server has to
    end it by itself. `fells`: a Gateway is killed as it stands.
    """

    name: str
    factor: float
    freed_s: float
    beside: str = NONE
    ends: bool = False
    fells: bool = False

    @property
    def failed(self) -> int:
        """So many requests of others may fail: those under way at the Gateway that is killed."""
        return CLIENTS if self.fells else 0


NEIGHBOURS = (
    Neighbour("good_readers", factor=6, freed_s=2),
    Neighbour("slow_readers", factor=1.5, freed_s=2, beside="good_readers"),
    Neighbour("vanishing", factor=6, freed_s=2),
    Neighbour("half_sent", factor=2, freed_s=32, ends=True),
    Neighbour("idle", factor=2, freed_s=32, ends=True),
    Neighbour("largest", factor=4, freed_s=2),
    Neighbour("tiny_flood", factor=8, freed_s=2),
    Neighbour("held", factor=20, freed_s=15, fells=True),
)


@dataclass(frozen=True)
class Finding:
    """What one neighbour did to the others, and the seconds until all that it held was free."""

    waits: Waits
    freed_s: float

    def ratio(self, usual: Waits) -> float:
        """How many times as long as usual the others' p99 was."""
        return self.waits.share(0.99) / usual.share(0.99)

    def keeps(self, stated: Neighbour, usual: Waits) -> bool:
        """Whether nothing is beyond what is stated of it; `usual`: of what it is compared with.
        What cannot be said, because the clients were held up themselves, is not kept."""
        in_time = self.ratio(usual) <= stated.factor and self.freed_s <= stated.freed_s
        stalled_s = max(self.waits.stalled_s, usual.stalled_s)
        return in_time and self.waits.failed <= stated.failed and stalled_s <= STALL_S


async def observe(server: Server, neighbour: Neighbour, seconds: float) -> Finding:
    command = ("-m", "benchmarks.neighbours.bad", neighbour.name, str(server.port))
    bad = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=PIPE)
    try:
        await _line(bad, b"standing")
        since, over = time.monotonic(), asyncio.Event()
        waiting = asyncio.create_task(probe(server, over))
        if neighbour.fells:
            server.gateways()[0].kill()
            bad.kill()  # what it had at other Gateways is not what is measured
        await asyncio.sleep(seconds)
        if neighbour.ends:
            await _line(bad, b"let go")
            ended_s = time.monotonic() - since
        over.set()
        waits = await waiting
    finally:
        with contextlib.suppress(ProcessLookupError):
            bad.kill()
        await bad.wait()
    if not neighbour.fells:  # else it is the Gateway that has left
        since = time.monotonic()
    await server.until_free(ENDED_S)
    return Finding(waits, ended_s if neighbour.ends else time.monotonic() - since)


async def _line(bad: Process, expected: bytes) -> None:
    assert bad.stdout is not None  # a pipe
    async with asyncio.timeout(ENDED_S):
        said = await bad.stdout.readline()
    if said.strip() != expected:
        raise RuntimeError(f"a client said {said!r} in place of {expected!r}")


async def alone(server: Server, seconds: float) -> Waits:
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    return await probe(server, over)


async def measure(server: Server, wanted: list[Neighbour], seconds: float) -> bool:
    """Print the table; whether all kept within what is stated."""
    await alone(server, seconds / 2)  # so that nothing is new
    taken = {NONE: await alone(server, seconds)}
    print(
        markdown_row(
            "neighbour", "requests", "failed", "p50 ms", "p99 ms", "p99 over", "freed s", "stall s"
        )
    )
    print(markdown_row(*["---"] * 8))
    print(markdown_row(NONE, *_cells(taken[NONE]), "", "", f"{taken[NONE].stalled_s:.1f}"))
    kept = not taken[NONE].failed
    for neighbour in wanted:
        found = await observe(server, neighbour, seconds)
        taken[neighbour.name], usual = found.waits, taken[neighbour.beside]
        over = f"{found.ratio(usual):.1f} of {neighbour.factor:g}, {neighbour.beside}"
        freed = f"{found.freed_s:.1f} of {neighbour.freed_s:g}"
        stall = f"{found.waits.stalled_s:.1f}"
        print(markdown_row(neighbour.name, *_cells(found.waits), over, freed, stall), flush=True)
        kept &= found.keeps(neighbour, usual)
    return kept


def with_compared(names: Collection[str]) -> list[Neighbour]:
    """Those neighbours, and those that they are compared with, in order."""
    beside = {one.beside for one in NEIGHBOURS if one.name in names}
    return [one for one in NEIGHBOURS if one.name in names or one.name in beside]


def _cells(waits: Waits) -> tuple[str, ...]:
    told = (f"{1000 * waits.share(0.5):.0f}", f"{1000 * waits.share(0.99):.0f}")
    return str(len(waits.seconds)), str(waits.failed), *told


def main() -> None:
    names = [neighbour.name for neighbour in NEIGHBOURS]
    parser = argparse.ArgumentParser(description="Bad neighbours.")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each neighbour")
    parser.add_argument("--only", nargs="*", choices=names, default=names)
    parser.add_argument("--limit", type=float, default=330.0, help="seconds of all of it at most")
    options = parser.parse_args()
    with started() as server:
        go_first()
        kept = asyncio.run(
            asyncio.wait_for(
                measure(server, with_compared(options.only), options.seconds), options.limit
            )
        )
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
