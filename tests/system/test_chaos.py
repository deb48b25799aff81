"""Requests of every kind where memory and disk are full, and where a machine is cut off."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks import mixture
from benchmarks.chaos.report import Report
from benchmarks.chaos.run import Chaos
from benchmarks.chaos.site import Site, prepared
from tests.system import network
from tests.system.application import MODEL

pytestmark = [pytest.mark.exhaustive, pytest.mark.slow]


def suffer(site: Site, *faults: str, together: bool = False) -> Report:
    """Four of these faults, or twice both of them together, while 84 requests are answered."""
    chaos = Chaos(site, seed=3, only=faults, together=together)
    kills = 2 if together else 4
    return asyncio.run(chaos.run(mixture.asks(MODEL, 28, seed=1), 84, kills, at_once=12))


def check_nothing_is_lost(report: Report) -> None:
    assert report.errors == []
    assert report.verdicts == {"right": 84}
    assert len(report.blows) == 4
    assert report.is_clean


def test_full_memory_costs_no_request(tiny_folder: Path) -> None:
    with prepared(tiny_folder, shards=2, machines=0) as site:
        report = suffer(site, "starved shard", "starved scheduler")
    check_nothing_is_lost(report)


def test_a_shard_that_is_killed_as_the_disk_is_full_costs_no_request(tiny_folder: Path) -> None:
    with prepared(tiny_folder, shards=2, machines=0) as site:
        if site.disk is None:
            pytest.skip("needs to mount a disk")
        report = suffer(site, "full disk", "killed shard", together=True)
    check_nothing_is_lost(report)
    struck = [blow.fault.name for blow in report.blows]
    assert struck == ["killed shard", "full disk"] * 2


def test_a_machine_that_is_cut_off_costs_no_request(tiny_folder: Path) -> None:
    if not network.is_possible():
        pytest.skip("needs network namespaces")
    with prepared(tiny_folder, shards=2, machines=2) as site:
        report = suffer(site, "unplugged machine")
    check_nothing_is_lost(report)
