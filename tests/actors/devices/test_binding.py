"""A process binds itself: CPUs for all its threads, memory down a ladder, reasons for each step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.devices.binding import bind, bind_if_it_pays
from actors.devices.probe import copy_and_compute
from cluster.binding import Binding, MemoryPolicy
from tests.actors.devices.kernels import Strict

ROOT = Path(__file__).parents[3]
MINE = sorted(os.sched_getaffinity(0))


def told(binding: Binding) -> list[tuple[str, bool]]:
    return [(step.what, step.holds) for step in binding.steps]


def test_cpus_and_memory_are_bound_where_the_kernel_allows_both() -> None:
    kernel = Strict()
    bound = bind((2, 3), 1, kernel)
    assert (bound.cpus, bound.numa_node, bound.memory) == ((2, 3), 1, MemoryPolicy.BIND)
    assert kernel.memory == [(MemoryPolicy.BIND, 1)]
    assert told(bound) == [("cpus", True), ("bind", True)]


def test_memory_that_cannot_be_bound_is_preferred() -> None:
    bound = bind((2, 3), 1, Strict(refuses=(MemoryPolicy.BIND,)))
    assert (bound.memory, bound.numa_node) == (MemoryPolicy.PREFER, 1)
    assert told(bound) == [("cpus", True), ("bind", False), ("prefer", True)]
    assert "the kernel refuses: Operation not permitted" in bound.summary


def test_where_no_policy_is_allowed_the_cpus_stay_bound() -> None:
    bound = bind((2, 3), 1, Strict(refuses=(MemoryPolicy.BIND, MemoryPolicy.PREFER)))
    assert (bound.cpus, bound.numa_node, bound.memory) == ((2, 3), None, MemoryPolicy.ANY)
    assert told(bound) == [("cpus", True), ("bind", False), ("prefer", False)]


def test_memory_that_may_outgrow_its_node_is_only_preferred_there() -> None:
    kernel = Strict()
    bound = bind((2, 3), 1, kernel, strict=False)
    assert kernel.memory == [(MemoryPolicy.PREFER, 1)]
    assert told(bound) == [("cpus", True), ("bind", False), ("prefer", True)]


def test_cpus_of_several_numa_nodes_leave_memory_alone() -> None:
    kernel = Strict()
    bound = bind((2, 3), None, kernel)
    assert kernel.memory == []
    assert bound.steps[1].reason == "its CPUs are not of one NUMA node"


@pytest.mark.parametrize("cpus", [(99,), ()])
def test_a_process_that_cannot_be_bound_runs_unbound(cpus: tuple[int, ...]) -> None:
    kernel = Strict()
    bound = bind(cpus, 1, kernel)
    assert (bound.cpus, bound.memory) == (tuple(range(8)), MemoryPolicy.ANY)
    assert kernel.memory == []
    assert told(bound) == [("cpus", False)]


def test_binding_is_kept_where_it_pays() -> None:
    bound = bind_if_it_pays((2, 3), 1, Strict(), probe=times(0.2, 0.1))
    assert (bound.cpus, bound.memory) == ((2, 3), MemoryPolicy.BIND)
    assert bound.steps[-1].reason == "the probe took 200.0 ms before and 100.0 ms after"


def test_a_difference_within_the_tolerance_is_none() -> None:
    assert bind_if_it_pays((2, 3), 1, Strict(), probe=times(0.100, 0.104)).cpus == (2, 3)


def test_binding_is_undone_where_it_does_not_pay() -> None:
    kernel = Strict()
    bound = bind_if_it_pays((2, 3), 1, kernel, probe=times(0.1, 0.2))
    assert kernel.now == frozenset(range(8))
    assert kernel.memory[-1] == (MemoryPolicy.ANY, None)
    assert (bound.cpus, bound.memory) == (tuple(range(8)), MemoryPolicy.ANY)
    assert told(bound)[-1] == ("keep", False)


def test_the_probe_measures_something() -> None:
    assert copy_and_compute() > 0


def times(*seconds: float) -> Callable[[], float]:
    left = iter(seconds)
    return lambda: next(left)


@contextmanager
def bound_process(cpus: Collection[int], numa_node: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """A process that has bound itself: its pid, and what it says of itself."""
    command = [sys.executable, "-m", "tests.actors.devices.bound_process"]
    with subprocess.Popen(
        [*command, ",".join(map(str, cpus)), str(numa_node)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process.pid, json.loads(process.stdout.readline())
        process.communicate("go\n")


def test_all_threads_of_a_living_process_are_bound() -> None:
    with bound_process(MINE[:1], 0) as (pid, said):
        assert sorted(os.sched_getaffinity(pid)) == MINE[:1]
        assert len(said["threads"]) >= 3
        assert set(map(tuple, said["threads"].values())) == {tuple(MINE[:1])}


def test_the_pages_of_a_living_process_are_bound() -> None:
    with bound_process(MINE, 0) as (pid, said):
        maps = Path(f"/proc/{pid}/numa_maps")
        if said["memory"] != MemoryPolicy.BIND or not os.access(maps, os.R_OK):
            pytest.skip("this kernel allows no memory policy, or does not show it")
        policies = {line.split()[1] for line in maps.read_text().splitlines() if "anon=" in line}
        assert "bind:0" in policies
