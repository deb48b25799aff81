"""Processes die, and nobody who asked something notices more than a pause."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from actors.naming import SCHEDULER, shard_name
from benchmarks import mixture
from benchmarks.chaos.run import Chaos
from benchmarks.chaos.site import Site
from tests.actors.living import is_gone, pid_of, until
from tests.system.application import MODEL, Application

pytestmark = pytest.mark.slow

STREAMS, CHOICES, QUEUED = 60, 4, 20
"""More choices than two shards run at once, so that some requests wait in the queue."""

DOOR_FREED_S = 30.0
"""A shard gives up a door that has not polled for ten seconds, and looks every two and a half."""

REQUEST: dict[str, Any] = {"model": MODEL, "prompt": "One fish, two", "max_tokens": 8}
LONG: dict[str, Any] = REQUEST | {"max_tokens": 900, "extra_body": {"ignore_eos": True}}


async def answers(application: Application) -> str:
    async with application.client() as client:
        answer = await client.completions.create(**REQUEST, temperature=0)
    return str(answer.choices[0].text)


async def test_streams_go_on_while_the_scheduler_dies_and_new_requests_wait(
    application: Application,
) -> None:
    before = await answers(application)
    async with application.client() as client:
        stream = await client.completions.create(**LONG, stream=True)
        chunks = aiter(stream)
        await anext(chunks)
        death = asyncio.create_task(application.kill(SCHEDULER))
        rest = [chunk async for chunk in chunks]
        await death
    assert rest[-1].choices[0].finish_reason == "length"
    assert await answers(application) == before


async def ask_all(http: httpx.AsyncClient, wanted: list[mixture.Ask]) -> list[mixture.Answer]:
    return await asyncio.gather(*(mixture.answer(http, ask) for ask in wanted))


async def check_all_answered_right(
    application: Application, wanted: list[mixture.Ask], strike: Callable[[], Awaitable[None]]
) -> None:
    """Whatever `strike` does while all are under way, they are answered as without it."""
    async with application.http() as http:
        due = await ask_all(http, wanted)
        asking = asyncio.create_task(ask_all(http, wanted))
        await until(application.is_busy)
        await strike()
        given = await asking
    assert list(map(mixture.verdict, given, due)) == ["right"] * len(wanted)
    await until(application.is_settled)
    await application.verify()


async def test_a_shard_dies_and_every_kind_of_request_is_answered_as_if_it_had_not(
    application: Application,
) -> None:
    async def strike() -> None:
        await application.kill(shard_name(MODEL, 0))

    await check_all_answered_right(application, mixture.asks(MODEL, 28, seed=1), strike)


async def test_streams_wait_where_every_shard_and_the_scheduler_are_dead(
    application: Application,
) -> None:
    async def strike() -> None:
        names = (SCHEDULER, shard_name(MODEL, 0), shard_name(MODEL, 1))
        await asyncio.gather(*map(application.kill, names))

    await check_all_answered_right(application, mixture.asks(MODEL, 28, seed=2), strike)


async def test_a_stopped_shard_is_noticed_replaced_and_its_late_tokens_are_dropped(
    application: Application,
) -> None:
    before = await pid_of(application.shard(0))

    async def replaced() -> bool:
        return await application.pid(shard_name(MODEL, 0)) not in (None, before)

    async def strike() -> None:
        os.kill(before, signal.SIGSTOP)
        await until(replaced)
        with contextlib.suppress(ProcessLookupError):  # it wakes, if nobody has ended it yet
            os.kill(before, signal.SIGCONT)

    await check_all_answered_right(application, mixture.asks(MODEL, 28, seed=3), strike)

    async def gone() -> bool:
        return is_gone(before)

    await until(gone)


async def test_the_fleet_dies_and_its_successor_looks_after_the_same_shards(
    application: Application,
) -> None:
    (fleet,) = application.replicas("Fleet")
    before = [await application.pid(name) for name in (SCHEDULER, *application.shards())]

    async def succeeded() -> bool:
        return application.replicas("Fleet") not in ([], [fleet])

    async def strike() -> None:
        os.kill(fleet, signal.SIGKILL)
        await until(succeeded)

    await check_all_answered_right(application, mixture.asks(MODEL, 28, seed=4), strike)
    after = [await application.pid(name) for name in (SCHEDULER, *application.shards())]
    assert after == before
    await application.kill(shard_name(MODEL, 1))
    await until(application.is_settled)


async def test_a_gateway_that_dies_holding_streams_frees_what_they_had_and_their_turns(
    application: Application,
) -> None:
    body = {"model": MODEL, "prompt": "One fish", "max_tokens": 900, "ignore_eos": True}

    async def some_wait() -> bool:
        return sum((await application.scheduler_stats()).queued.values()) >= QUEUED

    async with application.http() as http:
        ask = {**body, "stream": True, "n": CHOICES}
        asking = [http.post("/v1/completions", json=ask) for _ in range(STREAMS)]
        answers = asyncio.gather(*asking, return_exceptions=True)
        await until(some_wait)
        for gateway in application.replicas("Gateway"):
            os.kill(gateway, signal.SIGKILL)
        await until(application.is_settled, within_s=DOOR_FREED_S)
        await answers
    await application.verify()


async def test_chaos_loses_repeats_and_changes_nothing(application: Application) -> None:
    chaos = Chaos(Site(application, shards=2), seed=14)
    report = await chaos.run(mixture.asks(MODEL, 28, seed=5), requests=56, kills=3, at_once=12)
    assert report.errors == []
    assert (report.verdicts, report.kills) == ({"right": 56}, 3)
    assert report.is_clean


async def test_ready_tells_the_truth_while_shards_are_away(application: Application) -> None:
    kills = [asyncio.create_task(application.kill(shard_name(MODEL, index))) for index in range(2)]
    async with application.http() as http:
        seen: list[httpx.Response] = []
        while not seen or seen[-1].status_code == 200:
            seen.append(await http.get("/ready"))
        assert seen[-1].status_code == 503
        assert MODEL in seen[-1].json()["error"]["message"]
        await asyncio.gather(*kills)

        async def ready() -> bool:
            return (await http.get("/ready")).status_code == 200

        await until(ready)
        assert (await http.get("/health")).status_code == 200


async def test_the_audit_is_quiet_once_all_is_repaired(application: Application) -> None:
    await until(application.is_settled)
    before, mended = await application.audits(), await application.mended()

    async def looked_thrice() -> bool:
        return await application.audits() >= before + 3

    await until(looked_thrice)
    assert await application.mended() == mended
