"""CPU and memory go to the process that took them, whatever comes and goes in between."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.accounting import (
    GIB,
    PAGE_BYTES,
    TICK_S,
    Machine,
    Meter,
    Process,
    Watch,
    engine_pids,
    read_machine,
    read_pss,
    read_tree,
    short_name,
)

ENGINE = "ray::KVShard"


def process(
    pid: int, parent: int, cpu_s: float, title: str = "server", rss_gib: int = 0
) -> Process:
    return Process(pid, parent, pid * 10, title, cpu_s, rss_gib * GIB)


def kernel_tells(proc: Path, pid: int, parent: int, title: str, cpu_ticks: tuple[int, int]) -> None:
    """One process in a folder that looks like /proc."""
    entry = proc / str(pid)
    entry.mkdir()
    numbers = ["0"] * 49
    numbers[0], numbers[18], numbers[20] = str(parent), "77", "3"
    numbers[10], numbers[11] = map(str, cpu_ticks)
    (entry / "stat").write_text(f"{pid} (a) b (c) S {' '.join(numbers)}\n")
    (entry / "cmdline").write_text(title.replace(" ", "\0"))


def test_a_tree_is_the_root_and_all_below_it_parents_first(tmp_path: Path) -> None:
    for pid, parent in ((5, 1), (9, 5), (7, 9), (6, 1), (8, 6)):
        kernel_tells(tmp_path, pid, parent, "x", (0, 0))
    assert [one.pid for one in read_tree(5, tmp_path)] == [5, 9, 7]


def test_a_process_is_read_past_a_name_with_brackets_and_spaces(tmp_path: Path) -> None:
    kernel_tells(tmp_path, 5, 1, "ray::KVShard.run now", (30, 12))
    (read,) = read_tree(5, tmp_path)
    assert read == Process(5, 1, 77, "ray::KVShard.run now", 42 * TICK_S, 3 * PAGE_BYTES)


def test_a_root_that_is_gone_has_no_tree(tmp_path: Path) -> None:
    assert read_tree(5, tmp_path) == []


def test_this_very_process_is_found_in_the_real_proc() -> None:
    (own,) = [one for one in read_tree(os.getpid()) if one.pid == os.getpid()]
    assert own.cpu_s > 0
    assert own.rss_bytes > 10 * 2**20
    assert 0 < read_pss([own]) <= own.rss_bytes * 2


def test_the_machine_is_busy_with_all_but_idling_waiting_and_stealing(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  1 2 4 1000 1000 8 16 32 1 0\ncpu0 0\n")
    assert read_machine(tmp_path) == Machine(31 * TICK_S, 32 * TICK_S)


def test_what_an_engine_starts_is_engine_too() -> None:
    tree = [process(1, 0, 0), process(2, 1, 0, "ray::KVShard"), process(3, 2, 0), process(4, 1, 0)]
    assert engine_pids(tree, ENGINE) == {2, 3}


def test_without_a_title_everything_is_engine() -> None:
    assert engine_pids([process(1, 0, 0), process(2, 1, 0)], "") == {1, 2}


def test_cpu_is_split_between_the_engine_and_the_rest() -> None:
    meter = Meter(ENGINE, [process(1, 0, 100), process(2, 1, 50, ENGINE)], Machine(1000, 5))
    meter.enter([process(1, 0, 103), process(2, 1, 59, ENGINE)], Machine(1020, 6))
    usage = meter.usage(client_cpu_s=1)
    assert (usage.engine_cpu_s, usage.framework_cpu_s) == (9, 3)
    assert usage.framework_share == pytest.approx(0.25)
    assert (usage.others_cpu_s, usage.steal_s) == (20 - 9 - 3 - 1, 1)


def test_cpu_is_told_by_process_too_and_those_of_one_name_are_one() -> None:
    meter = Meter(ENGINE, [], Machine(0, 0))
    tree = [
        process(1, 0, 1, "/usr/bin/haproxy -f x"),
        process(2, 1, 2, "haproxy"),
        process(3, 1, 9),
    ]
    meter.enter(tree, Machine(0, 0))
    assert meter.usage(0).cpu_s_by_name == {"server": 9, "haproxy": 3}


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("ray::KVShard.run now", "ray::KVShard"),
        ("/opt/ray/raylet --port 1", "raylet"),
        ("/venv/bin/python3.11 -u /opt/dashboard/agent.py --x", "agent.py"),
        ("python -m scripts.serve --config c", "scripts.serve"),
        ("python", "python"),
        ("/bin/python3.11 -B -c from x import main;main(31)", "python3.11"),
        ("", "?"),
    ],
)
def test_a_short_name_says_what_runs(title: str, name: str) -> None:
    assert short_name(title) == name


def test_a_process_born_during_the_run_counts_from_its_birth() -> None:
    meter = Meter(ENGINE, [process(1, 0, 100)], Machine(0, 0))
    meter.enter([process(1, 0, 100), process(2, 1, 4)], Machine(4, 0))
    assert meter.usage(0).framework_cpu_s == 4


def test_a_process_that_ended_keeps_what_it_took() -> None:
    meter = Meter(ENGINE, [process(1, 0, 0), process(2, 1, 10, ENGINE)], Machine(0, 0))
    meter.enter([process(1, 0, 1), process(2, 1, 13, ENGINE)], Machine(4, 0))
    meter.enter([process(1, 0, 2)], Machine(5, 0))
    usage = meter.usage(0)
    assert (usage.engine_cpu_s, usage.framework_cpu_s) == (3, 2)


def test_a_reused_process_id_is_another_process() -> None:
    meter = Meter(ENGINE, [process(1, 0, 100)], Machine(0, 0))
    meter.enter([Process(1, 0, 999, "server", 2, 0)], Machine(2, 0))
    assert meter.usage(0).framework_cpu_s == 2


def test_peaks_are_of_the_sum_over_the_tree_at_one_moment() -> None:
    meter = Meter(ENGINE, [], Machine(0, 0))
    meter.enter([process(1, 0, 0, rss_gib=3), process(2, 1, 0, rss_gib=1)], Machine(0, 0), GIB)
    meter.enter([process(1, 0, 0, rss_gib=1), process(2, 1, 0, rss_gib=2)], Machine(0, 0), 2 * GIB)
    usage = meter.usage(0)
    assert (usage.peak_rss_gib, usage.peak_pss_gib) == (4, 2)


def test_a_machine_that_did_nothing_else_is_not_credited_by_rounding() -> None:
    meter = Meter(ENGINE, [process(1, 0, 0)], Machine(0, 0))
    meter.enter([process(1, 0, 2)], Machine(1.99, 0))
    assert meter.usage(0).others_cpu_s == 0


def test_a_watch_measures_a_real_tree_between_start_and_stop() -> None:
    usage = Watch(os.getpid(), "").start().stop()
    assert usage.peak_rss_gib > 0
    assert usage.peak_pss_gib > 0
    assert usage.framework_cpu_s == 0
