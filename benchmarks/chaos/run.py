"""One run: requests in turn, faults between them, every answer compared, the books at the end."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Collection, Iterator
from random import Random

import httpx
import psutil
from ray.exceptions import RayActorError

from actors.tasks import cancel_all
from benchmarks.chaos.faults import Fault, Victim, draw, find, possible
from benchmarks.chaos.report import Blow, Report
from benchmarks.chaos.site import Site
from benchmarks.mixture import Answer, Ask, Failed, answer, verdict
from tests.actors.living import until

RECOVERY_S = 180.0
"""So long after the last answer all has to be there again; faults overlap before that."""

VICTIM_S = 120.0
"""One that can be struck is there within that time."""

SETTLED_S = 60.0

CLOSED_S = 300.0
"""Of several looks at the books, should a shard die during one."""

PATIENCE_S = 600.0
"""Of the client: longer than the system's own."""

LOOK_S = 0.5
"""Between two looks at whether all is there again, which cost what the requests need as well."""

LOOK_TIMEOUT_S = 30.0
LOOKS = 3
"""A difference is mended at the second look at which it is there."""


class Chaos:
    """One run over a running application."""

    def __init__(
        self,
        site: Site,
        seed: int,
        limit_s: float = 600.0,
        only: Collection[str] = (),
        together: bool = False,
    ) -> None:
        """After `limit_s` no further request begins. `only`: what the faults are called that may
        come about, by default all that can. `together`: they are not drawn, all strike at once."""
        self._site = site
        self._faults = possible(site, only)
        self._together = together
        self._struck: set[Victim] = set()
        self._application = site.application
        self._shards = site.shards
        self._chance = Random(seed)
        self._done = 0
        self._ends_at = time.monotonic() + limit_s
        self._progress = asyncio.Event()
        self._repairs: list[asyncio.Task[None]] = []
        self.report = Report()

    async def run(self, wanted: list[Ask], requests: int, kills: int, at_once: int) -> Report:
        """Ask for `wanted` in turn, `requests` times, with `kills` deaths spread over them; or,
        where faults come together, with so many times all of them."""
        async with self._application.http() as http:
            http.timeout = httpx.Timeout(PATIENCE_S)
            due = await self._undisturbed(http, wanted)
            numbers = iter(range(requests))
            workers = [self._work(http, wanted, due, numbers) for _ in range(at_once)]
            faults = asyncio.create_task(self._strike_all(http, self._rounds(kills), requests))
            await asyncio.gather(*workers)
            faults.cancel()
            await asyncio.gather(faults, return_exceptions=True)
            self.report.broken = await self._still_broken()
        await until(self._closes_the_books, within_s=CLOSED_S)
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
                found = verdict(given, due[place])
                self._judge(found, f"request {number} is {found}: {wanted[place]}")
                await self._note_stream(http, given)
            self._done += 1
            self._progress.set()

    def _judge(self, found: str, story: str) -> None:
        self.report.verdicts[found] += 1
        if found != "right":
            self.report.errors.append(story)

    async def _note_stream(self, http: httpx.AsyncClient, given: Answer) -> None:
        """It moved where its first prompt was decided under the name of a second attempt too,
        which a scheduler tells while it lives."""
        if not given.arrivals:
            return
        self.report.streams.append(given)
        with contextlib.suppress(httpx.HTTPError):
            again = await http.get(f"/admin/scheduler/explain/{given.call_id}-0~1")
            if again.status_code == httpx.codes.OK:
                self.report.moved.append(given)

    def _rounds(self, kills: int) -> list[list[Fault]]:
        if self._together:
            return [self._faults] * kills
        return [[fault] for fault in draw(kills, self._faults, self._chance)]

    async def _strike_all(
        self, http: httpx.AsyncClient, rounds: list[list[Fault]], requests: int
    ) -> None:
        """Each when its share of the requests is answered: while nothing goes on, nobody dies. One
        that is late, as nobody was there to be struck, comes once somebody is, however few requests
        are left: the last of them may meet several in a row, which is no excuse to lose them."""
        for number, faults in enumerate(rounds):
            while self._done < requests * (number + 0.5) / len(rounds):
                self._progress.clear()
                await self._progress.wait()
            for fault in faults:
                victim = await self._victim(fault)
                self._struck.add(victim)
                self.report.blows.append(Blow(fault, time.monotonic()))
                print(f"{self._done} answered: {fault.name}", file=sys.stderr, flush=True)
                self._repairs.append(asyncio.create_task(self._strike(http, fault, victim)))

    async def _victim(self, fault: Fault) -> Victim:
        """Wait for one that lives, since it may be away already."""
        found: list[Victim] = []

        async def exists() -> bool:
            one = await find(self._site, fault.part, self._chance, self._struck)
            found.extend([one] if one is not None else [])
            return bool(found)

        await until(exists, within_s=VICTIM_S)
        return found[0]

    async def _strike(self, http: httpx.AsyncClient, fault: Fault, victim: Victim) -> None:
        """And wait until a Router tells of a scheduler and of every shard."""
        began = time.monotonic()
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended by itself, or was ended
            await fault.strike(victim, self._chance)
        self._struck.discard(victim)
        while not await self._is_whole(http):  # noqa: ASYNC110 - it is another process that is
            await asyncio.sleep(LOOK_S)
        self.report.recoveries_s.append(time.monotonic() - began)

    async def _still_broken(self) -> int:
        """The faults that were not repaired in time."""
        if not self._repairs:
            return 0
        done, late = await asyncio.wait(self._repairs, timeout=RECOVERY_S)
        await cancel_all(*late)
        for repair in done:
            repair.result()
        return len(late)

    async def _is_whole(self, http: httpx.AsyncClient) -> bool:
        try:
            told = await http.get("/admin/stats", timeout=LOOK_TIMEOUT_S)
        except httpx.HTTPError:
            return False
        return told.status_code == httpx.codes.OK and len(told.json()["shards"]) == self._shards

    async def _closes_the_books(self) -> bool:
        """False where a shard died meanwhile, as one does that is given up once it wakes."""
        try:
            await self._close_the_books()
        except RayActorError:
            return False
        return True

    async def _close_the_books(self) -> None:
        """What is left when all is over; the books have to balance, or this raises."""
        with contextlib.suppress(TimeoutError):
            await until(lambda: self._application.is_settled(self._shards), within_s=SETTLED_S)
        stats = await self._application.shard_stats()
        self.report.leaked_pages = sum(one.used_pages for one in stats)
        self.report.leaked_leases = (await self._application.scheduler_stats()).leased
        await self._application.verify()
        await self._audit()

    async def _audit(self) -> None:
        """What the audits that live have mended, and what they still find when all is repaired."""
        self.report.mended = await self._application.mended()
        before = await self._application.audits()

        async def looked() -> bool:
            return await self._application.audits() >= before + LOOKS

        await until(looked, within_s=SETTLED_S)
        self.report.mended_after = await self._application.mended() - self.report.mended
