"""Shards die under a door: who asked hears what was due, and only a poison is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from random import Random

import pytest

from cluster.errors import PoisonRequest
from cluster.messages import FinishReason, Request
from cluster.steps import StepPlan
from deployments.generation import Piece, RequestText, read_pieces
from deployments.stops import compile_stops
from deployments.text import ModelText
from tests.cluster.paged_memory import alone, assignment
from tests.deployments.toy_cluster import MAX_MODEL_LEN, Poisons, ToyCluster

POISON = 77
Output = dict[int, tuple[tuple[int, ...], FinishReason | None]]
Heard = tuple[dict[int, list[Piece]], int, int]


def requests(count: int, seed: int = 0) -> list[Request]:
    chance = Random(seed)
    return [
        assignment(
            f"r{number}",
            tuple(chance.randrange(9) for _ in range(chance.randrange(1, 20))),
            max_tokens=chance.randrange(1, 24),
            choices=chance.choice((1, 1, 3)),
            stop=chance.choice(((), (), (3,))),
        ).request
        for number in range(count)
    ]


def poison(name: str = "poison") -> Request:
    return assignment(name, (1, POISON, 2), max_tokens=20).request


def kills_at_output(length: int) -> Poisons:
    """A step with a poisoned prompt and so much output is fatal."""

    def poisons(plan: StepPlan) -> bool:
        sequences = [chunk.sequence for chunk in plan.chunks]
        return any(POISON in one.tokens and one.output_len == length for one in sequences)

    return poisons


def harmless(_plan: StepPlan) -> bool:
    return False


async def ask(cluster: ToyCluster, request: Request) -> Output:
    heard: Output = dict.fromkeys(range(request.choices), ((), None))
    async for delta in cluster.door.generate(request):
        tokens, finish = heard[delta.choice]
        assert finish is None
        heard[delta.choice] = (tokens + delta.tokens, delta.finish)
    return heard


def due(request: Request) -> Output:
    return {choice: alone(request, choice, MAX_MODEL_LEN) for choice in range(request.choices)}


@asynccontextmanager
async def running(cluster: ToyCluster) -> AsyncIterator[None]:
    steps = asyncio.create_task(cluster.run())
    yield
    steps.cancel()
    cluster.verify()


async def ask_all(cluster: ToyCluster, wanted: Iterable[Request]) -> list[Output | BaseException]:
    return await asyncio.gather(*(ask(cluster, one) for one in wanted), return_exceptions=True)


async def kill_at_random(cluster: ToyCluster, chance: Random) -> None:
    while True:
        for _ in range(chance.randrange(8, 20)):
            await asyncio.sleep(0)
        cluster.kill(chance.randrange(3))


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_dies_when_every_request_gets_what_was_due(seed: int) -> None:
    wanted, cluster = requests(40, seed), ToyCluster(3, harmless)
    async with running(cluster):
        killer = asyncio.create_task(kill_at_random(cluster, Random(seed)))
        given = await ask_all(cluster, wanted)
        killer.cancel()
    assert cluster.deaths > 3
    assert given == list(map(due, wanted))


async def test_a_lone_request_whose_shards_are_all_killed_before_a_token_outlives_the_storm() -> (
    None
):
    [alone], cluster = requests(1), ToyCluster(3, harmless)
    asking = asyncio.create_task(ask(cluster, alone))
    while cluster.deaths < 10 and not asking.done():
        await asyncio.sleep(0)
        cluster.kill_busy()
    async with running(cluster):
        assert await asking == due(alone)


async def read(
    cluster: ToyCluster, request: Request, text: ModelText, kill_at: int | None = None
) -> Heard:
    """All that a client hears: the pieces of each choice in order, and the usage. All shards die
    after piece number `kill_at`."""
    reading = RequestText(request, text, compile_stops(['!"!', '""']))
    heard: dict[int, list[Piece]] = {}
    count = 0
    async with aclosing(read_pieces(cluster.door, reading)) as pieces:
        async for piece in pieces:
            heard.setdefault(piece.choice, []).append(piece)
            count += 1
            if count == kill_at:
                cluster.kill_all()
    return heard, reading.usage().prompt_tokens, reading.usage().completion_tokens


@pytest.mark.parametrize("seed", range(5))
async def test_pieces_stop_strings_and_usage_are_those_of_an_undisturbed_run(
    text: ModelText, seed: int
) -> None:
    wanted = requests(30, seed)
    calm, stormy = ToyCluster(1, harmless), ToyCluster(3, harmless)
    async with running(calm):
        expected = await asyncio.gather(*(read(calm, one, text) for one in wanted))
    async with running(stormy):
        killer = asyncio.create_task(kill_at_random(stormy, Random(seed)))
        given = await asyncio.gather(*(read(stormy, one, text) for one in wanted))
        killer.cancel()
    assert stormy.deaths >= 3
    assert given == expected
    assert any(pieces[-1].met_stop for heard, *_ in given for pieces in heard.values())


@pytest.mark.parametrize("seed", range(4))
async def test_killed_at_any_piece_a_client_hears_what_it_would_have(
    text: ModelText, seed: int
) -> None:
    request = assignment(f"r{seed}", (seed, 2, 3), max_tokens=24, choices=2).request
    cluster = ToyCluster(2, harmless)
    async with running(cluster):
        expected = await read(cluster, request, text)
        count = sum(map(len, expected[0].values()))
        assert count > 6
        for place in range(1, count):
            assert await read(cluster, request, text, kill_at=place) == expected
    assert cluster.deaths == 2 * (count - 1)


@pytest.mark.parametrize("at_output", [0, 1, 7])
async def test_a_poison_is_refused_after_two_failed_steps_and_nobody_with_it(
    at_output: int,
) -> None:
    innocents = requests(12)
    cluster = ToyCluster(2, kills_at_output(at_output))
    async with running(cluster):
        given = await ask_all(cluster, [*innocents[:6], poison(), *innocents[6:]])
    refused = given.pop(6)
    assert isinstance(refused, PoisonRequest)
    assert "request poison" in refused.message
    assert given == list(map(due, innocents))
    assert cluster.deaths == 2


async def test_a_poison_that_kills_in_silence_is_refused_after_three_deaths() -> None:
    innocents = requests(12)
    cluster = ToyCluster(2, kills_at_output(0), speaking=False)
    async with running(cluster):
        given = await ask_all(cluster, [*innocents[:6], poison(), *innocents[6:]])
    assert isinstance(given.pop(6), PoisonRequest)
    assert given == list(map(due, innocents))
    assert cluster.deaths == 3


async def test_two_poisons_that_kill_in_silence_are_told_from_those_around_them() -> None:
    innocents = requests(12)
    cluster = ToyCluster(2, kills_at_output(0), speaking=False)
    async with running(cluster):
        given = await ask_all(cluster, [poison("one"), *innocents, poison("two")])
    assert [type(given.pop(0)), type(given.pop())] == [PoisonRequest] * 2
    assert given == list(map(due, innocents))
    assert cluster.deaths <= 6


async def test_two_poisons_are_told_from_those_around_them() -> None:
    innocents = requests(12)
    cluster = ToyCluster(2, kills_at_output(2))
    async with running(cluster):
        given = await ask_all(cluster, [poison("one"), *innocents, poison("two")])
    assert [type(given.pop(0)), type(given.pop())] == [PoisonRequest] * 2
    assert given == list(map(due, innocents))
    assert cluster.deaths <= 4
