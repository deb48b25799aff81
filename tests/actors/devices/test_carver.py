"""What the fleet tells a keeper of MIG layouts, and which: stand-ins for Ray's handles hear it."""

from __future__ import annotations

from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError

from actors.carving import PREFIX, Carver
from actors.identity import Identity
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


class Method:
    """One method of an actor."""

    def __init__(self, answer: Any) -> None:
        self.remote = answer


class Names:
    """Ray, as far as it knows who bears a name: the dead keep theirs until they are killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bearers: dict[str, Handle] = {}
        monkeypatch.setattr(ray, "get_actor", self._get)
        monkeypatch.setattr(ray, "kill", self._kill)
        monkeypatch.setattr(ray, "remote", lambda _actor: self)

    def options(self, *, name: str, **_options: Any) -> Names:
        self._next = name
        return self

    def remote(self, *_arguments: Any) -> Handle:
        """With `get_if_exists`."""
        return self.bearers.setdefault(self._next, Handle())

    def _get(self, name: str, namespace: str) -> Handle:
        assert namespace == NAMESPACE
        if name not in self.bearers:
            raise ValueError(name)
        return self.bearers[name]

    def _kill(self, handle: Handle) -> None:
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
