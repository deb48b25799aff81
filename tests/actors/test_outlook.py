"""What is known of the nodes is asked again once it may be old."""

from __future__ import annotations

import asyncio

from actors.outlook import Outlook
from cluster.topology import Node, Topology

THERE = Topology((Node("a", ()), Node("b", ())))


class Survey:
    """Sees what is there, once it may; remembers what was known each time."""

    def __init__(self) -> None:
        self.known: list[Topology] = []
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()

    async def look(self, known: Topology) -> Topology:
        self.known.append(known)
        self.began.set()
        await self.may_end.wait()
        return THERE


async def test_what_is_forgotten_is_looked_at_again() -> None:
    survey = Survey()
    survey.may_end.set()
    outlook = Outlook(survey.look)
    await outlook.renew()
    outlook.forget({"a"})
    await outlook.renew()
    assert survey.known == [Topology(()), THERE.without({"a"})]


async def test_what_a_look_finds_that_began_before_all_was_forgotten_is_forgotten_too() -> None:
    survey = Survey()
    outlook = Outlook(survey.look)
    looking = asyncio.create_task(outlook.renew())
    await survey.began.wait()
    outlook.forget_all()
    survey.may_end.set()
    assert await looking == THERE
    await outlook.renew()
    await outlook.renew()
    assert survey.known == [Topology(()), Topology(()), THERE]
