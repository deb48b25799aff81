"""Kill anything, lose nothing: a load of every kind of request while processes die at random.

    python -m benchmarks.chaos --requests 1000 --kills 50 --seed 1

Starts the application with a tiny model in float32, asks each kind of request once undisturbed,
then asks for all of them again, many at once, while shards, the scheduler and Routers are killed
with SIGKILL and shards are stopped with SIGSTOP. Every answer is compared word for word with the
undisturbed one. Exit status 1 where anything was lost, repeated or wrong, or stayed behind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

import httpx

from actors.naming import SCHEDULER, shard_name
from benchmarks.mixture import Answer, Ask, Failed, answer, asks, verdict
from tests.actors.living import until
from tests.system.application import MODEL, Application, running
from tests.system.tiny import save_tiny_model

VICTIMS = ("shard", "shard", "shard", "shard", "stopped shard", "scheduler", "Router")
"""What the next to die is drawn from."""

RECOVERY_S = 300.0
"""A kill after which the whole is not there again for so long ends the run."""


@dataclass
class Report:
    """What happened. Pauses are between two chunks of a stream with a kill in between, seconds."""

    verdicts: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    killed_at: list[float] = field(default_factory=list)
    recoveries_s: list[float] = field(default_factory=list)
    pauses_s: list[list[float]] = field(default_factory=list)
    leaked_pages: int = 0
    leaked_leases: int = 0

    @property
    def is_clean(self) -> bool:
        wrong = self.verdicts.total() - self.verdicts["right"]
        return not (wrong or self.leaked_pages or self.leaked_leases)

    def lines(self) -> list[str]:
        kills = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kills.items()))
        longest = [max(pauses) for pauses in self.pauses_s if pauses]
        every = [pause for pauses in self.pauses_s for pause in pauses]
        return [
            f"requests {self.verdicts.total()}",
            f"kills {self.kills.total()} ({kills})",
            *(f"{kind} {self.verdicts[kind]}" for kind in ("lost", "repeated", "wrong")),
            f"pause of a stream over a kill: {_spread(every)}",
            f"longest pause of each kill: {_spread(longest)}",
            f"time to recover: {_spread(self.recoveries_s)}",
            f"pages leaked {self.leaked_pages}, leases leaked {self.leaked_leases}",
            *self.errors,
        ]


class Chaos:
    """One run over a running application of `shards` shards."""

    def __init__(
        self, application: Application, shards: int, seed: int, limit_s: float = 600.0
    ) -> None:
        """After `limit_s` no further request begins."""
        self._application = application
        self._shards = shards
        self._chance = Random(seed)
        self._done = 0
        self._ends_at = time.monotonic() + limit_s
        self._progress = asyncio.Event()
        self._given: list[Answer] = []
        self._recovering: list[asyncio.Task[None]] = []
        self.report = Report()

    async def run(self, wanted: list[Ask], requests: int, kills: int, at_once: int) -> Report:
        """Ask for `wanted` in turn, `requests` times, with `kills` spread over them."""
        async with self._application.http() as http:
            http.timeout = httpx.Timeout(600.0)
            due = await self._undisturbed(http, wanted)
            numbers = iter(range(requests))
            workers = [self._work(http, wanted, due, numbers) for _ in range(at_once)]
            killer = asyncio.create_task(self._kill(requests, kills))
            await asyncio.gather(*workers)
            killer.cancel()
            await asyncio.gather(killer, return_exceptions=True)
            await asyncio.gather(*self._recovering)
        await self._audit()
        self._measure_pauses()
        return self.report

    async def _undisturbed(self, http: httpx.AsyncClient, wanted: list[Ask]) -> list[Answer]:
        limit = asyncio.Semaphore(8)

        async def one(ask: Ask) -> Answer:
            async with limit:
                return await answer(http, ask)

        return await asyncio.gather(*map(one, wanted))

    async def _work(
        self, http: httpx.AsyncClient, wanted: list[Ask], due: list[Answer], numbers: Iterator[int]
    ) -> None:
        for number in numbers:
            if time.monotonic() > self._ends_at:
                break
            place = number % len(wanted)
            try:
                given = await answer(http, wanted[place])
            except (Failed, httpx.HTTPError) as error:
                self._judge("lost", f"request {number}: {type(error).__name__}: {error}")
            else:
                self._given.append(given)
                found = verdict(given, due[place])
                self._judge(found, f"request {number} is {found}: {wanted[place]}")
            self._done += 1
            self._progress.set()

    def _judge(self, found: str, story: str) -> None:
        self.report.verdicts[found] += 1
        if found != "right":
            self.report.errors.append(story)

    async def _kill(self, requests: int, kills: int) -> None:
        """Each when its share of the requests is answered: while nothing goes on, nobody dies."""
        for number in range(kills):
            while self._done < requests * (number + 0.5) / kills:
                self._progress.clear()
                await self._progress.wait()
            kind = self._chance.choice(VICTIMS)
            await self._kill_one(kind)
            print(f"{self._done} answered, killed: {kind}", file=sys.stderr, flush=True)
            self.report.kills[kind] += 1
            self.report.killed_at.append(time.monotonic())
            self._recovering.append(asyncio.create_task(self._recover()))

    async def _kill_one(self, kind: str) -> None:
        """Wait for one that lives, since it may be away already."""
        found: list[int] = []

        async def exists() -> bool:
            found.extend(await self._victims(kind))
            return bool(found)

        await until(exists, within_s=RECOVERY_S)
        how = signal.SIGSTOP if kind == "stopped shard" else signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):  # it was about to end
            os.kill(self._chance.choice(found), how)

    async def _victims(self, kind: str) -> list[int]:
        if kind == "Router":
            return self._application.replicas("Router")
        name = SCHEDULER
        if kind != "scheduler":
            name = shard_name(MODEL, self._chance.randrange(self._shards))
        with contextlib.suppress(TimeoutError):  # of one that is stopped already
            async with asyncio.timeout(1.0):
                if kind == "stopped shard" and not await self._application.serves(name):
                    return []  # one that is stopped while it loads is missed later
                pid = await self._application.pid(name)
                return [pid] if pid is not None else []
        return []

    async def _recover(self) -> None:
        """Until a Router tells of a scheduler and of every shard."""
        began = time.monotonic()
        await until(self._is_whole, within_s=RECOVERY_S)
        self.report.recoveries_s.append(time.monotonic() - began)

    async def _is_whole(self) -> bool:
        try:
            async with self._application.http() as http:
                told = await http.get("/admin/stats")
        except httpx.HTTPError:
            return False
        await asyncio.sleep(0.1)
        return told.status_code == httpx.codes.OK and len(told.json()["shards"]) == self._shards

    async def _audit(self) -> None:
        """What is left when all is over; the books have to balance, or this raises."""
        with contextlib.suppress(TimeoutError):
            await until(lambda: self._application.is_settled(self._shards), within_s=60.0)
        stats = await self._application.shard_stats()
        self.report.leaked_pages = sum(one.used_pages for one in stats)
        self.report.leaked_leases = (await self._application.scheduler_stats()).leased
        await self._application.verify()

    def _measure_pauses(self) -> None:
        for moment in self.report.killed_at:
            gaps = [_gap(given.arrivals, moment) for given in self._given]
            self.report.pauses_s.append([gap for gap in gaps if gap is not None])


def _gap(arrivals: list[float], moment: float) -> float | None:
    """How long a stream that was open at `moment` said nothing around it."""
    for before, after in pairwise(arrivals):
        if before <= moment < after:
            return after - before
    return None


def _spread(values: list[float]) -> str:
    if not values:
        return "none"
    return f"median {statistics.median(values):.2f} s, longest {max(values):.2f} s"


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        model = save_tiny_model(Path(folder))
        with running(model, options.shards, router={"replicas": 2}) as application:
            chaos = Chaos(application, options.shards, options.seed, options.limit)
            wanted = asks(MODEL, options.distinct, options.seed)
            began = time.monotonic()
            report = asyncio.run(
                chaos.run(wanted, options.requests, options.kills, options.at_once)
            )
    print(f"{time.monotonic() - began:.0f} s in all", *report.lines(), sep="\n")
    sys.exit(0 if report.is_clean else 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shards", type=int, default=3)
    parser.add_argument("--distinct", type=int, default=56, help="different requests among them")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of load at most")
    parser.add_argument("--at-once", type=int, default=24, help="requests under way")
    return parser.parse_args()


if __name__ == "__main__":
    main()
