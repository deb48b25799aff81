"""An intake fetches pages for its engine: each once, and none over a link that does not pay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from actors.engine.engine import Engine
from actors.engine_thread import Crash, EngineThread, Outcome
from actors.hand_over import Intake
from actors.parcels import Layout, Parcel, pack
from cluster.config import CacheConfig, ModelConfig
from cluster.hand_over import TRIAL_BYTES, PageSize, wanted_pages
from cluster.messages import Assignment, PageHash
from tests.engine.driving import assignment, engine_of, request

BLOCK = 4
PROMPT = list(range(3, 40))


class Source:
    """A shard that is asked for pages; where it `hangs`, it never answers."""

    def __init__(self, engine: Engine, hangs: bool = False) -> None:
        self.asked: list[PageHash] = []
        self._engine = engine
        self._hangs = hangs

    async def pages(self, layout: Layout, names: tuple[PageHash, ...]) -> Parcel:
        self.asked += names
        if self._hangs:
            await asyncio.Event().wait()
        assert self._engine.transfer is not None
        return pack(layout, *self._engine.transfer.give(layout, names))


@pytest.fixture
def source() -> Engine:
    """It has computed the prompt."""
    engine = engine_of("llama")
    engine.admit(asked("before"))
    while engine.has_work:
        engine.step()
    return engine


@pytest.fixture
def intake() -> Iterator[Intake]:
    def crashed(crash: Crash) -> None:
        raise crash.error

    def publish(_: Outcome) -> None:
        pass

    thread = EngineThread(lambda: engine_of("llama"), publish, crashed)
    thread.start()
    thread.capacity.result()
    model = ModelConfig(cache=CacheConfig(block_size=BLOCK))
    yield Intake(model, "nobody looks here", thread)
    thread.ask(lambda engine: engine.verify()).result()


def asked(name: str, more: int = 1) -> Assignment:
    return replace(assignment(request(name, [*PROMPT, more], 3)), salt=b"shared")


async def test_pages_that_several_requests_share_are_asked_for_once(
    intake: Intake, source: Engine
) -> None:
    shard, wanted = Source(source), [asked("one"), asked("two"), asked("three")]
    intake._on_their_way = asyncio.Semaphore(1)
    await asyncio.gather(*(intake._fetch_from(shard.pages, one) for one in wanted))
    assert shard.asked == list(wanted_pages(wanted[0], BLOCK))
    assert intake.stats().pages_received == len(shard.asked)


async def test_a_link_that_hangs_is_tried_once(intake: Intake, source: Engine) -> None:
    shard, wanted = Source(source, hangs=True), asked("one")
    intake._worth.prefilled(10**6, 1.0)
    with pytest.raises(TimeoutError):
        await intake._fetch_from(shard.pages, wanted)
    assert shard.asked
    shard.asked.clear()
    await intake._fetch_from(shard.pages, wanted)
    assert not shard.asked


async def test_however_fast_it_computes_it_fetches_once_to_measure(
    intake: Intake, source: Engine
) -> None:
    shard = Source(source)
    intake._worth.prefilled(10**9, 1.0)
    await intake._fetch_from(shard.pages, asked("one"))
    assert shard.asked
    now = asyncio.get_running_loop().time()
    assert not intake._worth.pays(10, PageSize(BLOCK, TRIAL_BYTES), now)
