"""What the fleet tells a keeper of MIG layouts, and which: stand-ins for Ray's handles hear it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError

from actors.carving import PREFIX, Carver
from actors.identity import Identity
from actors.tasks import cancel_all
from cluster.placement import Plan, Recut

HERE = "0" * 56
PLAN = Plan((), recuts=(Recut(HERE, "GPU-1", (), ()),))
NAMESPACE = "tests"


class Handle:
    """Of a keeper, which lives or is dead."""

    def __init__(self, dead: bool = False) -> None:
        self.dead = dead
        self.own_pids: list[tuple[int, ...]] = []
        self.hold = Method(self._hold)
        self.recut = Method(self._recut)

    async def _hold(self) -> None:
        if self.dead:
            raise ActorDiedError

    async def _recut(self, _recut: Recut, own_pids: tuple[int, ...]) -> None:
        await self._hold()
        self.own_pids.append(own_pids)


class Held:
    """Of a keeper that is held and does no more."""

    def __init__(self) -> None:
        self.signs = 0
        self.heard = asyncio.Event()
        self.hold = Method(self._hold)

    def _hold(self) -> None:
        self.signs += 1
        self.heard.set()

    async def is_held_again(self) -> None:
        self.heard.clear()
        async with asyncio.timeout(20.0):
            await self.heard.wait()


class Method:
    """One method of an actor."""

    def __init__(self, answer: Any) -> None:
        self.remote = answer


class Names:
    """Ray, as far as it knows who bears a name: the dead keep theirs until they are killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bearers: dict[str, Any] = {}
        self.listed = 0
        self.unreachable = 0
        self.looked = threading.Event()
        monkeypatch.setattr(ray.util, "list_named_actors", self._list)
        monkeypatch.setattr(ray, "get_actor", self._get)
        monkeypatch.setattr(ray, "kill", self._kill)
        monkeypatch.setattr(ray, "remote", lambda _actor: self)

    def options(self, *, name: str, **_options: Any) -> Names:
        self._next = name
        return self

    def remote(self, *_arguments: Any) -> Any:
        """With `get_if_exists`."""
        return self.bearers.setdefault(self._next, Handle())

    def _list(self, *, all_namespaces: bool) -> list[dict[str, str]]:
        assert all_namespaces
        self.listed += 1
        if self.listed <= self.unreachable:
            raise ConnectionError
        found = [{"name": name, "namespace": NAMESPACE} for name in self.bearers]
        self.looked.set()
        return found

    def _get(self, name: str, namespace: str) -> Any:
        assert namespace == NAMESPACE
        if name not in self.bearers:
            raise ValueError(name)
        return self.bearers[name]

    def _kill(self, handle: Any) -> None:
        self.bearers = {name: one for name, one in self.bearers.items() if one is not handle}


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


async def test_a_shard_is_ours_from_when_it_stands_until_it_is_dead(names: Names) -> None:
    keeper = names.bearers[PREFIX + HERE] = Handle()
    carver = Carver(NAMESPACE, slack_s=60.0)
    carver.stands("m/shard-0", Identity("stamp", node=HERE, pid=12))
    carver.stands("m/shard-1", Identity("stamp", node="elsewhere", pid=13))
    await carver.carve(PLAN)
    carver.leave("m/shard-0")
    await carver.carve(PLAN)
    assert keeper.own_pids == [(12,), ()]


async def test_a_keeper_is_made_where_there_is_none(names: Names) -> None:
    assert await Carver(NAMESPACE, slack_s=60.0).carve(PLAN) == ()
    assert names.bearers[PREFIX + HERE].own_pids == [()]


async def test_a_dead_keeper_whose_name_is_still_taken_is_replaced(names: Names) -> None:
    names.bearers[PREFIX + HERE] = Handle(dead=True)
    assert await Carver(NAMESPACE, slack_s=60.0).carve(PLAN) == ()
    assert names.bearers[PREFIX + HERE].own_pids == [()]


async def test_a_fleet_that_cuts_nothing_and_finds_no_keeper_looks_once(names: Names) -> None:
    names.bearers["m/shard-0"] = Held()
    async with asyncio.timeout(20.0):
        await Carver(NAMESPACE, 60.0, cuts=False, hold_s=0.0).run()
    assert names.listed == 1


async def test_a_fleet_that_cuts_nothing_holds_the_keepers_it_finds_until_they_are_gone(
    names: Names,
) -> None:
    keeper = names.bearers[PREFIX + HERE] = Held()
    running = asyncio.create_task(Carver(NAMESPACE, 60.0, cuts=False, hold_s=0.0).run())
    await keeper.is_held_again()
    await keeper.is_held_again()
    names.bearers.clear()
    async with asyncio.timeout(20.0):
        await running


async def test_a_look_that_fails_is_repeated(names: Names) -> None:
    names.unreachable = 1
    async with asyncio.timeout(20.0):
        await Carver(NAMESPACE, 60.0, cuts=False, hold_s=0.0).run()
    assert names.listed == 2


async def test_a_fleet_that_cuts_holds_keepers_that_come_later(names: Names) -> None:
    running = asyncio.create_task(Carver(NAMESPACE, 60.0, hold_s=0.0).run())
    await asyncio.to_thread(names.looked.wait, 20.0)
    keeper = names.bearers[PREFIX + HERE] = Held()
    await keeper.is_held_again()
    await cancel_all(running)
