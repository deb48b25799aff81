"""Requests that wait for a lease, and doors that die meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
import ray

from actors.door_watch import DoorWatch
from tests.actors.living import ray_session, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Watched:
    """A watch, two doors that live at first, and what was withdrawn, in order."""

    def __init__(self) -> None:
        self.namespace = uuid4().hex
        self.withdrawn: asyncio.Queue[str] = asyncio.Queue()
        self.watch = DoorWatch(self.namespace, self.withdrawn.put, look_s=0.05)

    def begin(self, door: str) -> Any:
        kind = ray.remote(num_cpus=0)(Door)
        return kind.options(name=door, namespace=self.namespace).remote()

    async def kill(self, door: Any, name: str) -> None:
        """Once it is watched."""

        async def watched() -> bool:
            return name in self.watch.living

        await until(watched)
        ray.kill(door)


class Door:
    """Any actor."""


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    with ray_session():
        yield


@pytest_asyncio.fixture(loop_scope="module")
async def watched() -> AsyncIterator[Watched]:
    watched = Watched()
    yield watched
    await watched.watch.close()


async def test_what_waits_of_a_door_that_dies_is_withdrawn_and_nothing_else(
    watched: Watched,
) -> None:
    dying, living = watched.begin("dying"), watched.begin("living")
    await asyncio.gather(dying.__ray_ready__.remote(), living.__ray_ready__.remote())
    with watched.watch.waiting("dying", "a"), watched.watch.waiting("living", "b"):
        with watched.watch.waiting("dying", "decided"):
            pass
        await watched.kill(dying, "dying")
        assert await watched.withdrawn.get() == "a"
        await living.__ray_ready__.remote()
    assert watched.withdrawn.empty()


async def test_a_door_that_is_not_found_or_has_no_name_is_left_alone(watched: Watched) -> None:
    dying = watched.begin("dying")
    await dying.__ray_ready__.remote()
    waiting = watched.watch.waiting
    with waiting("never there", "a"), waiting("", "b"), waiting("dying", "c"):
        await watched.kill(dying, "dying")
        assert await watched.withdrawn.get() == "c"
    assert watched.withdrawn.empty()
