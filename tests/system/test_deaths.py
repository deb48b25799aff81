"""Processes die, and nobody who asked something notices more than a pause."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any

import httpx
import pytest

from actors.naming import SCHEDULER, shard_name
from benchmarks import mixture
from benchmarks.chaos import Chaos
from tests.actors.living import is_gone, pid_of, until
from tests.system.application import MODEL, Application

pytestmark = pytest.mark.slow

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


async def test_a_shard_dies_and_every_kind_of_request_is_answered_as_if_it_had_not(
    application: Application,
) -> None:
    wanted = mixture.asks(MODEL, 21, seed=1)
    async with application.http() as http:
        due = [await mixture.answer(http, ask) for ask in wanted]
        answers = [asyncio.create_task(mixture.answer(http, ask)) for ask in wanted]
        await until(application.is_busy)
        await application.kill(shard_name(MODEL, 0))
        given = await asyncio.gather(*answers)
    assert list(map(mixture.verdict, given, due)) == ["right"] * len(wanted)
    await until(application.is_settled)
    await application.verify()


async def test_streams_wait_for_a_replacement_where_all_shards_are_dead(
    application: Application,
) -> None:
    wanted = [ask for ask in mixture.asks(MODEL, 28, seed=2) if ask.streams]
    async with application.http() as http:
        due = [await mixture.answer(http, ask) for ask in wanted]
        answers = [asyncio.create_task(mixture.answer(http, ask)) for ask in wanted]
        await until(application.is_busy)
        await asyncio.gather(*(application.kill(shard_name(MODEL, index)) for index in range(2)))
        given = await asyncio.gather(*answers)
    assert list(map(mixture.verdict, given, due)) == ["right"] * len(wanted)
    await until(application.is_settled)
    await application.verify()


async def test_a_stopped_shard_is_noticed_replaced_and_its_late_tokens_are_dropped(
    application: Application,
) -> None:
    wanted = [ask for ask in mixture.asks(MODEL, 28, seed=3) if ask.streams]
    before = await pid_of(application.shard(0))
    async with application.http() as http:
        due = [await mixture.answer(http, ask) for ask in wanted]
        answers = [asyncio.create_task(mixture.answer(http, ask)) for ask in wanted]
        await until(application.is_busy)
        os.kill(before, signal.SIGSTOP)

        async def replaced() -> bool:
            return await application.pid(shard_name(MODEL, 0)) not in (None, before)

        await until(replaced)
        with contextlib.suppress(ProcessLookupError):  # it wakes, if nobody has ended it yet
            os.kill(before, signal.SIGCONT)
        given = await asyncio.gather(*answers)
    assert list(map(mixture.verdict, given, due)) == ["right"] * len(wanted)
    await until(application.is_settled)
    await application.verify()

    async def gone() -> bool:
        return is_gone(before)

    await until(gone)


async def test_streams_in_need_of_a_lease_wait_for_the_next_scheduler(
    application: Application,
) -> None:
    wanted = [ask for ask in mixture.asks(MODEL, 28, seed=4) if ask.streams]
    async with application.http() as http:
        due = [await mixture.answer(http, ask) for ask in wanted]
        answers = [asyncio.create_task(mixture.answer(http, ask)) for ask in wanted]
        await until(application.is_busy)
        names = (SCHEDULER, shard_name(MODEL, 0), shard_name(MODEL, 1))
        await asyncio.gather(*map(application.kill, names))
        given = await asyncio.gather(*answers)
    assert list(map(mixture.verdict, given, due)) == ["right"] * len(wanted)
    await until(application.is_settled)
    await application.verify()


async def test_chaos_loses_repeats_and_changes_nothing(application: Application) -> None:
    chaos = Chaos(application, shards=2, seed=5)
    report = await chaos.run(mixture.asks(MODEL, 28, seed=5), requests=84, kills=4, at_once=12)
    assert report.errors == []
    assert (report.verdicts, report.kills.total()) == ({"right": 84}, 4)
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
