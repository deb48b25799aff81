"""What a run of chaos draws and what it tells, without running it."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

from actors.tasks import cancel_all
from benchmarks.chaos.faults import (
    FAULTS,
    Process,
    draw,
    fill,
    find,
    freeze,
    possible,
    starve,
    unplug,
)
from benchmarks.chaos.report import Blow, Report
from benchmarks.chaos.site import DISK_MIB, Site, small_disk
from benchmarks.mixture import Answer, Choice, verdict
from tests.actors.living import until
from tests.system import network
from tests.system.application import Application
from tests.system.network import Network

SHARD = next(fault for fault in FAULTS if fault.name == "killed shard")
CUT = next(fault for fault in FAULTS if fault.name == "cut shard")


def test_a_seed_draws_the_same_faults_each_time_and_as_many_deaths_as_asked_for() -> None:
    drawn = draw(50, FAULTS, Random(3))
    assert drawn == draw(50, FAULTS, Random(3)) != draw(50, FAULTS, Random(4))
    assert sum(fault.deadly for fault in drawn) == 50
    assert {fault.name for fault in drawn} == {fault.name for fault in FAULTS}


def test_where_nothing_is_deadly_as_much_happens_as_asked_for() -> None:
    assert draw(5, [CUT], Random(3)) == [CUT] * 5


@pytest.mark.parametrize(
    ("names", "found"),
    [((), {"shard", "scheduler", "Router", "Fleet"}), (["cut shard"], {"shard"})],
)
def test_only_what_is_there_and_asked_for_is_struck(names: list[str], found: set[str]) -> None:
    site = Site(Application("http://nowhere"), shards=1)
    assert {fault.part for fault in possible(site, names)} == found


@pytest.fixture
def sleeper() -> Iterator[Process]:
    process = subprocess.Popen(["sleep", "60"])
    yield Process(process.pid)
    process.kill()
    process.wait()


async def while_struck(strike: Coroutine[Any, Any, None], happens: Callable[[], bool]) -> None:
    """End a strike early, once it is seen to do what it is for."""
    struck = asyncio.create_task(strike)

    async def seen() -> bool:
        return happens()

    await until(seen)
    await cancel_all(struck)


async def test_who_is_starved_has_its_memory_back_however_that_ends(sleeper: Process) -> None:
    process = psutil.Process(sleeper.pid)
    usual = process.rlimit(psutil.RLIMIT_AS)
    starved = starve(sleeper, Random(0))
    await while_struck(starved, lambda: process.rlimit(psutil.RLIMIT_AS) != usual)
    assert process.rlimit(psutil.RLIMIT_AS) == usual


async def test_who_is_stopped_goes_on_however_that_ends(sleeper: Process) -> None:
    process = psutil.Process(sleeper.pid)
    stopped = freeze(sleeper, Random(0))
    await while_struck(stopped, lambda: process.status() == psutil.STATUS_STOPPED)
    assert process.status() != psutil.STATUS_STOPPED


async def test_a_full_disk_has_room_again_however_that_ends(tmp_path: Path) -> None:
    with small_disk(tmp_path) as mounted:
        if not mounted:
            pytest.skip("needs to mount a disk")
        room = psutil.disk_usage(str(tmp_path)).free
        full = fill(tmp_path, Random(0))
        await while_struck(full, lambda: psutil.disk_usage(str(tmp_path)).free == 0)
        assert psutil.disk_usage(str(tmp_path)).free == room
    assert psutil.disk_usage(str(tmp_path)).total > DISK_MIB * 2**20  # not that one any more


async def test_a_disk_that_is_full_can_be_filled_again(tmp_path: Path) -> None:
    with small_disk(tmp_path) as mounted:
        if not mounted:
            pytest.skip("needs to mount a disk")

        def is_full() -> bool:
            return bool(psutil.disk_usage(str(tmp_path)).free == 0)

        async def twice() -> None:
            async with asyncio.TaskGroup() as both:
                for _ in range(2):
                    both.create_task(fill(tmp_path, Random(0)))

        await while_struck(twice(), is_full)
        assert not is_full()


async def test_who_is_struck_already_is_not_found_until_it_is_over(tmp_path: Path) -> None:
    site = Site(Application("http://nowhere"), shards=1, disk=tmp_path)
    assert await find(site, "disk", Random(0)) == tmp_path
    assert await find(site, "disk", Random(0), {tmp_path}) is None
    assert Process(1, "one") == Process(1, "another")


async def test_an_unplugged_machine_is_reached_again_however_that_ends() -> None:
    if not network.is_possible():
        pytest.skip("needs network namespaces")
    there = Network(machines=1)
    try:
        (machine,) = there.machines

        def is_cut_off() -> bool:
            """It does not even refuse a connection, as it does where nobody listens."""
            try:
                socket.create_connection((machine.address, 9), timeout=1)
            except OSError as error:
                return not isinstance(error, ConnectionRefusedError)
            return False

        async def is_reached() -> bool:
            return not is_cut_off()

        await until(is_reached)
        await while_struck(unplug(machine, Random(0)), is_cut_off)
        await until(is_reached)
    finally:
        there.remove()


def stream(*arrivals: float) -> Answer:
    return Answer(arrivals=list(arrivals))


def test_pauses_are_those_around_a_fault_and_the_longest_of_who_moved() -> None:
    moved = stream(0.0, 0.1, 0.9, 1.0)
    unconcerned = stream(0.0, 0.5, 0.6)
    report = Report(
        blows=[Blow(SHARD, 0.2), Blow(CUT, 5.0)], streams=[moved, unconcerned], moved=[moved]
    )
    told = "\n".join(report.lines())
    assert "silence of the 1 streams that moved: median 0.80 s, longest 0.80 s, of 1" in told
    assert "pause of any stream over a killed shard: median 0.65 s, longest 0.80 s, of 2" in told
    assert "pause of any stream over a cut shard: none" in told
    assert report.kills == 1


@pytest.mark.parametrize(
    ("left", "clean"),
    [
        ({}, True),
        ({"mended": Counter(unowned=1)}, True),
        ({"verdicts": Counter(right=1, lost=1)}, False),
        ({"leaked_pages": 1}, False),
        ({"leaked_leases": 1}, False),
        ({"broken": 1}, False),
        ({"mended_after": Counter(unheld=1)}, False),
    ],
)
def test_whatever_is_wrong_or_left_behind_is_not_clean(left: dict[str, Any], clean: bool) -> None:
    assert Report(**{"verdicts": Counter(right=1), **left}).is_clean == clean


def answered(text: str, tokens: int) -> Answer:
    return Answer(choices={0: Choice(text, "stop")}, prompt_tokens=3, completion_tokens=tokens)


@pytest.mark.parametrize(
    ("text", "tokens", "found"),
    [
        ("one fish", 2, "right"),
        ("one", 2, "lost"),
        ("one fish fish", 2, "repeated"),
        ("two fish", 2, "wrong"),
        ("one fish", 1, "lost"),
        ("one fish", 3, "repeated"),
    ],
)
def test_an_answer_is_judged_by_the_undisturbed_one(text: str, tokens: int, found: str) -> None:
    assert verdict(answered(text, tokens), answered("one fish", 2)) == found
