"""How many threads a shard has follows how many it is to have, and what its node has left."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from actors.devices.berth import Berth
from actors.devices.claims import CpuClaims
from actors.threads import Threads
from tests.actors.devices.kernels import Strict
from tests.cluster.machines import recorded

ALL = frozenset(range(256))


@pytest.fixture
def claims() -> Iterator[CpuClaims]:
    claims = CpuClaims(f"test-{uuid4().hex}")
    yield claims
    claims.verify()
    claims.release()


def berth(claims: CpuClaims) -> Berth:
    return Berth("auto", recorded("pcie-4gpu"), (), claims, Strict(able=ALL, now=ALL))


def test_before_it_has_a_berth_it_only_remembers(claims: CpuClaims) -> None:
    used: list[int] = []
    threads = Threads(4, used.append)
    threads.want(2)
    assert (threads.count, threads.binding, used) == (4, None, [])

    threads.moor(berth(claims))
    assert (threads.count, used, len(claims.cpus)) == (2, [2], 2)
    assert threads.binding is not None


def test_before_it_has_a_berth_others_may_ask_how_many_it_is_to_have() -> None:
    threads = Threads(4)
    threads.want(2)
    assert (threads.wanted, threads.count) == (2, 4)


def test_who_is_to_have_as_many_as_it_has_is_told_nothing(claims: CpuClaims) -> None:
    used: list[int] = []
    threads = Threads(2, used.append)
    threads.moor(berth(claims))
    threads.want(2)
    threads.want(3)
    assert used == [3]
