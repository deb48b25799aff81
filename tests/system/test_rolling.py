"""The configuration is changed while requests of every kind run, and none of them notices."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from ray import serve

from actors.naming import SCHEDULER
from benchmarks import mixture
from deployments.app import build
from tests.actors.living import pid_of, until
from tests.system.application import MODEL, NAME, Application, arguments, running

pytestmark = pytest.mark.slow

SHARDS = 2
FLEET = {"drain_s": 0.2}
AT_ONCE = 4


@pytest.fixture(scope="module")
def rolling(tiny_folder: Path) -> Iterator[Application]:
    with running(tiny_folder, SHARDS, guesses=4, fleet=FLEET) as application:
        yield application


class Load:
    """Every kind of request, again and again, each answer judged by the undisturbed one."""

    def __init__(self, http: httpx.AsyncClient, wanted: list[mixture.Ask]) -> None:
        self._http = http
        self._wanted = wanted
        self._due: list[mixture.Answer] = []
        self._ending = False
        self.verdicts: list[str] = []

    async def learn(self) -> None:
        answers = (mixture.answer(self._http, ask) for ask in self._wanted)
        self._due = await asyncio.gather(*answers)

    async def run(self) -> None:
        await asyncio.gather(*(self._work(start) for start in range(AT_ONCE)))

    async def end(self) -> None:
        """Once each kind has been answered after this call."""
        due = len(self.verdicts) + len(self._wanted) + AT_ONCE

        async def enough() -> bool:
            return len(self.verdicts) >= due

        await until(enough, within_s=120)
        self._ending = True

    async def _work(self, number: int) -> None:
        while not self._ending:
            place = number % len(self._wanted)
            number += AT_ONCE + 1
            try:
                given = await mixture.answer(self._http, self._wanted[place])
            except (mixture.Failed, httpx.HTTPError) as error:
                self.verdicts.append(f"{type(error).__name__}: {error}")
            else:
                self.verdicts.append(mixture.verdict(given, self._due[place]))


async def fewest_shards(application: Application, until_done: asyncio.Task[None]) -> int:
    """How many the scheduler knew at least, while something went on."""
    fewest = SHARDS
    while not until_done.done():
        fewest = min(fewest, len((await application.scheduler_stats()).shards))
        await asyncio.sleep(0.1)
    return fewest


async def pids(application: Application) -> set[int]:
    return {await pid_of(application.actor(name)) for name in application.shards()}


async def test_new_shards_routers_and_gateways_take_over_without_a_failed_request(
    rolling: Application, tiny_folder: Path
) -> None:
    before, scheduler = await pids(rolling), await pid_of(rolling.actor(SCHEDULER))

    async def replaced() -> bool:
        return await rolling.is_known(SHARDS) and not before & await pids(rolling)

    async with rolling.http() as http:
        load = Load(http, mixture.asks(MODEL, 28, seed=7))
        await load.learn()
        running = asyncio.create_task(load.run())
        fewest = asyncio.create_task(fewest_shards(rolling, running))
        changed = arguments(tiny_folder, SHARDS, guesses=4, fleet=FLEET)
        changed["models"][0]["batching"]["max_num_seqs"] = 48
        await asyncio.to_thread(serve.run, build(changed), name=NAME)
        await until(replaced, within_s=180)
        await load.end()
        await running
    assert set(load.verdicts) == {"right"}, load.verdicts
    assert await fewest == SHARDS
    assert await pid_of(rolling.actor(SCHEDULER)) == scheduler  # nothing of its own changed
    await until(lambda: rolling.is_settled(SHARDS))
    await rolling.verify()
    assert await rolling.mended() == {}
